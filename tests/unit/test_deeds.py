"""What a rehearsal does to the Ray head of a run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launcher import registry
from launcher.coordinator import Head
from launcher.rehearsal.deeds import Hands, Refused
from launcher.rehearsal.place import Place
from launcher.rehearsal.scenarios import FREEZE_HEAD, KILL_HEAD, Deed

SLEEP = "print(flush=True); import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("do", "status"), [(KILL_HEAD, psutil.STATUS_ZOMBIE), (FREEZE_HEAD, psutil.STATUS_STOPPED)]
)
def test_a_deed_strikes_the_head_of_the_run_alone(tmp_path: Path, do: str, status: str) -> None:
    place = Place("r", tmp_path / "r", tmp_path / "home", tmp_path)
    hands, deed = Hands(place, "nowhere", 1), Deed(do)
    with pytest.raises(Refused, match="there is no Ray head"):
        hands.do(deed)
    head = Head("run-r", "127.0.0.1", (1, 2), str(tmp_path / "ray-1"))
    registry.write_json(place.home / "runs" / "r.json", {"head": head.id})
    registry.write_json(place.head_path, dataclasses.asdict(head))
    argv = [sys.executable, "-c", SLEEP]
    with (
        subprocess.Popen([*argv, head.folder], stdout=subprocess.PIPE) as mine,
        subprocess.Popen([*argv, str(tmp_path / "ray-2")], stdout=subprocess.PIPE) as other,
    ):
        assert mine.stdout
        assert other.stdout
        mine.stdout.readline(), other.stdout.readline()
        hands.do(deed)
        while psutil.Process(mine.pid).status() != status:
            pass
        assert other.poll() is None
        mine.kill()
        other.kill()
