"""Durations, names, and the argv of a workload."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from launcher.config.values import NAME_LENGTH, as_list, as_name, is_name, is_time, seconds
from launcher.spec import Workload


def workload(kind: str, *target: str, args: tuple[tuple[str, str], ...] = ()) -> Workload:
    return Workload(
        name="train",
        kind=kind,
        target=target,
        args=args,
        env=MappingProxyType({}),
        secret_env=frozenset(),
        working_dir=Path("/code"),
        include=(),
        exclude=(),
        requirements=(),
        checkpoint_dir=None,
    )


@pytest.mark.parametrize(
    ("made", "argv"),
    [
        (workload("script", "train.py"), ("py", "train.py")),
        (workload("module", "a.train"), ("py", "-m", "a.train")),
        (workload("command", "sh", "-c", "echo '$HOME' *"), ("sh", "-c", "echo '$HOME' *")),
        (
            workload("script", "train.py", args=(("lr", "1e-5"), ("note", "a 'b' \"$c\" *"))),
            ("py", "train.py", "--lr=1e-5", "--note=a 'b' \"$c\" *"),
        ),
        (workload("command", "run", args=(("x", ""),)), ("run", "--x=")),
    ],
)
def test_argv(made: Workload, argv: tuple[str, ...]) -> None:
    assert made.argv("py") == argv


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("10m", 600), ("1h", 3600), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0)],
)
def test_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "90", "s", "90 s", "-1s", "1e3s", "90s\n", "1h30m", "٣s", "1.s", "1d", "inf"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds(text)


@given(st.integers(0, 10**9 - 1), st.sampled_from(["ms", "s", "m", "h"]))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert seconds(f"{number}{unit}") == number * seconds(f"1{unit}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-01T08:00:00Z", True),
        ("2026-12-01T08:00:00.5+01:00", True),
        ("2026-12-01T08:00:00", False),  # of which zone?
        ("2026-02-30T08:00:00Z", False),
        ("2h", False),
        ("", False),
    ],
)
def test_times(text: str, expected: bool) -> None:
    assert is_time(text) is expected


def test_one_value_or_a_list() -> None:
    assert as_list("a") == as_list(["a"]) == as_list(("a",)) == ["a"]


@pytest.mark.parametrize("name", ["a", "t1", "basic-v6e-16-1f2e", "a" * NAME_LENGTH])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("MyRun", "my_run", "my.run", "1run", "run-", "-run", "", "实验", "a b", "run\n", "a\0"),
        *("a;touch x", "$(touch x)", "`x`", "../x", "a" * (NAME_LENGTH + 1)),
    ],
)
def test_what_is_no_name(name: str) -> None:
    assert not is_name(name)
    assert is_name(as_name(name))


@given(st.text(max_size=80), st.integers(1, NAME_LENGTH))
def test_as_name_always_makes_a_name(text: str, length: int) -> None:
    made = as_name(text, length)
    assert is_name(made)
    assert len(made) <= length


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True))
def test_as_name_keeps_what_is_one(name: str) -> None:
    assume("--" not in name)
    assert as_name(name) == name
