"""Where the Python processes below a process stand just now, by py-spy. Runs on a host.

py-spy comes with `ray[default]` (https://github.com/benfred/py-spy). It reads another process's
memory, which the kernel grants to root and to those with CAP_SYS_PTRACE.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

DUMP_SECONDS = 10.0
NO_PYTHON = ("Failed to find python version", "doesn't appear to be a python process")
FORBIDDEN = ("ermission denied", "Operation not permitted")


def stacks(leader: int) -> str:
    """The stacks of a process and of its descendants, as far as they are Python."""
    try:
        parent = psutil.Process(leader)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return "no stacks: the process has ended"
    with ThreadPoolExecutor(8) as pool:
        found = [text for text in pool.map(dump, [p.pid for p in processes]) if text]
    return "\n\n".join(found) or "no stacks: there is no Python process"


def dump(pid: int) -> str:
    """What py-spy says of one process; empty when it is not Python, else why there is nothing."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DUMP_SECONDS
        )
    except FileNotFoundError:
        return f"no stacks of process {pid}: there is no py-spy beside {sys.executable}"
    except subprocess.TimeoutExpired:
        return f"no stacks of process {pid}: py-spy took more than {DUMP_SECONDS:g} s"
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip()
    error = done.stderr.decode(errors="replace").strip()
    if any(words in error for words in NO_PYTHON):
        return ""
    if any(words in error for words in FORBIDDEN):
        return f"no stacks of process {pid}: py-spy is not permitted (needs root or CAP_SYS_PTRACE)"
    return f"no stacks of process {pid}: {error.partition(chr(10))[0]}"
