"""What a standby may import before the program begins."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from launcher.hosts.ahead import Own, Reader, is_inert

HELPERS = {
    "plain.py": "import json\nFIRST = 1\n\ndef f():\n    import csv\n",
    "busy.py": "import json\nprint('busy')\nimport csv\n",
    "pack/__init__.py": "import gzip\n",
    "pack/inner.py": "import bz2\nfrom pack import __name__\n",
}


def read(folder: Path, text: str) -> list[str]:
    for name, content in {**HELPERS, "train.py": text}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    own = Own(str(folder), [str(folder), "/elsewhere"])
    return [ast.unparse(found) for found in Reader(own).imports(folder / "train.py")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "'''Trains.'''\nimport os, sys\nfrom a.b import c as d\n",
            "import os, sys|from a.b import c as d",
        ),
        # What is said before an import may change it.
        ("import os\nos.environ['JAX_PLATFORMS'] = 'cpu'\nimport jax\n", "import os"),
        ("import sys\nsys.path.insert(0, 'x')\nimport jax\n", "import sys"),
        ("import os\nold = os.environ.pop('A')\nimport jax\n", "import os"),
        ("import a\nif a.old:\n    import b\nimport c\n", "import a"),
        ("try:\n    import a\nexcept ImportError:\n    pass\nimport b\n", ""),
        ("import a; a.x = 1\nimport b\n", "import a"),
        # What only defines something does not.
        (
            "import a\nX: int = 1\n@a.b\nclass C: pass\nP = Path('x')\nimport b\n",
            "import a|import b",
        ),
        ("import a\nif TYPE_CHECKING:\n    import b\nimport c\n", "import a|import c"),
        ("def f():\n    import a\nimport b\n", "import b"),
        # Modules of its own are read, not run.
        ("import plain\nimport a\n", "import json|import a"),
        ("from plain import f\nimport plain\nimport a\n", "import json|import a"),
        ("import busy\nimport a\n", "import json"),
        ("from pack import inner\nimport a\n", "import gzip|import bz2|import a"),
        ("import pack.inner\n", "import gzip|import bz2"),
        ("import a, plain\nimport b\n", ""),
        ("from . import a\nimport b\n", ""),
        ("import train\nimport a\n", "import a"),
    ],
)
def test_only_what_would_be_imported_first_anyway(tmp_path: Path, text: str, found: str) -> None:
    assert "|".join(read(tmp_path, text)) == found


@pytest.mark.parametrize(
    "text", ["X = f()", "X = (y := 1)", "a.b = 1", "X[0] = 1", "f()", "X += 1"]
)
def test_what_may_do_something(text: str) -> None:
    assert not is_inert(ast.parse(text).body[0])


def test_modules_of_every_kind_are_found(tmp_path: Path) -> None:
    (tmp_path / "fast.so").touch()
    (tmp_path / "data").mkdir()  # no package
    own = Own(str(tmp_path), [str(tmp_path)])
    assert own.source("fast")
    assert own.source("data") is None
