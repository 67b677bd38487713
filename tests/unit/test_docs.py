"""The pages of docs/ say what is so: their commands compose, their tables are complete."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.compose import CONF, compose
from launcher.config.overrides import check_points
from launcher.errors import Reason
from launcher.judging.outcome import POLICIES as VERDICTS
from launcher.plan import plan_processes
from launcher.providers.reasons import POLICIES
from launcher.provisioning.capacity import CAPACITIES
from launcher.ranks.rendezvous import Meeting, ports_of_host
from launcher.spec import Spec
from launcher.verbs import VERBS, Takes, take_apart

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name != "roadmap.md")


def commands() -> Iterator[str]:
    """Every `python -m launcher` of the pages, in one line, without what a reader puts in."""
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            lines = re.sub(r"\\\n\s*", "", block).splitlines()
            yield from (line for line in lines if line.startswith("python -m launcher "))


@pytest.mark.parametrize("command", tuple(commands()))
def test_a_command_is_one(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    words = shlex.split(command.replace("PROJECT", "my-project").replace("BUCKET", "b"), True)[3:]
    (tmp_path / "train.py").write_text("print()\n")  # the reader's own
    verb = words.pop(0) if words[0] in VERBS else "run"
    arguments = take_apart(verb, words)
    if VERBS[verb].takes is Takes.OVERRIDES:
        overrides = [word for word in arguments.overrides if "=" in word]
        is_sweep = "--multirun" in arguments.hydra
        for point in check_points(overrides) if is_sweep else [overrides]:
            spec = compose(point, cwd=tmp_path)
            assert spec.cluster.offers
            assert_batch_divides(spec)


def assert_batch_divides(spec: Spec) -> None:
    """The batch of `lm` has rows for the chips of every number of slices."""
    words = spec.workload.argv("python3") if spec.workload else ()
    if not any(word.endswith("lm.py") for word in words):
        return
    given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    batch, model = int(given.get("batch", 16)), int(given.get("model_parallel", 1))
    for size in spec.mode.sizes:
        for offer in spec.cluster.offers:
            host = offer.accelerator.jax_devices_per_host
            assert batch * model % (size * offer.accelerator.hosts * host) == 0, (size, offer)


def table(page: str, heading: str) -> list[str]:
    """The first column of the first table under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    rows = re.search(r"^\|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert rows, f"no table under {heading}"
    return [row.split("|")[1].strip().strip("`") for row in rows[0].strip().splitlines()[2:]]


def test_every_variable_of_a_chip_is_explained(tmp_path: Path) -> None:
    spec = compose(["cluster=v4-8", "mode=torch_xla", "mode.slices=2"], cwd=tmp_path)
    (process, *others) = plan_processes(spec, spec.cluster.offers[0], 2)
    places = {each.place for each in (process, *others)}
    ports = {place: range(ports_of_host(4)) for place in places}
    meeting = Meeting(dict.fromkeys(places, "a"), ports, dict.fromkeys(places, "n"))
    names = {*process.env, *meeting.env(process), "PJRT_DEVICE"}
    told = " ".join(table("torch_xla.md", "What each process finds"))
    told_names = set(re.findall(r"[A-Z][A-Z_]+", told))
    assert told_names == {n for n in names if not n.startswith(("LAUNCHER_", "JAX_"))}


def test_every_variable_of_several_slices_is_explained(tmp_path: Path) -> None:
    spec = compose(["cluster=v4-16", "mode=multislice"], cwd=tmp_path)
    processes = plan_processes(spec, spec.cluster.offers[0], 2)
    places = {each.place for each in processes}
    ports = {place: range(ports_of_host(1)) for place in places}
    meeting = Meeting(dict.fromkeys(places, "a"), ports, dict.fromkeys(places, "n"))
    names = {*processes[0].env, *meeting.env(processes[0])}
    told = " ".join(table("multislice.md", "What a process sees"))
    wanted = {n for n in names if "SLICE" in n or n.startswith(("MEGASCALE_", "TPU_"))}
    assert wanted <= set(re.findall(r"[A-Z][A-Z_]+", told))
    assert {name for name in names if name.startswith("LAUNCHER_")} <= set(
        re.findall(r"LAUNCHER_[A-Z_]+", README)
    )


def test_the_readme_names_every_page_and_every_option() -> None:
    assert [page for page in PAGES if f"(docs/{page})" not in README] == []
    for group in ("mode", "workload", "provider", "experiment"):
        (row,) = re.findall(rf"^\| `{group}` \|.*$", README, re.MULTILINE)
        options = {file.stem for file in (CONF / group).glob("*.yaml")}
        assert options <= set(re.findall(r"`(\w+)`", row)), group


def test_every_capacity_is_explained() -> None:
    assert table("capacity.md", "What each capacity is good for") == list(CAPACITIES)


def test_every_reason_is_explained() -> None:
    told = table("capacity.md", "What errors mean")
    assert set(told) == {reason.value for reason in Reason} == {r.value for r in POLICIES}


def test_every_verdict_is_explained_with_its_budget() -> None:
    text = (DOCS / "survival.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| `")]
    told = {name: row[3].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    budgets = {outcome.value: policy.budget.value for outcome, policy in VERDICTS.items()}
    assert told == {name: "nothing" if b == "none" else b for name, b in budgets.items()}
