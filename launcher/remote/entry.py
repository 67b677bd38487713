"""The job: the supervisor of a local run, on the coordinator, in a session that speaks frames.

    python -m launcher.remote.entry        in the unpacked package

Its stdout is the log of frames. Whatever else is printed goes to `coordinator.log` in the run
folder, so that nothing gets between the frames.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import ray  # noqa: F401  makes psutil, which it brings, importable

sys.path.append(str(Path.cwd() / "packages"))  # behind what is installed

from launcher import coordinator, ending, invocation, registry
from launcher.attempts.under_way import OnRecord
from launcher.coordinator import Head
from launcher.errors import ConfigError, LauncherError
from launcher.hosts import archive
from launcher.hosts.member import Member
from launcher.interrupt import Interrupt
from launcher.plan import make_plan
from launcher.record import RunFolder
from launcher.remote import package
from launcher.remote.frames import Emitter, FolderFrames
from launcher.remote.package import Job
from launcher.screen import Screen
from launcher.session import LazyProvider, Session, Setbacks
from launcher.source import Manifest

RUNS = "launcher-runs"
CONSOLE = "coordinator.log"
LONGEST_CONSOLE = 200_000


class FrameScreen(Screen):
    """Shows by frames. Output is not among them: the mirror sees it arrive in the logs."""

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit
        self._waiting = ""

    def phase(self, topic: str, text: str) -> None:
        self._emit("phase", topic=topic, text=text)

    def wait(self, text: str) -> None:
        if text != self._waiting:
            self._waiting = text
            self._emit("wait", text=text)

    def output(self, member: Member, chunk: bytes) -> None:
        pass

    def finish(self) -> None:
        self._emit("finish")


def main() -> None:
    job = package.read(Path.cwd())
    base = Path(os.environ.get("LAUNCHER_HOME") or Path.home()) / RUNS
    os.environ["LAUNCHER_HOME"] = str(base / ".home")  # records are those of this coordinator
    os.environ[registry.MACHINE] = job.identity.machine  # what is made belongs to the user's
    describe_head(base)
    folder = base / job.name / job.id
    forget_earlier(folder, job.name)
    emit = Emitter(divert_output(folder / CONSOLE))
    frames = FolderFrames(emit, job.sizes)
    code = carry_out(job, folder, emit, frames)
    sys.stdout.flush()
    if console := (folder / CONSOLE).read_bytes()[-LONGEST_CONSOLE:]:
        frames.write(CONSOLE, console)
    emit("exit", code=code, up=registry.record(job.name) is not None)
    sys.exit(code)


def describe_head(base: Path) -> None:
    """For `coordinator.given_head`, where the head is not the launcher's own: that of this job.

    Ray gives its address to the job; the job runs on the head's machine.
    """
    # The environment of the job is that of this process alone, and of nothing that it starts.
    os.environ.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)
    if os.environ.get(coordinator.GIVEN):
        return
    address, _, port = os.environ["RAY_ADDRESS"].rpartition(":")
    head = Head("given", address, (int(port), 0), "", None)
    path = base / ".home" / "head.json"
    registry.write_json(path, dataclasses.asdict(head))
    os.environ[coordinator.GIVEN] = str(path)


def forget_earlier(folder: Path, name: str) -> None:
    """Folders of earlier jobs of this name: the user has them, as far as they can be had. Those of
    one that goes on stay: it may be another user's, on a cluster of several.
    """
    with contextlib.suppress(ConfigError), registry.lock(f"run-{name}", "it goes on"):
        shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)


def divert_output(console: Path) -> Callable[[bytes], object]:
    """Send what is printed to a file; return how to write to what was stdout."""
    frames = os.dup(1)
    with console.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return lambda frame: os.write(frames, frame)


def carry_out(job: Job, folder: Path, emit: Emitter, frames: FolderFrames) -> int:
    """The exit code; an error is told as a local run tells it."""
    try:
        return ACTIONS[job.verb](job, folder, emit, frames)
    except LauncherError as error:
        emit("error", text=f"launcher: {type(error).__name__}\n{error}")
        return error.exit_code
    except Exception:
        traceback.print_exc()
        emit("error", text=f"launcher: a fault of launcher\n{traceback.format_exc()}")
        return LauncherError.exit_code


@contextlib.contextmanager
def session(job: Job, folder: Path, emit: Emitter, frames: FolderFrames) -> Iterator[Session]:
    """As `invocation.session`, but for the files that the user has already."""
    assert job.spec is not None
    spec, plan = job.spec, make_plan(job.spec, job.identity)
    screen = FrameScreen(emit)
    interrupt = Interrupt(
        lambda name: screen.phase("stopping", f"{name}: ends processes, deletes slices")
    )
    interrupt.install()
    taken = f"run {spec.name} is going on in another job of this coordinator"
    with (
        registry.lock(f"run-{spec.name}", taken),
        RunFolder(folder, shown=job.folder, since=job.progress, watcher=frames) as run_folder,
        contextlib.closing(LazyProvider(spec.provider, invocation.ids(plan))) as provider,
    ):
        owner = job.identity.owner
        about, lost = OnRecord(spec.name), Setbacks(spec.retry.max_preemptions)
        yield Session(spec, plan, owner, run_folder, screen, interrupt, provider, about, lost)


def run(job: Job, folder: Path, emit: Emitter, frames: FolderFrames) -> int:
    manifest = unpacked(job)
    with session(job, folder, emit, frames) as current:
        return invocation.supervised(current, manifest, job.about_code, job.git)


def unpacked(job: Job) -> Manifest:
    root = Path.cwd() / "code"
    with (Path.cwd() / package.CODE).open("rb") as code:
        archive.unpack(code, root)
    return job.manifest(root)


def up(job: Job, folder: Path, emit: Emitter, frames: FolderFrames) -> int:
    with session(job, folder, emit, frames) as current:
        for line in invocation.brought_up(current):
            emit("print", text=line)
    return 0


def down(job: Job, folder: Path, emit: Emitter, frames: FolderFrames) -> int:
    ending.end(job.name, print)
    return 0


Action = Callable[[Job, Path, Emitter, FolderFrames], int]
ACTIONS: Mapping[str, Action] = {"run": run, "up": up, "down": down}

if __name__ == "__main__":
    main()
