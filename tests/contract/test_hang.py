"""A gang that stands still is stopped, and its log says where it stood."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.hosts.member import Member
from tests.contract.hosts import PATIENCE, SLEEP, WAIT, Hosts, python

STUCK = """
import json, os, subprocess, sys, time
child = "def wait_for_data(): import time; time.sleep(600)\\nwait_for_data()"
def wait_for_peers():
    time.sleep(600)
with open(os.environ["LAUNCHER_METRICS"], "a") as file:
    file.write('{"step": 41}\\n{"step": 42}\\n')
subprocess.Popen([sys.executable, "-c", child])
print("no newline", end="", flush=True)
wait_for_peers()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def test_a_hang_ends_the_gang_and_shows_the_stacks(hosts: Hosts) -> None:
    hosts.gang.hang_timeout = 1.0
    hosts.start(python(STUCK), ["sleep", "600"])
    assert hosts.follow() == []
    endings = hosts.stop()
    assert all(ending.collateral for ending in endings)
    hang = hosts.gang.report(endings).hang
    assert hang is not None
    assert (hang.step, hang.members) == (42, (Member(0, 0), Member(0, 1)))
    assert hosts.feed.hangs == [hang]
    log = hosts.feed.bytes[Member(0, 0)].decode()
    assert log.startswith("no newline\nlauncher: Process ")
    assert "launcher:     wait_for_peers (<string>:5)" in log
    assert "launcher:     wait_for_data (<string>:1)" in log
    other = hosts.feed.bytes[Member(0, 1)].decode()
    assert other == "launcher: no stacks: there is no Python process\n"
    assert not hosts.descendants()


def test_output_or_metrics_of_one_process_is_progress_of_all(hosts: Hosts, tmp_path: Path) -> None:
    go, gang = tmp_path / "go", hosts.gang
    write = f"{WAIT}open(os.environ['LAUNCHER_METRICS'], 'w').write('{{}}\\n'); time.sleep(600)"
    hosts.start(python(SLEEP), python(write), env={"GO": str(go)})
    gang.hang_timeout = PATIENCE
    gang.moved = -math.inf
    hosts.take_until(lambda: hosts.feed.bytes)
    assert not gang._stands_still()
    gang.moved = -math.inf
    go.touch()
    hosts.take_until(lambda: hosts.feed.lines)
    assert not gang._stands_still()
