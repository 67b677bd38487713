"""A head that has just been started counts as there."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from launcher import coordinator
from launcher.coordinator import Head

HEAD = Head("h", "127.0.0.1", (1, 2), "/tmp/ray-sight")


@pytest.mark.parametrize("program", ["import time; time.sleep(60)", "raise SystemExit(1)"])
def test_a_new_head_is_waited_for_until_it_shows_its_command_line(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Or has ended. The first looks come too early."""
    looks, real = iter([False, False]), coordinator.processes

    def seen(head: Head) -> list[psutil.Process]:
        return real(head) if next(looks, True) else []

    monkeypatch.setattr(coordinator, "processes", seen)
    with subprocess.Popen([sys.executable, "-c", program, HEAD.folder]) as child:
        coordinator.await_sight(HEAD, child)
        assert child.poll() is not None or real(HEAD)
        child.kill()
