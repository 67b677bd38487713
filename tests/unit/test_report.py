"""`report` from a made-up run folder: a terminal's text, and a page that needs nothing else."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.reports import html as report_html
from launcher.reports import page as report
from launcher.verbs import Arguments
from launcher.verbs import report as verb

VOID = {"meta", "br"}


def jsonl(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "runs" / "r"
    (folder / "verdicts").mkdir(parents=True)
    jsonl(
        folder / "events.jsonl",
        {"kind": "started", "elapsed": 5.0, "attempt": 0},
        {"kind": "step", "elapsed": 6.0, "step": 1},
        {"kind": "step", "elapsed": 8.0, "step": 20},
        {"kind": "plan", "elapsed": 0.1},  # the launcher was killed, and started again
        {"kind": "started", "elapsed": 4.0, "attempt": 1},
        {"kind": "step", "elapsed": 7.0, "step": 40},
    )
    jsonl(
        folder / "metrics.jsonl",
        *({"step": step, "attempt": 0} for step in (1, 20)),
        *({"step": step, "attempt": 1} for step in (21, 40)),
    )
    judged = {"outcome": "preempted", "summary": "slice 0 is <PREEMPTED>", "budget": "preemptions"}
    (folder / "verdicts" / "attempt-0.json").write_text(json.dumps(judged))
    result = {
        "status": "succeeded",
        "message": "",
        "preemptions": 1,
        "failures": 0,
        "final_step": 40,
        "resumed_from": [20],
        "seconds": {"queue": 0.0, "boot": 30.0, "productive": 90.0, "total": 120.0},
        "goodput": 0.75,
        "cost_usd": 1.5,
        "first_failure": None,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


class Check(HTMLParser):
    """Every tag is closed, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> list[str]:
    check = Check()
    check.feed(page)
    assert check.open == []
    return check.seen


def test_the_text(folder: Path) -> None:
    shown = report.text(report.read(folder))
    for told in (
        "r: succeeded",
        "2 m 00 s",
        "75% of the time",
        "1.50 USD",
        "1 preemption, 0 failures",
        "slice 0 is <PREEMPTED> (charged to preemptions)",
        "steps 21 to 40",
        str(folder / "logs" / "attempt-1"),
    ):
        assert told in shown
    assert "queue" not in shown


def test_steps_of_a_second_launcher_follow_those_of_the_first(folder: Path) -> None:
    first, second = report.read(folder).attempts
    assert first.points == ((6.0, 1), (8.0, 20))
    assert second.points == ((15.0, 40),)


def test_the_page(folder: Path) -> None:
    page = report_html.of_run(report.read(folder))
    seen = checked(page)
    assert seen.count("polyline") == 2
    assert "&lt;PREEMPTED&gt;" in page
    assert "<PREEMPTED>" not in page


def test_a_run_that_goes_on_or_never_began_has_a_page(tmp_path: Path) -> None:
    page = report.read(tmp_path)
    assert report.text(page).startswith(f"{tmp_path.name}: no result yet")
    checked(report_html.of_run(page))


def test_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder.parents[1] / "r.html"
    assert verb.report(Arguments(names=["r"], values={"--html": str(target)})) == 0
    assert "r: succeeded" in capsys.readouterr().out
    checked(target.read_text())
    for names, told in ((["none"], "no run 'none'"), ([], "needs one name")):
        with pytest.raises(ConfigError, match=told):
            verb.report(Arguments(names=names))
    with pytest.raises(ConfigError, match="cannot be written"):
        verb.report(Arguments(names=["r"], values={"--html": str(folder)}))


def test_a_rehearsal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "scenario": "preempted",
        "passed": False,
        "failures": ["left behind: <x>"],
        "warnings": [],
        "resumed_from": [20],
        "steps_lost": 5,
        "lost_everything": False,
        "metrics_equal": True,
        "seconds": {"total": 9.0},
        "seconds_more": {"total": 4.0},
        "charged": {"preemptions": 1, "failures": 0},
        "left": ["<x>"],
        "folder": "/f",
    }
    found = {"passed": False, "finished": True, "notes": ["seed 7"], "scenarios": [row]}
    (folder.parent / "h").mkdir()
    (folder.parent / "h" / "rehearsal.json").write_text(json.dumps(found))
    assert verb.report(Arguments(names=["h"])) == 0
    shown = capsys.readouterr().out
    assert "preempted failed: left behind: <x>" in shown
    assert "seed 7" in shown
    page = report_html.of_rehearsal("h", found)
    checked(page)
    assert "h: <span" in page
    assert "<x>" not in page
