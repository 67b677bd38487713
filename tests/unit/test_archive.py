"""Packing gives the same bytes for the same files; unpacking refuses to leave its folder."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.hosts import archive
from launcher.hosts.agent import Agent
from launcher.hosts.archive import ArchiveError, digest, pack, unpack
from launcher.source import scan


def packed(root: Path) -> io.BytesIO:
    return io.BytesIO(b"".join(pack(scan(root))))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A small folder with one of everything that travels."""
    root = tmp_path / "code"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg/run.sh").write_text("echo hi\n")
    (root / "pkg/run.sh").chmod(0o755)
    (root / "empty.py").touch()
    (root / "loop").symlink_to("pkg")
    (root / os.fsdecode(b"bad-\xff\n\"'")).write_bytes(bytes(range(256)) * 5)
    (root / ("long" * 40)).write_text("a name of 160 characters")
    return root


def test_round_trip(code: Path, tmp_path: Path) -> None:
    target = tmp_path / "host" / "code"
    unpack(packed(code), target)
    before, after = scan(code), scan(target)
    assert after.files == before.files
    for entry in before.files:
        if entry.link is None:
            assert (target / entry.path).read_bytes() == (code / entry.path).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["code"]


def test_the_digest_is_of_names_contents_and_modes(code: Path) -> None:
    first = digest(scan(code))
    os.utime(code / "empty.py", (1, 1))
    assert digest(scan(code)) == first
    (code / "empty.py").chmod(0o755)
    changed_mode = digest(scan(code))
    (code / "empty.py").rename(code / "other.py")
    changed_name = digest(scan(code))
    (code / "other.py").write_text("x")
    assert len({first, changed_mode, changed_name, digest(scan(code))}) == 4


def test_chunks_are_bounded_and_no_byte_is_lost(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packed(code).getvalue()
    monkeypatch.setattr(archive, "CHUNK", 1000)
    chunks = list(pack(scan(code)))
    assert b"".join(chunks) == whole
    assert max(map(len, chunks)) == 1000


def test_a_file_that_grows_is_cut_and_one_that_shrinks_is_an_error(
    code: Path, tmp_path: Path
) -> None:
    manifest = scan(code)
    (code / "empty.py").write_text("grown")
    unpack(io.BytesIO(b"".join(pack(manifest))), tmp_path / "host")
    assert (tmp_path / "host/empty.py").read_text() == ""
    (code / "pkg/run.sh").write_text("")
    with pytest.raises(ArchiveError, match=r"run\.sh shrank"):
        list(pack(manifest))


def test_eight_at_once_unpack_one_folder(code: Path, tmp_path: Path) -> None:
    data = packed(code).getvalue()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: unpack(io.BytesIO(data), tmp_path / "host/code"), range(8)))
    assert [path.name for path in (tmp_path / "host").iterdir()] == ["code"]


def test_a_cut_archive_leaves_nothing(code: Path, tmp_path: Path) -> None:
    data = packed(code).getvalue()
    with pytest.raises(tarfile.ReadError):
        unpack(io.BytesIO(data[:1500]), tmp_path / "host/code")
    assert list((tmp_path / "host").iterdir()) == []


def file(name: str) -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def device(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info


ATTACKS: dict[str, Callable[[Path], list[tarfile.TarInfo]]] = {
    "parent": lambda out: [file("../escaped")],
    "deep parent": lambda out: [file("a/../../escaped")],
    "absolute": lambda out: [file(f"{out}/escaped")],
    "the folder itself": lambda out: [file(".")],
    "absolute link": lambda out: [link("a", str(out))],
    "relative link": lambda out: [link("a", "..")],
    "file through a link": lambda out: [link("a", ".."), file("a/escaped")],
    "link through a link": lambda out: [link("a", str(out)), link("a/escaped", "x")],
    "link made worse by a later one": lambda out: [link("p/q", "b/.."), link("p/b", "..")],
    "folders made through a link": lambda out: [link("a", ".."), link("a/escaped/b", "x")],
    "link into the future target": lambda out: [link("a", "../code/b")],
    "hard link": lambda out: [link("a", f"{out}/secret", tarfile.LNKTYPE)],
    "device": lambda out: [device("a")],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_attacks_are_refused_and_leave_nothing(
    attack: Callable[[Path], list[tarfile.TarInfo]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for member in attack(tmp_path):
            tar.addfile(member, io.BytesIO())
    with pytest.raises((ArchiveError, OSError)):
        unpack(io.BytesIO(raw.getvalue()), tmp_path / "host" / "code")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["host", "secret"]


@pytest.mark.parametrize("order", ["ABAB", "ABBA", "AABB"])
def test_agents_of_one_host_may_get_the_same_code_at_once(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    agents = {name: Agent.__new__(Agent) for name in "AB"}  # without its watch over the machine
    whole = packed(code).getvalue()
    pieces = {name: iter([whole[:5000], whole[5000:]]) for name in "AB"}
    for index, name in enumerate(order):
        agents[name].incoming = None if name not in order[:index] else agents[name].incoming
        is_last = name not in order[index + 1 :]
        agents[name].receive_code("c0de", next(pieces[name]), not is_last, is_last)
    (found,) = (tmp_path / ".launcher" / "code").iterdir()
    assert digest(scan(found)) == digest(scan(code))
