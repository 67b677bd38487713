"""The code of an attempt is what the files hold when it begins."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from launcher.attempts.packed import AsItIs, Snapshot
from launcher.errors import ConfigError
from launcher.hosts.archive import unpack
from launcher.source import scan


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "alias.py").symlink_to("train.py")
    return folder


@pytest.mark.parametrize("text", ["print('longer than it was')\n", "1\n"])
def test_what_is_mended_between_two_attempts_arrives_whole(
    code: Path, tmp_path: Path, text: str
) -> None:
    packed = AsItIs(scan(code))
    before = packed.digest()
    (code / "train.py").write_text(text)
    assert packed.digest() != before
    unpack(io.BytesIO(b"".join(packed.pack())), tmp_path / "host")
    assert (tmp_path / "host/alias.py").read_text() == text


def test_a_file_that_is_gone_is_told_as_the_users_own_doing(code: Path) -> None:
    manifest = scan(code)
    packed = AsItIs(manifest)
    (code / "train.py").unlink()
    for read in (packed.digest, lambda: list(packed.pack()), lambda: Snapshot(manifest)):
        with pytest.raises(ConfigError, match=r"changed meanwhile: .*train\.py.*same command"):
            read()
