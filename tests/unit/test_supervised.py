"""What the shipped programs and their supervisor say to each other, by signal and by file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.compose import WORKLOADS

PROGRAM = """
import os, signal, sys
from supervised import TERMINATED, Voice, Wish

wish = Wish()
assert not wish.is_there
os.kill(os.getpid(), signal.SIGTERM)
assert wish.is_there
voice = Voice(leads=sys.argv[1] == "leads")
voice.metrics(step=1, loss=0.5)
voice.say("stopped")
assert not {"jax", "torch"} & set(sys.modules)
os._exit(TERMINATED)  # all is told by now
"""


@pytest.mark.parametrize(
    ("role", "said", "told"), [("leads", "stopped\n", '{"step": 1, "loss": 0.5}\n'), ("", "", None)]
)
def test_a_program_hears_and_tells(tmp_path: Path, role: str, said: str, told: str | None) -> None:
    metrics = tmp_path / "metrics"
    env = {**os.environ, "PYTHONPATH": str(WORKLOADS), "LAUNCHER_METRICS": str(metrics)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, role], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, said), done.stderr
    assert (metrics.read_text() if metrics.exists() else None) == told
