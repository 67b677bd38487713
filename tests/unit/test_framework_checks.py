"""A program of another framework than the mode's is refused before anything is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.config.framework_checks import imported
from launcher.errors import ConfigError, Problem

TORCH = "import torch_xla.core.xla_model as xm\n"


def problems(cwd: Path, *words: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        compose(["cluster=v5p-8", *words], cwd=cwd)
    return tuple(caught.value.problems)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("mode=jax workload=digits_torch", "digits_torch.py imports torch_xla, and mode.framework"),
        ("mode=multislice workload=digits_torch", "digits_torch.py imports torch_xla"),
        ("mode=torch_xla workload=lm", "lm.py imports jax, and mode.framework is torch_xla"),
        ("mode=torch_xla workload=mnist", "mnist.py imports jax"),
        ("workload.script=mine.py", "mine.py imports torch_xla"),
        ("workload.module=package.mine", "package.mine imports torch_xla"),
        ("workload.module=package", "package imports torch_xla"),
    ],
)
def test_a_program_of_another_framework(tmp_path: Path, words: str, told: str) -> None:
    (tmp_path / "package").mkdir()
    for name in ("mine.py", "package/mine.py", "package/__main__.py"):
        (tmp_path / name).write_text(TORCH)
    (found,) = problems(tmp_path, *words.split())
    assert found.key.startswith("workload.")
    assert told in found.message
    framework = "torch_xla" if "torch" in told.partition(",")[0] else "jax"
    assert found.hint == f"mode={framework}; or name {framework} under workload.requirements"


@pytest.mark.parametrize(
    "words",
    [
        "mode=torch_xla workload.script=mine.py",
        "mode=jax workload.script=mine.py workload.requirements=[torch-xla]",
        "mode=jax workload.command=[python3,mine.py]",
        "mode=jax workload.module=installed.elsewhere",
    ],
)
def test_a_program_that_finds_its_framework(tmp_path: Path, words: str) -> None:
    (tmp_path / "mine.py").write_text(TORCH)
    assert compose(["cluster=v5p-8", *words.split()], cwd=tmp_path).workload


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import jax.numpy as jnp, os\nfrom flax.linen import Dense\n", {"jax", "os", "flax"}),
        ("from . import jax\nfrom .jax import x\n", set()),
        ("try:\n    import jax\nexcept ImportError:\n    pass\n", set()),
        ("def f():\n    import jax\n", set()),
        ("'\\d'\nimport jax\n", {"jax"}),
        ("import jax\n    wrong\n", set()),
        ("\0", set()),
        ("", set()),
    ],
)
def test_what_is_imported_at_once(source: str, names: set[str]) -> None:
    assert imported(source.encode()) == names


def test_a_program_that_is_no_file_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (found,) = problems(tmp_path, "workload.script=folder")
    assert found.message.endswith("is not a file")
