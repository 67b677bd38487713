"""Checkpoints of the workload `digits_torch`: complete, the newest that can be read, and few."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.compose import WORKLOADS

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
sys.path.insert(0, str(WORKLOADS))

import digits_checkpoint  # noqa: E402


def saved(folder: Path, *steps: int, keep: int = 3) -> list[str]:
    for step in steps:
        digits_checkpoint.save(str(folder), step, {"net": torch.full((64,), float(step))}, keep)
    return sorted(path.name for path in folder.iterdir())


def test_there_may_be_none(tmp_path: Path) -> None:
    assert digits_checkpoint.newest(str(tmp_path / "never")) is None


def test_the_newest_stay_and_the_newest_is_read(tmp_path: Path) -> None:
    names = saved(tmp_path / "new folder", 20, 40, 60, 100, keep=2)
    assert names == ["step-00000060.pt", "step-00000100.pt"]
    found = digits_checkpoint.newest(str(tmp_path / "new folder"))
    assert found is not None
    assert found[0] == 100
    assert found[1]["net"].tolist() == [100.0] * 64


def test_a_damaged_one_is_passed_over_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 20, 40)
    (tmp_path / "step-00000060.pt.tmp").write_bytes(b"half")
    newest = tmp_path / "step-00000040.pt"
    os.truncate(newest, newest.stat().st_size // 2)
    found = digits_checkpoint.newest(str(tmp_path))
    assert found is not None
    assert found[0] == 20
    assert "checkpoint 40" in capsys.readouterr().out


def test_nothing_is_begun_anew_over_damaged_ones(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    os.truncate(tmp_path / "step-00000020.pt", 10)
    with pytest.raises(ValueError, match=r"none of the checkpoints \[20\]"):
        digits_checkpoint.newest(str(tmp_path))
