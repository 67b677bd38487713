"""What an emulated host would lack is told at once, with the command that installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import extras
from launcher.compose import compose
from launcher.errors import ClusterError

OF = {"pytest": "torch", "no-such-package": "lm"}


@pytest.mark.parametrize(
    ("requirement", "found"),
    [
        ("pytest>=1", []),
        ("no_such.package==2.9.*", [("no_such.package is not installed", "lm")]),
        ("another-package", []),
    ],
)
def test_what_is_lacking(requirement: str, found: list[tuple[str, str]]) -> None:
    assert list(extras.lacking([requirement], OF)) == found


def test_another_version_is_as_good_as_none() -> None:
    ((fault, extra),) = extras.lacking(["pytest==1.*"], OF)
    assert fault.startswith("pytest is ")
    assert fault.endswith(", not ==1.*")
    assert extra == "torch"


def test_the_extras_are_those_of_the_project() -> None:
    found = extras.extras()
    assert (found["torch"], found["torch-xla"]) == ("torch", "torch")
    assert (found["scikit-learn"], found["flax"]) == ("digits", "lm")
    assert "mypy" not in found


def test_only_emulated_hosts_use_this_python(tmp_path: Path) -> None:
    words = ["mode=torch_xla", "mode.requirements=['torch==0.1.*']"]
    google = ["provider=google", "provider.project=my-project", "cluster.external_ips=true"]
    extras.require(compose([*words, *google], cwd=tmp_path))
    with pytest.raises(ClusterError, match=r"torch is .*\npython -m pip install -e '.*\[torch\]'"):
        extras.require(compose(words, cwd=tmp_path))


def test_what_all_trials_lack_is_named_at_once(tmp_path: Path) -> None:
    one = compose(["mode.requirements=['torch==0.1.*','flax==0.1.*']"], cwd=tmp_path)
    other = compose(["mode.requirements=['scikit-learn==0.1.*']"], cwd=tmp_path)
    with pytest.raises(ClusterError) as caught:
        extras.require(one, other, one, here=("optuna==0.1.*",))
    assert all(name in str(caught.value) for name in ("torch is ", "flax is", "optuna is"))
    assert "[digits,lm,torch,tune]" in str(caught.value)


def test_without_a_checkout_the_packages_themselves_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may have something else under the launcher's name."""
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    command = extras.command("digits,lm")
    assert command.startswith("python -m pip install 'scikit-learn<2,>=1.5' 'flax<")
    assert "launcher" not in command
