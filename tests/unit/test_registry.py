"""Records that cannot be read, written or removed are told of; a run is not begun without one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher import registry
from launcher.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    return tmp_path


CALLS: dict[str, Callable[[], Any]] = {
    "read": lambda: registry.record("a"),
    "written": lambda: registry.write_record("a", {}),
    "removed": lambda: registry.forget("a"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_folder_of_records_that_is_none_is_a_matter_of_configuration(
    home: Path, call: str
) -> None:
    (home / "runs").write_text("")
    with pytest.raises(ConfigError, match=rf"runs/a\.json cannot be {call}: (Not a dir|File ex)"):
        CALLS[call]()


@pytest.mark.parametrize("torn", ["", '{"name": ', "null", "7", "[1]"])
def test_a_torn_record_is_none(home: Path, torn: str) -> None:
    path = registry.run_path("a")
    path.parent.mkdir()
    path.write_text(torn)
    assert registry.record("a") is None
    assert registry.records() == []
    registry.forget("a")
    assert not path.exists()


def test_a_process_is_found_again_whoever_sets_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    here = registry.this_process()
    assert registry.is_alive(json.loads(json.dumps(here)))
    booted = psutil.boot_time()
    for name in ("psutil.boot_time", "psutil._pslinux.boot_time"):
        monkeypatch.setattr(name, lambda: booted + 3600)
    assert registry.is_alive(here)
    assert not registry.is_alive({**here, "started": here["started"] + 1})
    assert not registry.is_alive(None)


def test_a_process_that_has_ended_is_gone() -> None:
    """Also while its parent has not heard of it."""
    child = subprocess.Popen(["sleep", "60"])
    named = {"pid": child.pid, "started": registry.look(child.pid)[1]}
    assert registry.is_alive(named)
    child.kill()
    while registry.look(child.pid)[0] != registry.ZOMBIE:
        time.sleep(0.01)
    assert not registry.is_alive(named)
    child.wait()
    assert not registry.is_alive(named)


def test_threads_that_change_a_record_lose_nothing_of_each_other(home: Path) -> None:
    registry.write_record("x", {"name": "x", "seen": []})

    def see(number: int) -> None:
        registry.change("x", lambda record: {"seen": [*record["seen"], number]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(see, range(50)))
    record = registry.record("x")
    assert record
    assert sorted(record["seen"]) == [*range(50)]
