"""The next attempt, and the next trial, are processes that have waited beside the one before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

# The first one looks for what waits beside it, and leaves; the next one says who it is.
TRAIN = """
import glob, os, sys, time

with open(os.environ["LAUNCHER_METRICS"], "a") as file:
    file.write('{"step": 1}\\n')


def beside():
    for path in glob.glob("/proc/[0-9]*"):
        try:
            name, status = open(path + "/comm").read(), open(path + "/status").read()
        except OSError:
            continue
        if name == "standby, ready\\n" and f"\\nPPid:\\t{os.getppid()}\\n" in status:
            return path.removeprefix("/proc/")


if os.path.exists("first"):
    print("process", os.getpid())
else:
    open("first", "w").close()
    while not (found := beside()):
        time.sleep(0.05)
    print("beside", found)
    sys.exit(int(sys.argv[1].partition("=")[2]))
"""
RUN = ("cluster=v6e-1", "workload.script=train.py", "mode.standby=true", "retry.backoff=1ms")


@pytest.fixture
def train(place: Place) -> Place:
    (place.folder / "train.py").write_text(TRAIN)
    return place


def said(folder: Path) -> list[list[str]]:
    """Who waited beside the first, and who the next was."""
    texts = [path.read_text() for path in sorted(folder.glob("**/logs/*/*.log"))]
    words = [line.split() for text in texts for line in text.splitlines()]
    return sorted(found for found in words if found[0] in ("beside", "process"))


def test_of_a_run(train: Place) -> None:
    train.run(*RUN, "+workload.args.code=1", "retry.max_failures=1", "name=r")
    assert train.result("r")["failures"] == 1
    (_, waiting), (_, process) = said(train.folder / "runs" / "r")
    assert waiting == process
    train.assert_clean()


def test_of_a_sweep(train: Place) -> None:
    train.run("-m", *RUN, "+workload.args.code=0", "+workload.args.lr=1,2", "sweep.name=s")
    (_, waiting), (_, process) = said(train.folder / "runs" / "s")
    assert waiting == process
    train.assert_clean()
