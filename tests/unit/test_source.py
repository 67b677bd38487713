"""The rule that chooses files, on ordinary and on odd trees."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from launcher import git, source
from launcher.errors import ConfigError
from launcher.source import Manifest, describe, matching, scan

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Write files below tmp_path/code: `tree("a.py", "b/c.py")`."""
    root = tmp_path / "code"

    def write(*names: str) -> Path:
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(f"content of {name}\n"))
        return root

    return write


@pytest.fixture
def repo(tree: Tree) -> Tree:
    """The same inside a git work tree."""

    def write(*names: str) -> Path:
        root = tree(*names)
        run_git(root, "init", "-q")
        return root

    return write


def run_git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, timeout=30)


def names(manifest: Manifest) -> list[str]:
    return [str(entry.path) for entry in manifest.files]


def reasons(manifest: Manifest) -> dict[str, str]:
    return {str(path): reason for path, reason in manifest.skipped}


def test_outside_git_everything_travels_but_clutter(tree: Tree) -> None:
    root = tree(
        "train.py", "pkg/model.py", ".venv/bin/python", "pkg/__pycache__/model.pyc", ".git/config",
        "runs/t1/plan.json", "pkg/runs/table.csv", "node_modules/x/index.js",
    )  # fmt: skip
    assert names(scan(root)) == ["pkg/model.py", "pkg/runs/table.csv", "train.py"]


def test_git_decides_with_nested_rules_and_negation(repo: Tree) -> None:
    root = repo("train.py", "data/a.bin", "data/keep.bin", "data/sub/b.txt", "runs/t1/plan.json")
    (root / ".gitignore").write_text("*.bin\n!keep.bin\n")
    (root / "data/.gitignore").write_text("*.txt\n")
    assert names(scan(root)) == [".gitignore", "data/.gitignore", "data/keep.bin", "train.py"]


def test_tracked_files_travel_though_they_are_ignored_or_clutter(repo: Tree) -> None:
    root = repo("a.log", "runs/table.csv")
    (root / ".gitignore").write_text("*.log\n")
    run_git(root, "add", "-f", "a.log", "runs")
    assert names(scan(root)) == [".gitignore", "a.log", "runs/table.csv"]


def test_a_tracked_file_that_was_deleted_is_no_error(repo: Tree) -> None:
    root = repo("a.py", "b.py")
    run_git(root, "add", ".")
    (root / "b.py").unlink()
    assert names(scan(root)) == ["a.py"]


def test_only_the_folder_that_the_user_stands_in_travels(repo: Tree) -> None:
    root = repo("a.py", "sub/b.py")
    assert names(scan(root / "sub")) == ["b.py"]


def test_nested_repositories_travel_by_their_own_rules(repo: Tree) -> None:
    root = repo("a.py", "lib/b.py", "lib/c.log")
    (root / "lib/.gitignore").write_text("*.log\n")
    run_git(root / "lib", "init", "-q")
    assert names(scan(root)) == ["a.py", "lib/.gitignore", "lib/b.py"]


def test_a_folder_that_an_outer_repository_ignores_is_walked(repo: Tree) -> None:
    root = repo("project/train.py")
    (root / ".gitignore").write_text("*\n")
    assert names(scan(root / "project")) == ["train.py"]


def test_without_git_installed_the_tree_is_walked(
    repo: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repo("a.py", ".venv/b.py")
    monkeypatch.setenv("PATH", "/nowhere")
    assert names(scan(root)) == ["a.py"]
    assert git.state(root) == {}


def test_a_git_dir_variable_does_not_point_elsewhere(
    repo: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repo("a.py")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert names(scan(root)) == ["a.py"]


@pytest.mark.parametrize("inside_git", [False, True])
def test_secrets_never_travel(tree: Tree, inside_git: bool) -> None:
    root = tree("a.py", ".env", ".env.local", "tls/server.pem", "id_rsa", ".ssh/config")
    if inside_git:
        run_git(root, "init", "-q")
        run_git(root, "add", "-f", ".")
    manifest = scan(root, include=[".env", "tls"])
    assert names(manifest) == ["a.py"]
    assert reasons(manifest)[".env"] == "may be a secret (.env*)"
    assert "tls/server.pem" in reasons(manifest)


def test_include_beats_git_and_clutter_but_not_exclude(repo: Tree) -> None:
    root = repo("a.py", "data/a.bin", "data/b.bin", "data/.venv/x", "outputs/model/w.bin")
    (root / ".gitignore").write_text("data\noutputs\n")
    manifest = scan(root, include=["data", "outputs/model/*"], exclude=["b.bin"])
    assert names(manifest) == [".gitignore", "a.py", "data/a.bin", "outputs/model/w.bin"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("b", ["a.py"]),
        ("*.py", ["b/c.txt"]),
        ("b/c.*", ["a.py", "b/d.py"]),
        ("/b/", ["a.py"]),
        ("x/*", ["a.py", "b/c.txt", "b/d.py"]),
    ],
)
@pytest.mark.parametrize("inside_git", [False, True])
def test_exclude(tree: Tree, pattern: str, left: list[str], inside_git: bool) -> None:
    root = tree("a.py", "b/c.txt", "b/d.py")
    if inside_git:
        run_git(root, "init", "-q")
    assert names(scan(root, exclude=[pattern])) == left


@pytest.mark.parametrize("pattern", ["../x", "/etc/passwd", ".", "nothing*"])
def test_a_wrong_include_is_named(tree: Tree, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.include"):
        scan(tree("a.py"), include=[pattern])


def test_links_travel_when_they_stay_inside(tree: Tree) -> None:
    root = tree("a.py", "b/c.py")
    (root / "b/up").symlink_to("../a.py")
    (root / "folder").symlink_to("b")
    (root / "loop").symlink_to(".")
    (root / "b/loop").symlink_to("../b/loop2")
    (root / "b/loop2").symlink_to("..")
    (root / "absolute").symlink_to("/etc/hostname")
    (root / "out").symlink_to("../..")
    (root / "through").symlink_to("absolute")
    (root / "nothing").symlink_to("missing")
    (root / "self").symlink_to("self")
    manifest = scan(root)
    links = {str(entry.path): entry.link for entry in manifest.files if entry.link is not None}
    assert links == {
        "b/up": "../a.py", "folder": "b", "loop": ".", "b/loop": "../b/loop2", "b/loop2": "..",
    }  # fmt: skip
    assert reasons(manifest) == {
        "absolute": "is a link that leaves the folder",
        "out": "is a link that leaves the folder",
        "through": "is a link that leaves the folder",
        "nothing": "is a link to nothing",
        "self": "is a link to nothing",
    }


def test_what_is_no_file_is_skipped_without_being_opened(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("a.py")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        manifest = scan(root)
    assert names(manifest) == ["a.py"]
    assert set(reasons(manifest)) == {"pipe", "socket"}


@pytest.mark.parametrize("inside_git", [False, True])
def test_odd_names_are_kept_and_shown_escaped(tree: Tree, inside_git: bool) -> None:
    odd = [
        "new\nline",
        "sp ace",
        "quo'te\"",
        "-dash",
        "uni-ü",
        os.fsdecode(b"bad-\xff"),
        "\x1b[31m",
    ]
    root = tree(*odd)
    if inside_git:
        run_git(root, "init", "-q")
    assert sorted(names(scan(root))) == sorted(odd)
    assert source.shown(os.fsdecode(b"a\n\xff")) == r"a\n\udcff"


def test_executable_bit_and_empty_folders(tree: Tree) -> None:
    root = tree("run.sh", "a.py")
    (root / "run.sh").chmod(0o700)
    (root / "empty").mkdir()
    assert [(str(e.path), e.mode) for e in scan(root).files] == [("a.py", 0o644), ("run.sh", 0o755)]


def test_an_unreadable_file_is_a_problem(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree("a.py", "locked")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")  # as for root
    with pytest.raises(ConfigError, match="locked cannot be read"):
        scan(root)
    assert names(scan(root, exclude=["locked"])) == ["a.py"]


def test_too_many_bytes_names_the_largest(tree: Tree) -> None:
    root = tree("a.py", "data/x/big.bin")
    os.truncate(root / "data/x/big.bin", 2**40)
    with pytest.raises(ConfigError) as caught:
        scan(root)
    assert "1024.0 GiB       1 files  data/x" in str(caught.value)
    assert "workload.exclude" in str(caught.value)
    assert names(scan(root, exclude=["data"])) == ["a.py"]


@pytest.mark.parametrize("inside_git", [False, True])
def test_a_giant_tree_is_refused_soon(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, inside_git: bool
) -> None:
    root = tree(*(f"many/{number}" for number in range(1500)), "a.py")
    if inside_git:
        run_git(root, "init", "-q")
    monkeypatch.setattr(source, "MAX_FILES", 1000)
    with pytest.raises(ConfigError, match=r"at most 1,000 files.*\n.* files  many"):
        scan(root)


def test_the_root_of_the_machine_is_refused_soon() -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError, match="too m"):
        scan(Path("/"))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("name", "exclude", "reason"),
    [
        ("train.py", ["*.py"], r"workload\.exclude holds '\*\.py'"),
        ("ignored.py", [], r"git ignores it \(\.gitignore:1:ignored\.py\).*\n.*include"),
        ("missing.py", [], "no such file"),
        ("my.key", [], r"may be a secret \(\*\.key\)"),
        ("runs/x.py", [], r"folders like /runs/ stay behind"),
    ],
)
def test_a_required_file_that_stays_behind_is_an_error(
    repo: Tree, name: str, exclude: list[str], reason: str
) -> None:
    root = repo("train.py", "ignored.py", "my.key", "runs/x.py")
    (root / ".gitignore").write_text("ignored.py\n")
    with pytest.raises(ConfigError, match=reason):
        scan(root, exclude=exclude, required=[name])
    assert scan(root, required=["train.py"]).files


def test_describe_is_one_line(tree: Tree) -> None:
    root = tree("a.py")
    assert describe(scan(root)) == f"code: 1 file, 16 bytes from {root}"
    for number in range(4):
        (root / f"l{number}").symlink_to("/nowhere")
    assert describe(scan(root)).endswith("(4 skipped: l0 is a link to nothing; "
        "l1 is a link to nothing; l2 is a link to nothing; …)")  # fmt: skip


@pytest.mark.parametrize(
    ("path", "pattern", "matches"),
    [
        ("a/b/c", "b", True),
        ("a/b/c", "b/", True),
        ("a/b/c", "/a", True),
        ("a/b/c", "/b", False),
        ("a/b/c", "a/b", True),
        ("a/b/c", "*", True),
        ("a/b/c", "B", False),
    ],
)
def test_matching(path: str, pattern: str, matches: bool) -> None:
    assert (matching(path, [pattern]) == pattern) is matches


def test_git_state(repo: Tree, tmp_path: Path) -> None:
    root = repo("a.py")
    assert git.state(root) == {}  # no commit yet
    run_git(root, "add", ".")
    run_git(root, "commit", "-q", "-m", "first")
    clean = git.state(root)
    assert clean == {"commit": clean["commit"], "dirty": False}
    (root / "a.py").write_text("changed")
    dirty = git.state(root)
    assert dirty["commit"] == clean["commit"]
    assert dirty["dirty"] is True
    assert len(str(dirty["diff_sha256"])) == 64
    assert git.state(tmp_path) == {}


def test_entries_are_relative_posix_paths(tree: Tree) -> None:
    manifest = scan(tree("b/c.py"))
    assert manifest.files[0].path == PurePosixPath("b/c.py")
    assert manifest.total == manifest.files[0].size == len("content of b/c.py\n")
