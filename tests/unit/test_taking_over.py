"""What a launcher that takes slices over from another knows of them."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import coordinator, ending, invocation, registry
from launcher.attempts import fanout, supervise
from launcher.cluster import Host
from launcher.compose import compose
from launcher.coordinator import Head, HeadLost
from launcher.errors import ConfigError
from launcher.plan import Choice, make_plan
from launcher.providers.states import State
from launcher.provisioning import joining, looks, on_record, provision
from launcher.provisioning.provision import Joined
from launcher.provisioning.requests import Identity

HEAD = Head("h", "127.0.0.1", (1, 0), "/nowhere")
HOSTS = {(0, 0): Host(0, 0, "", "", "", "", None)}


@pytest.fixture
def choice() -> Choice:
    spec = compose(["name=t", "cluster=v4-16", "mode=multislice"], cwd=Path.cwd())
    return make_plan(spec, Identity("me", "0123456789ab", "some-project")).first


@pytest.fixture
def session() -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(name="t", cluster=SimpleNamespace(join_timeout=600.0)),
        folder=SimpleNamespace(path=Path("/nowhere")),
        interrupt=SimpleNamespace(install=lambda: None),
        tell=lambda *_, **__: None,
        setback=lambda _: None,
    )


def test_slices_are_as_old_as_they_are_on_record(
    session: Any, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", "/nowhere")
    monkeypatch.setattr(coordinator, "find_head", lambda _: HEAD)
    monkeypatch.setattr(coordinator, "is_up", lambda _: True)
    monkeypatch.setattr(looks, "standing", lambda *_: [State.READY, State.READY])
    monkeypatch.setattr(provision, "join_again", lambda *_: HOSTS)
    record = {"head": "h", "attempt": {"key": "k"}, "joined": 1234.5, "incarnations": {"n": "i"}}
    adopted = provision.adopt(session, record, choice)
    assert adopted
    assert (adopted.made, adopted.absent) == (1234.5, {0, 1})


def test_hosts_have_time_to_find_a_head_that_is_lost_while_they_are_found_again(
    session: Any, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []

    def join_once(*arguments: Any) -> Any:
        waited.append(arguments[-1])
        if len(waited) == 1:
            raise HeadLost("gone")
        return HOSTS

    monkeypatch.setattr(joining, "join_once", join_once)
    monkeypatch.setattr(joining, "renew_head", lambda *_: None)
    monkeypatch.setattr(coordinator, "given_head", lambda: None)
    assert joining.join_new(session, HEAD, choice, {}, (), patience=15.0) == HOSTS
    assert waited == [15.0, joining.FIND_SECONDS]
    waited.clear()
    assert joining.join_new(session, HEAD, choice, {}, ()) == HOSTS
    assert waited == [None, None]


def test_where_all_is_broken_nobody_is_waited_for(
    session: Any, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(provision, "leave", lambda _: None)
    monkeypatch.setattr(provision, "join_again", lambda *a: asked.append(a) or HOSTS)
    before = Joined(HEAD, choice, HOSTS)
    assert provision.join_head(session, before, {0, 1}).absent == {0, 1}
    assert asked == []
    assert provision.join_head(session, before, {1}).hosts == HOSTS
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("stays", "attempt", "refused"),
    [
        (False, {"key": "k"}, True),
        (False, None, True),  # its launcher was killed between two attempts
        (True, {"key": "k"}, True),
        (True, None, False),  # slices that nothing runs on
    ],
)
def test_a_run_goes_on_in_its_own_folder_alone(
    stays: bool,
    attempt: Any,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From another one nothing of what it has saved, told and spent would be found."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    spec = compose(["name=t", "cluster=v4-16"], cwd=Path.cwd())
    plan = make_plan(spec, Identity("me", "0123456789ab", "some-project"))
    for folder in ("first", "another"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    with invocation.session(spec, plan) as session:
        record = on_record.intent(session, "h", stays) | {"attempt": attempt}
        registry.write_record("t", record)
    with invocation.session(spec, plan):
        pass
    monkeypatch.chdir(tmp_path / "another")
    told = pytest.raises(ConfigError, match=re.escape(str(tmp_path / "first" / "runs" / "t")))
    with told if refused else contextlib.nullcontext(), invocation.session(spec, plan):
        pass
    shutil.rmtree(tmp_path / "first")
    with invocation.session(spec, plan):  # there is nothing to be missed any more
        pass


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ({"key": "k", "running": [0], "exits": {}}, True),
        ({"key": "k", "running": [], "exits": {"0": {"time": 5.0}}}, True),
        ({"key": "other", "running": [0], "exits": {}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_what_goes_on_is_asked_of_the_hosts_that_live(
    session: Any, choice: Choice, monkeypatch: pytest.MonkeyPatch, second: Any, found: bool
) -> None:
    """One has died since it was found again: that tells nothing of the others."""
    hosts = {place: Host(*place, "", "", "", "", None) for place in ((0, 0), (1, 0))}
    dead = {(0, 0): "gone", **({} if second is not None else {(1, 0): "gone"})}

    def ask(asked: Any, *_: Any) -> Any:
        if lost := sorted(dead.keys() & asked.keys()):
            raise fanout.HostsLost(lost, "gone")
        return {(1, 0): second}

    monkeypatch.setattr(fanout, "ask", ask)
    session.interrupt.pause = lambda _: None
    attempt = {"number": 3, "key": "k", "program": "p"}
    alive = supervise.alive_on(session, Joined(HEAD, choice, hosts), attempt)
    assert bool(alive) == found
    if alive:
        assert (alive["number"], alive["over"]) == (3, not second["running"])


def test_a_launcher_that_stands_still_is_woken_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-Z: it would hear of nothing, and hold the run for ever."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    heed = "import signal, sys; signal.signal(15, lambda *_: sys.exit(130))"
    argv = [sys.executable, "-c", f"{heed}; print(flush=True); signal.pause()"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout
        launcher.stdout.readline()
        process = {"pid": launcher.pid, "started": registry.look(launcher.pid)[1]}
        registry.write_record("t", {"name": "t", "supervisor": process})
        launcher.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(ending, "clear", lambda *_: None)
        ending.end("t", print)
        try:
            assert launcher.wait(10) == 130
        finally:
            launcher.kill()
