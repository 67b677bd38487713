"""A host that is told that it will go: its program saves, and the run goes on elsewhere."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["LAUNCHER_ATTEMPT"], flush=True)
time.sleep(600 if os.environ["LAUNCHER_ATTEMPT"] == "0" else 0)
"""
WORDS = ("cluster=v4-16", "workload.script=saves.py", "retry.grace=20s", "retry.backoff=100ms")


def wait_for_both(place: Place, name: str) -> None:
    deadline = time.monotonic() + 90
    place.wait_for_output(name, "attempt 0")
    while logs(place, name) != ["attempt 0\n"] * 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def logs(place: Place, name: str) -> list[str]:
    folder = place.folder / "runs" / name / "logs" / "attempt-0"
    return [path.read_text() for path in sorted(folder.iterdir())]


def test_a_preemption_with_notice_saves_on_every_host(place: Place) -> None:
    (place.folder / "saves.py").write_text(SAVES)
    process = place.start(*WORDS, "name=told")
    wait_for_both(place, "told")
    place.emulator("fault", "preempt", "told-s0", "--notice", "60s")
    assert process.wait(240) == 0
    assert logs(place, "told") == ["attempt 0\nsaved\n"] * 2
    notice = place.wait_for("told", "notice")
    assert (notice["told"], notice["word"]) == ("preempted", "TRUE")
    assert place.result("told")["preemptions"] == 1
    place.assert_clean()


def test_sigterm_to_an_agent_is_a_notice_and_not_its_end(place: Place) -> None:
    (place.folder / "saves.py").write_text(SAVES)
    process = place.start(*WORDS, "name=term")
    wait_for_both(place, "term")
    agents = [p for p, argv in place.commands() if "Agent" in " ".join(argv)]
    assert len(agents) == 2
    psutil.Process(agents[0].pid).send_signal(signal.SIGTERM)
    assert place.wait_for("term", "notice")["told"] == "SIGTERM"
    process.wait(240)
    assert logs(place, "term") == ["attempt 0\nsaved\n"] * 2
    place.assert_clean()
