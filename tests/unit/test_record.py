"""A run folder whose writer died in the midst of a line, or whose disk is full: all goes on."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.hosts.member import Member
from launcher.record import Progress, RunFolder, last_step, progress, read_lines
from launcher.reports import page as report
from launcher.verbs.status import state_of

ROWS = {
    "events.jsonl": [
        {"seq": 0, "elapsed": 0.5, "kind": "started", "attempt": 0},
        {"seq": 1, "elapsed": 2.5, "kind": "step", "step": 7},
    ],
    "metrics.jsonl": [{"step": 7, "attempt": 0, "process": "s0 h0"}],
}
TORN = {
    "events.jsonl": b'{"seq": 2, "elapsed": 3.5, "kind": "started", "attempt": 1}\n',
    "metrics.jsonl": b'{"step": 8, "attempt": 0, "process": "s0 h0", "loss": 1.0}\n',
}
ODD = b'{"loss": "\xff\xc3\n'  # whatever a disk that lost its power holds


def write(folder: Path, torn: bytes | None, cut: int) -> None:
    """Whole lines, then one of which only the beginning is there."""
    for name, rows in ROWS.items():
        whole = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / name).write_bytes(whole + (torn or TORN[name])[:cut])


@pytest.fixture(params=[1, 20, -2, "odd", "odd and ended"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    made = tmp_path / "runs" / "r"
    made.mkdir(parents=True)
    how: Any = request.param
    odd = isinstance(how, str)
    write(made, ODD if odd else None, (len(ODD) - (how == "odd")) if odd else how)
    return made


def test_status_and_report_tell_of_the_whole_lines(folder: Path) -> None:
    state = state_of("r")
    assert (state["attempt"], state["last_step"]) == (0, 7)
    (attempt,) = report.read(folder).attempts
    assert (attempt.first_step, attempt.last_step, attempt.points) == (7, 7, ((2.5, 7),))


def test_a_run_goes_on_behind_it(folder: Path) -> None:
    member = Member(0, 0)
    assert progress(folder) == Progress(2, 1)
    with RunFolder(folder) as again:
        assert again.attempt == 1
        again.turn_to(0)
        assert again.known([member]) == {member: (0, 1)}
        again.event("attached", attempt=0)
        again.metrics(member, '{"step": 9}')
    assert [event["seq"] for event in read_lines(folder / "events.jsonl")] == [0, 1, 2]
    assert last_step(folder) == 9
    assert state_of("r")["last_step"] == 9


FULL = Path("/dev/full")  # every write fails as on a disk without room


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "logs/attempt-0/s0-h0.log"])
def test_a_run_goes_on_without_what_cannot_be_written(tmp_path: Path, name: str) -> None:
    file, told, member = tmp_path / name, list[str](), Member(0, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(FULL)
    with RunFolder(tmp_path, since=Progress()) as folder:  # reading it would have no end
        folder.complain = told.append
        for step in range(3):
            folder.event("step", step=step)
            assert folder.metrics(member, f'{{"step": {step}}}') is not None
            folder.output(member, b"x")
        folder.write("result.json", {})
    words = f"{tmp_path} cannot be written: No space left on device; the run goes on"
    assert [text.startswith(words) for text in told] == [True]
    others = {"events.jsonl", "metrics.jsonl", "logs/attempt-0/s0-h0.log", "result.json"} - {name}
    assert all((tmp_path / other).stat().st_size for other in others)


def test_a_whole_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write("verdicts/attempt-0.json", {"old": True})
        resource_full(lambda: folder.write("verdicts/attempt-0.json", {"new": "x" * 99_999}))
        assert "File too large" in folder.trouble
    assert json.loads((tmp_path / "verdicts/attempt-0.json").read_text()) == {"old": True}
    assert [path.name for path in (tmp_path / "verdicts").iterdir()] == ["attempt-0.json"]


def resource_full(write: Callable[[], None]) -> None:
    """While no file may have more than a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
