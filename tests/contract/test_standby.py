"""Programs that begin in a standby, beside the same without one; all processes are real."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from launcher.hosts import ahead, standby
from launcher.hosts.agent import identity
from launcher.hosts.descendants import has_ended
from launcher.hosts.member import Member
from launcher.hosts.standby import Standbys, target_of
from launcher.raynode import is_program
from tests.contract.hosts import NOWHERE, PLACES, Host, Hosts, python, wait_until

PYTHON = "python3"
# A package that tells which process has imported it, and one of the program's own that does so too.
PACKAGE = "import os\nopen(os.environ['IMPORTED'], 'a').write(f'{__name__} {os.getpid()}\\n')\n"
SHOW = """
import package
import own
import json, os, stat, sys

def frames(x: int): ...

main, spec = sys.modules["__main__"], __spec__
print(json.dumps({
    "environment": dict(os.environ),
    "argv": [sys.argv, sys.orig_argv],
    "main": [main.__file__, main.__name__, spec and spec.name, *sorted(vars(main))],
    "modules": sorted(sys.modules.keys() & {"own", "package", "__main__"}),
    "path": sys.path,
    "cwd": os.getcwd(),
    "open": {n: stat.S_IFMT(os.stat(int(n)).st_mode) for n in ("0", "1", "2")},
    "annotations": [str(x) for x in frames.__annotations__.values()],
    "group": os.getpid() == os.getpgid(0) == os.getsid(0),
    "name": open("/proc/self/comm").read(),
    "badness": open("/proc/self/oom_score_adj").read(),
    "limit": sys.getrecursionlimit(),
}))
"""


class Place:
    """A host's folder, and what runs there."""

    def __init__(self, base: Path) -> None:
        self.code, self.packages = base / "code", base / "packages"
        self.code.mkdir()
        self.packages.mkdir()
        self.imported = base / "imported"
        self.standbys = Standbys(base)
        self.write("package.py", PACKAGE, self.packages)
        self.write("own.py", PACKAGE)
        own = {"PYTHONPATH": str(self.packages), "IMPORTED": str(self.imported)}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**own, "PATH": path, "LAUNCHER_ATTEMPT": "0", "LAUNCHER_METRICS": "m0"}

    def write(self, name: str, text: str, folder: Path | None = None) -> None:
        ((folder or self.code) / name).write_text(text)

    def prepare(self, *argv: str) -> int:
        """The process of a standby that waits."""
        self.standbys.prepare(0, [PYTHON, *argv], self.env, self.code)
        (pid,) = self.standbys.pids()
        wait_until(lambda: is_waiting(pid))
        return pid

    def run(self, *argv: str, **variables: str) -> tuple[int, int, str]:
        """Its process, its exit code and its output."""
        reader, writer = os.pipe()
        env = {**self.env, "LAUNCHER_ATTEMPT": "1", **variables}
        process = self.standbys.start(0, [PYTHON, *argv], env, self.code, writer)
        os.close(writer)
        with open(reader, "rb") as output:
            text = output.read().decode()
        return process.pid, process.wait(), text

    def imports(self) -> list[list[str]]:
        text = self.imported.read_text() if self.imported.exists() else ""
        return [line.split() for line in text.splitlines()]


def is_waiting(pid: int) -> bool:
    return psutil.Process(pid).name() == ahead.READY


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.standbys.end()


def test_a_program_finds_all_as_if_it_had_just_been_started(place: Place) -> None:
    place.write("show.py", SHOW)
    _, code, cold = place.run("show.py", "--lr=0.1")
    assert code == 0, cold
    place.imported.unlink()
    waiting = place.prepare("show.py", "--lr=0.2")
    assert place.imports() == [["package", str(waiting)]]  # and nothing of its own
    pid, code, warm = place.run("show.py", "--lr=0.1")
    assert (pid, code) == (waiting, 0)
    assert json.loads(warm) == json.loads(cold)
    assert place.imports() == [["package", str(pid)], ["own", str(pid)]]


def test_so_does_a_module(place: Place) -> None:
    (place.code / "inside").mkdir()
    place.write("inside/__init__.py", "import package\n")
    place.write("inside/train.py", SHOW)
    _, _, cold = place.run("-m", "inside.train", "--lr=0.1")
    waiting = place.prepare("-m", "inside.train")
    pid, code, warm = place.run("-m", "inside.train", "--lr=0.1")
    assert (pid, code) == (waiting, 0)
    assert json.loads(warm) == json.loads(cold)


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('bad batch')",
        "raise SystemExit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "1 +",
        "import warnings; warnings.warn('odd')",
        "import atexit; atexit.register(print, 'end'); raise SystemExit('no')",
    ],
)
def test_it_ends_in_the_same_way(place: Place, end: str) -> None:
    place.write("package.py", "import sys\nprint('hello', flush=True)", place.packages)
    place.write("train.py", f"import package\n\ndef f():\n    {end}\nf()\n")
    cold = place.run("train.py")[1:]
    waiting = place.prepare("train.py")
    pid, *warm = place.run("train.py")
    assert (tuple(warm), pid) == (cold, waiting)


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (["train.py"], {"XLA_FLAGS": "--x"}),
        (["train.py"], {"TPU_VISIBLE_CHIPS": "1"}),
        (["other.py"], {}),
        (["-m", "train"], {}),
        (["-u", "train.py"], {}),
    ],
)
def test_anything_else_starts_anew(
    place: Place, argv: list[str], changed: Mapping[str, str]
) -> None:
    for name in ("train.py", "other.py"):
        place.write(name, "import package, os\nprint(os.environ.get('XLA_FLAGS'))\n")
    waiting = place.prepare("train.py")
    pid, code, text = place.run(*argv, **changed)
    assert (code, text) == (0, f"{changed.get('XLA_FLAGS')}\n")
    assert pid != waiting
    assert not psutil.pid_exists(waiting)
    assert place.standbys.pids() == []


@pytest.mark.parametrize("how", ["changed", "added", "reads", "hidden", "fails"])
def test_imports_that_do_not_hold_are_made_again(place: Place, how: str) -> None:
    """In the same process, which is begun again."""
    place.write("train.py", "import package\nprint(package.__doc__)\n")
    if how == "reads":
        place.write("package.py", f"'new'\n{PACKAGE}os.getenv('LAUNCHER_RUN')\n", place.packages)
    if how == "hidden":  # a package would get one of the program's own
        place.write("package.py", f"'new'\n{PACKAGE}import own\n", place.packages)
    if how == "fails":
        place.write("package.py", f"'new'\n{PACKAGE}open('ready')\n", place.packages)
    waiting = place.prepare("train.py")
    if how == "changed":
        place.write("package.py", f"'new'\n{PACKAGE}", place.packages)
    if how == "added":
        place.write("another.py", "", place.packages)
    place.write("ready", "")
    pid, code, text = place.run("train.py")
    assert (pid, code) == (waiting, 0), text
    assert text == ("None\n" if how == "added" else "new\n")
    assert [line[0] for line in place.imports()].count("package") == 2


def test_one_that_was_killed_is_not_missed(place: Place) -> None:
    place.write("train.py", "import package\n")
    waiting = place.prepare("train.py")
    os.kill(waiting, signal.SIGKILL)
    wait_until(lambda: has_ended(psutil.Process(waiting)))
    assert place.standbys.count_killed() == 1
    pid, code, _ = place.run("train.py")
    assert code == 0
    assert pid != waiting
    assert place.standbys.count_killed() == 1


def test_an_order_that_is_too_long_for_it_starts_anew(place: Place) -> None:
    place.write("train.py", "import package, sys\nprint(len(sys.argv))\n")
    place.write("package.py", "import time\ntime.sleep(600)\n", place.packages)
    place.standbys.prepare(0, [PYTHON, "train.py"], place.env, place.code)
    place.write("package.py", "", place.packages)
    assert place.run("train.py", *["x" * 100_000] * 10)[1:] == (0, "11\n")


def test_those_that_nobody_wants_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "IDLE_SECONDS", 0.01)
    place.write("train.py", "import package\n")
    waiting = place.prepare("train.py")
    place.standbys.rest()
    wait_until(lambda: not psutil.pid_exists(waiting))


def test_the_processes_of_a_host_prepare_at_the_same_time(place: Place) -> None:
    place.write("train.py", "import package\n")
    for _ in range(4):
        place.standbys.file.unlink(missing_ok=True)
        with ThreadPoolExecutor(8) as pool:
            made = [
                pool.submit(
                    place.standbys.prepare, index, [PYTHON, "train.py"], place.env, place.code
                )
                for index in range(8)
            ]
        assert [each.exception() for each in made] == [None] * 8
        assert len(place.standbys.pids()) == 8
        wait_until(lambda: all(map(is_waiting, place.standbys.pids())))


def test_programs_that_are_not_pythons_have_none() -> None:
    assert target_of(["bash", "-c", "x"]) == []
    assert target_of(["python3"]) == target_of(["python3", "-m"]) == []
    assert target_of(["python3", "-c", "x.py"]) == []
    assert target_of(["/v/bin/python3.11", "-m", "a.b", "--x"]) == ["-m", "a.b"]


# --- on hosts -------------------------------------------------------------------------------------

TRAIN = """
import package
import os, sys, time
with open(os.environ["LAUNCHER_METRICS"], "a") as metrics:
    metrics.write('{"step": 1}\\n')
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    for host in made.hosts.values():
        code = host.home / ".launcher" / "code" / "c0de"
        (code / "train.py").write_text(TRAIN)
    yield made
    made.close()


def begin(hosts: Hosts, tmp_path: Path, package: str = PACKAGE) -> dict[str, str]:
    """Both hosts at work, each with a standby; the variables."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "package.py").write_text(package)
    env = {"PYTHONPATH": str(tmp_path / "packages"), "IMPORTED": str(tmp_path / "imported")}
    env |= {"GO": str(tmp_path / "go"), "LAUNCHER_PROCESS_ID": "0"}
    argv = [sys.executable, "train.py", "0"]
    hosts.start(argv, argv, env=env, standby=True)
    wait_until(lambda: len(waiting(hosts)) == 2)
    return env


def waiting(hosts: Hosts) -> set[int]:
    return {p.pid for p in hosts.descendants() if p.name().startswith(ahead.NAME)}


def test_the_next_attempt_is_what_has_waited(hosts: Hosts, tmp_path: Path) -> None:
    env = begin(hosts, tmp_path)
    before = waiting(hosts)
    assert not any(is_program(psutil.Process(pid)) for pid in before)
    (tmp_path / "go").touch()
    assert [e.code for e in hosts.follow()] == [0, 0]
    hosts.stop()
    assert waiting(hosts) == before  # the end of the attempt is not theirs
    hosts.supervise()
    (tmp_path / "go").unlink()
    argv = [sys.executable, "train.py", "3"]
    hosts.start(argv, argv, env=env, standby=True)
    hosts.take_until(lambda: len(hosts.feed.lines) == 4)
    assert before <= {p.pid for p in hosts.descendants()} - waiting(hosts)
    assert all(is_program(psutil.Process(pid)) for pid in before)
    (tmp_path / "go").touch()
    assert {e.code for e in hosts.follow()} == {3}


def test_an_end_does_not_wait_for_imports(hosts: Hosts, tmp_path: Path) -> None:
    """Nor does another program."""
    once = "import os, time\ntry: os.mkdir('once')\nexcept FileExistsError: time.sleep(600)\n"
    begin(hosts, tmp_path, once)
    hosts.stop(grace=0.0)
    hosts.supervise()
    hosts.start(python("pass"), python("pass"))
    assert [e.code for e in hosts.follow()] == [0, 0]
    assert waiting(hosts) == set()


def test_a_host_without_a_standby_says_why(hosts: Hosts, tmp_path: Path) -> None:
    for host in hosts.hosts.values():
        file = Standbys(host.home / ".launcher").file
        file.with_suffix(f".{host.process.pid}").mkdir()  # in the way of what is to be written
    argv = [sys.executable, "train.py", "0"]
    (tmp_path / "package.py").touch()
    env = {"PYTHONPATH": str(tmp_path), "GO": str(tmp_path / "go")}
    hosts.start(argv, argv, env=env, standby=True)
    hosts.take_until(lambda: all(b"no standby: " in text for text in said(hosts)))
    (tmp_path / "go").touch()
    assert [e.code for e in hosts.follow()] == [0, 0]


def said(hosts: Hosts) -> list[bytes]:
    return [hosts.feed.bytes.get(Member(*place), b"") for place in PLACES]


def test_no_standby_outlives_its_agent(hosts: Hosts, tmp_path: Path) -> None:
    begin(hosts, tmp_path)
    left = waiting(hosts)
    agents = dict(hosts.hosts)
    for host in agents.values():
        with host.process:
            host.process.kill()
    wait_until(lambda: not any(identity(pid) for pid in left))
    for place, host in agents.items():  # the next agent ends their programs
        hosts.hosts[place] = Host(host.home, NOWHERE)
        assert hosts.hosts[place].call("prepare", "c0de", "another")["left"] == []


def test_a_program_that_was_a_standby_is_found_by_the_next_agent(
    hosts: Hosts, tmp_path: Path
) -> None:
    env = begin(hosts, tmp_path)
    programs = waiting(hosts)
    hosts.stop(grace=0.0)
    hosts.supervise()
    argv = [sys.executable, "train.py", "0"]
    hosts.start(argv, argv, env=env)
    hosts.take_until(lambda: len(hosts.feed.lines) == 4)
    for place, host in hosts.hosts.items():
        with host.process:
            host.process.kill()
        hosts.hosts[place] = Host(host.home, NOWHERE)
        assert hosts.hosts[place].call("prepare", "c0de", "another")["left"] == []
    assert not any(identity(pid) for pid in programs)
