"""One direction: nothing later in the way of the data is imported by anything earlier."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import launcher

ROOT = Path(launcher.__file__).parent
LAST = {"launcher.verbs", "launcher.sweep", "launcher.rehearsal"}


def imported(path: Path) -> Iterator[str]:
    """Wherever in the file, with the names that are taken of each module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("package", "later"),
    [
        ("providers", {"launcher.attempts", "launcher.judging", *LAST}),
        ("provisioning", {"launcher.attempts", "launcher.judging", *LAST}),
        ("judging", {"launcher.attempts", "launcher.provisioning", *LAST}),
        ("attempts", LAST),
    ],
)
def test_nothing_later_is_imported_by_anything_earlier(package: str, later: set[str]) -> None:
    found = {
        (path.name, name)
        for path in (ROOT / package).glob("*.py")
        for name in imported(path)
        if any(name.startswith(f"{other}.") for other in later)
    }
    assert not found
