"""A run folder whose writer died in the midst of a line: every reader goes on with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher import report
from launcher.member import Member
from launcher.record import Progress, RunFolder, last_step, progress, read_lines
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
