"""Counts the API calls of a run: as many for a slice of 256 hosts as for one of a single host.

    python benchmarks/calls.py

Both slices are emulated, and their hosts are never switched on. What is counted is the launcher's
own way to a slice, a wait for its hosts in vain, and the way back. Looks follow time, so that both
take the same: to create, to wait and to delete. Prints a Markdown table; ends with 1 when a number
differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from launcher.accelerators import lookup
from launcher.emulator import client as emulator
from launcher.errors import ClusterError

LAUNCHER = (sys.executable, "-m", "launcher")
ACCELERATOR_TYPES = ("v4-8", "v4-2048")
# Each time ends midway between two looks; a slice of 256 hosts costs the emulator 0.3 s more.
RULES = "{fault: never-boots}, {fault: slow-create, seconds: 6s}, {fault: slow-delete, seconds: 2s}"
WORDS = ("name=calls", "cluster.join_timeout=12s", f"provider.rules=[{RULES}]")
SECONDS = 300.0


def count(accelerator_type: str, folder: Path) -> Mapping[str, int]:
    """The calls of one run, by method. SystemExit when it ends otherwise than it should."""
    home = folder / accelerator_type
    with closing(emulator.connect(home / "emulator")) as attached:
        run = subprocess.run(
            [*LAUNCHER, f"cluster.accelerator_type={accelerator_type}", *WORDS],
            cwd=folder,
            env=os.environ | {"LAUNCHER_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if run.returncode != ClusterError.exit_code:
            raise SystemExit(f"exit {run.returncode}\n{run.stderr[-4000:]}")
        calls: dict[str, int] = emulator.control(attached.endpoint, {"command": "ledger"})["calls"]
    return calls


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        few, many = (count(each, Path(folder)) for each in ACCELERATOR_TYPES)
    heads = [f"{each}, hosts: {lookup(each).hosts}" for each in ACCELERATOR_TYPES]
    print(f"| call | {heads[0]} | {heads[1]} |\n| --- | --- | --- |")
    methods = sorted({*few, *many})
    for method in methods:
        print(f"| {method} | {few.get(method, 0)} | {many.get(method, 0)} |")
    print(f"| in all | {sum(few.values())} | {sum(many.values())} |")
    return 0 if few == many else 1


if __name__ == "__main__":
    sys.exit(main())
