"""The command line: `python -m launcher [VERB] [Hydra overrides or names] [flags]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import ConfigError, Interrupted, LauncherError

USAGE = """\
usage: python -m launcher [VERB] [Hydra overrides or a run's name] [flags]

  run (default)  provision, run, supervise, tear down     launcher cluster=v6e-16 workload=basic
  plan [--json]  print what run would do; touch nothing; --show-files
  up, down NAME  slices and cluster without a job; down --all takes down everything of yours
  status [NAME]  phase, attempt, last step; --json
  logs NAME [-f] output of all processes
  cancel NAME    stop a run and delete its slices
  gc [--yes]     find what dead runs left; --yes deletes it

Overrides:  cluster=v6e-16  mode=jax  workload=basic  workload.script=train.py  workload.args.lr=0.1
            name=my-run  keep=true  provider=google provider.project=my-project
Hydra:      -m  --cfg job  --info  --config-dir DIR  --shell-completion (tab completion)
Exit codes: 0 succeeded, 1 fault of launcher, 2 configuration, 3 provisioning, 4 cluster,
            5 workload failed, 6 preemption budget spent, 130 interrupted
"""
FLAGS = frozenset({"--show-files", "--json", "--all", "--yes", "-f", "--follow"})
HYDRA_FLAGS = frozenset(
    {"-m", "--multirun", "--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc"}
)


def main(argv: Sequence[str] | None = None) -> None:
    """Never returns: leaves with the exit code of the design's table."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it reports orderly hang-ups on stderr
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(dispatch(words))
    except LauncherError as error:
        print(f"launcher: {type(error).__name__}\n{error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)


def dispatch(words: list[str]) -> int:
    from launcher.verbs import TAKING_NAMES, VERBS, Arguments, find

    verb = words.pop(0) if words and words[0] in VERBS else "run"
    if {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0
    if verb == "run" and HYDRA_FLAGS & {word.partition("=")[0] for word in words}:
        return through_hydra(words)
    flags, config_dirs, rest = take_flags(words)
    named = verb in TAKING_NAMES
    arguments = Arguments(
        overrides=() if named else rest,
        names=rest if named else (),
        flags=frozenset(flags),
        config_dirs=config_dirs,
    )
    return find(verb)(arguments)


def take_flags(words: Sequence[str]) -> tuple[list[str], list[Path], list[str]]:
    """Our flags, the folders of `--config-dir`, and the other words in their order."""
    flags, folders, rest = [], [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            folders.append(Path(value if equals else next(remaining, "")))
        elif word in FLAGS:
            flags.append(word)
        elif word.startswith("-"):
            raise ConfigError(f"unknown flag {word}; `python -m launcher --help` lists them")
        else:
            rest.append(word)
    return flags, folders, rest


def through_hydra(words: Sequence[str]) -> int:
    """Hydra's own flags: it prints, or runs each trial of a multirun through `run`."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from launcher.compose import CONF, config_folders
    from launcher.config.composition import search_path
    from launcher.config.overrides import as_hydra
    from launcher.verbs import Arguments
    from launcher.verbs.run import run

    def trial(_: object) -> None:
        code = run(Arguments(overrides=list(HydraConfig.get().overrides.task)))
        if code:
            raise SystemExit(code)

    own = config_folders(Path.cwd())[1:]
    sys.argv = ["launcher", *as_hydra(words), *([search_path(own)] if own else [])]
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(trial)()
    return 0


if __name__ == "__main__":
    main()
