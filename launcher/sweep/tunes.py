"""A sweep whose trials a searcher suggests: `hydra/sweeper=tune`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import registry
from launcher.config.overrides import as_hydra
from launcher.errors import ConfigError, Problem
from launcher.invocation import asker
from launcher.providers import KINDS
from launcher.record import runs_folder
from launcher.spec import Spec
from launcher.sweep import identity, search_settings, search_space, trials
from launcher.sweep.entries import STANDING, Entry, Status, restored
from launcher.sweep.protocol import Search, Suggestion
from launcher.sweep.search import make_search
from launcher.sweep.sweeps import Ended, Sweep, check, concluded, history, own
from launcher.sweep.trial_run import keep_failed
from launcher.sweep.trials import Composer, Group, Trial

_PROVISIONED = ("cluster", "mode", "provider")


def run(
    overrides: Sequence[str],
    params: Mapping[str, Any],
    config_dirs: Sequence[Path],
    config_loader: Any,
) -> Ended:
    """All trials that the searcher suggests; `params` are those of Hydra's own sweeper block.

    Raises ConfigError before anything is provisioned, and what ends the sweep as a whole.
    """
    take_apart = search_space.take_apart
    composer = Composer(config_dirs, Path.cwd())
    single = take_apart(overrides, params, config_loader=config_loader)
    settings = composer.spec(words(single[1], probe(single[0]))).sweep
    space, shared = take_apart(
        overrides,
        {**settings.params, **params},
        seed=settings.seed,
        config_loader=config_loader,
    )
    tune = Tune(composer, space, tuple(shared))
    search = make_search(tune.settings(), space, tune.identify)
    with concluded(tune.sweep):
        entries = tune.restored()
        asked = make_search(tune.settings(), space, tune.identify)
        if is_over(entries, asked):
            tune.sweep.pass_over(entries)
        else:
            tune.sweep.run(tune.group, entries, search, tune.make)
    found = tune.sweep.board
    return Ended(found.entries, found.goal)


def is_over(entries: Sequence[Entry], search: Search) -> bool:
    """Whether there is nothing to make a cluster for; `search` is of no use afterwards."""
    search.restore(history(entries))
    return search.exhausted and all(entry.ended for entry in entries)


def words(shared: Sequence[str], suggested: Mapping[str, str]) -> list[str]:
    """The overrides of a trial."""
    return [*shared, *as_hydra([f"{key}={text}" for key, text in suggested.items()])]


def probe(space: search_space.Space) -> dict[str, str]:
    """Some values, with which the config is complete."""
    rng = random.Random(0)
    return {key: search_space.draw(domain, rng) for key, domain in space.items()}


class Tune:
    """Makes the trials of one search; `group` is the cluster of all."""

    def __init__(
        self, composer: Composer, space: search_space.Space, shared: tuple[str, ...]
    ) -> None:
        self._composer = composer
        self._shared = shared
        self._keys = tuple(space)
        trials.refuse_means([key for key in space if identity.is_means(key)])
        first = self._composer.trial(words(shared, probe(space)), self._keys)
        self._name = trials.name_of([first.spec], first.overrides, Path.cwd())
        self._first = own(first, self._name)
        self._asks_for = trials.asks_for(self._first.spec, asker)
        self.group: Group = trials.groups(self._name, [self._first], asker)[0]
        check([self.group], here=("optuna",))
        folder = runs_folder() / self._name
        self.sweep = Sweep(self._name, self._first.spec, folder, remake=self.trial)
        self.sweep.require_own_folder()
        self._require_one_cluster(space)

    def _require_one_cluster(self, space: search_space.Space) -> None:
        """Raises ConfigError for a key of which other values would need another cluster."""
        known = probe(space)
        for key, domain in space.items():
            if key.partition(".")[0] in _PROVISIONED:
                for text in search_space.ends(domain):
                    self.trial({**known, key: text})

    def settings(self) -> search_settings.Settings:
        """Raises ConfigError."""
        found, problems = search_settings.settings(self._first.spec.sweep)
        if found.scheduler == "pbt":
            problems += shared_folder(self._first.spec)
        if problems:
            raise ConfigError(problems)
        return found

    def identify(self, suggested: Mapping[str, str]) -> str:
        return identity.trial_id(words(self._shared, suggested))

    def trial(self, suggested: Mapping[str, str]) -> Trial:
        """Raises ConfigError, also for one that would need another cluster."""
        made = own(self._composer.trial(words(self._shared, suggested), self._keys), self._name)
        if trials.asks_for(made.spec, asker) != self._asks_for:
            message = "a search cannot be over what is provisioned"
            hint = "a plain -m runs the trials of one cluster after those of another"
            keys = [key for key in suggested if key.partition(".")[0] in _PROVISIONED]
            raise ConfigError([Problem(message, ", ".join(keys or suggested), hint=hint)])
        return made

    def make(self, suggestion: Suggestion) -> Entry:
        """One whose config is wrong has failed, and no other has; its folder says so."""
        number = len(self.sweep.board.entries)
        chosen = suggestion.overrides
        made, wrong = self._made(suggestion.trial_id, chosen)
        entry = Entry(made, number, chosen, chosen)
        if wrong:
            refuse(entry, wrong)
            keep_failed(entry, self.sweep.folder)
        return entry

    def _made(self, trial_id: str, chosen: Mapping[str, str]) -> tuple[Trial, ConfigError | None]:
        try:
            return replace(self.trial(chosen), id=trial_id), None
        except ConfigError as error:
            typed = tuple(words(self._shared, chosen))
            return replace(self._first, id=trial_id, overrides=typed, params=dict(chosen)), error

    def restored(self) -> list[Entry]:
        """Trials of earlier invocations, in the order in which they were suggested."""
        self.sweep.code(self._first)  # all have this, whatever is edited meanwhile
        found = {folder.name: left_in(folder) for folder in self.sweep.folder.glob("*/")}
        mine = {
            trial: left
            for trial, left in found.items()
            if "origin" in left and trial == self.identify(left["origin"])
        }
        in_order = sorted(mine, key=lambda trial: mine[trial]["number"])
        entries = [self._restored(trial, mine[trial]) for trial in in_order]
        self.sweep.board.add(entries)
        return entries

    def _restored(self, trial_id: str, left: Mapping[str, Any]) -> Entry:
        retry = self._first.spec.sweep.retry_failed
        made, wrong = self._made(trial_id, left["suggested"])
        entry = restored(made, left["number"], self.sweep.folder, retry_failed=retry)
        entry.origin, entry.suggested = left["origin"], left["suggested"]
        if wrong and not entry.ended:
            refuse(entry, wrong)
        return entry


def refuse(entry: Entry, wrong: ConfigError) -> None:
    entry.status = Status.FAILED
    entry.exit_code, entry.message = wrong.exit_code, str(wrong)


def shared_folder(spec: Spec) -> list[Problem]:
    """What is wrong with the folder of checkpoints, where one trial goes on from another's."""
    assert spec.workload is not None
    folder = spec.workload.checkpoint_dir
    if KINDS[spec.provider.kind].shares_disk or (folder and "://" not in folder):
        return []
    hint = "a folder that this machine and the hosts share, such as one of Filestore"
    return [Problem("pbt copies checkpoints from here", "workload.checkpoint_dir", hint=hint)]


def left_in(folder: Path) -> Mapping[str, Any]:
    """What an earlier invocation has left of a trial: how it ended, or how far it was."""
    found = registry.read_json(folder / "result.json") or registry.read_json(folder / STANDING)
    return found or {}
