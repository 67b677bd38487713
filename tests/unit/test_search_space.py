"""The values of a sweep, as Hydra's grammar writes them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.overrides import as_hydra, settled
from launcher.errors import ConfigError
from launcher.sweep.search_space import (
    Choice,
    Domain,
    Interval,
    draw,
    ends,
    number_of,
    size,
    take_apart,
    text_of,
    texts,
)
from launcher.sweep.tunes import words


@pytest.mark.parametrize(
    ("written", "domain"),
    [
        ("a,b", Choice(("a", "b"))),
        ("choice(a,b,a)", Choice(("a", "b"))),
        ("choice('1e-4','1e-3')", Choice(("1e-4", "1e-3"))),
        ("choice([1,2],[3])", Choice(("[1,2]", "[3]"))),
        ("null,''", Choice(("null", "''"))),
        ("range(1,8,3)", Choice(("1", "4", "7"), ordered=True)),
        ("range(0,1,0.25)", Choice(("0.0", "0.25", "0.5", "0.75"), ordered=True)),
        ("sort(3,1,2)", Choice(("1", "2", "3"))),
        ("interval(0,1)", Interval(0.0, 1.0)),
        ("int(interval(1,9))", Interval(1, 9, whole=True)),
        ("tag(log,interval(1e-5,1e-1))", Interval(1e-5, 0.1, log=True)),
        ("tag(log,int(interval(1,1024)))", Interval(1, 1024, whole=True, log=True)),
        ("tag(log,range(1,1025))", Interval(1, 1024, whole=True, log=True)),
    ],
)
def test_hydras_grammar_is_read(written: str, domain: Domain) -> None:
    assert take_apart([f"++x={written}", "y=1"], {}) == ({"x": domain}, ["y=1"])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tag(log,interval(0,1))", "on a log scale it must begin above 0, not at 0"),
        ("interval(2,1)", "it begins at 2 and ends at 1, which is less"),
        ("interval(0,inf)", "both ends must be finite"),
        ("tag(lin,interval(0,1))", "the tag lin means nothing here; there is log"),
        ("tag(log,choice(1,2))", "the tag log is for an interval or a range"),
        ("tag(log,range(1,9,2))", "a range with the tag log goes by steps of 1"),
        ("range(5,5)", "there is no value in it"),
        ("choice()", "empty choice is not legal"),
        ("interval(a,b)", "interval"),
    ],
)
def test_what_cannot_be_searched_is_told_with_its_key(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        take_apart([f"x={written}", "y=interval(1,0)"], {})
    first, second = caught.value.problems
    assert said in first.message
    assert (first.key, first.where) == ("x", f"x={written}")
    assert second.key == "y"


def test_a_files_block_may_hold_texts_lists_and_values() -> None:
    params = {"workload.args.lr": "interval(1e-5, 1e-1)", "a": [1, None, True, "x y"], "b": 3}
    space, shared = take_apart(["c=1"], params)
    assert (space, shared) == take_apart(["c=1"], dict(OmegaConf.create(params)))
    assert space["workload.args.lr"] == Interval(1e-5, 0.1)
    assert space["a"] == Choice(("1", "null", "True", "x\\ y"))
    assert shared == ["b=3", "c=1"]


def test_a_text_in_a_files_list_is_one_value() -> None:
    odd = [
        "a, b",
        "it's",
        "",
        "ü",
        "x=1",
        "#c",
        "a\\",
        "\\'",
        "C:\\x",
        " b ",
        "[x",
        "日本,",
        "two\nlines",
    ]
    space, _ = take_apart([], {"workload.args.t": odd})
    written = ends(space["workload.args.t"])
    assert [settled(words([], {"workload.args.t": text})[0])[1] for text in written] == odd


def test_lists_are_values_as_well() -> None:
    space, _ = take_apart([], {"x": [[1, "a, b"], [3]]})
    assert space == take_apart(["x=[1,'a, b'],[3]"], {})[0]
    assert as_hydra(["a.x=[1],[2]"]) == ["++a.x=[1],[2]"]


def test_values_that_a_process_gets_stay_as_they_were_typed() -> None:
    space, _ = take_apart([], {"workload.args.lr": "1e-4, 1_000"})
    assert space == {"workload.args.lr": Choice(("'1e-4'", "'1_000'"))}


def test_the_command_line_takes_the_place_of_the_file() -> None:
    params = {"workload.args.lr": "interval(0,1)", "b": [1, 2]}
    space, shared = take_apart(["++workload.args.lr=0.1", "b=3,4"], params)
    assert space == {"b": Choice(("3", "4"))}
    assert shared == ["++workload.args.lr=0.1"]


def test_a_shuffled_grid_depends_on_the_seed_alone() -> None:
    orders = {
        tuple(take_apart(["x=shuffle(range(9))"], {}, seed=seed)[0]["x"].texts)  # type: ignore[union-attr]
        for seed in (1, 1, 2)
    }
    assert len(orders) == 2
    assert all(sorted(order) == [str(number) for number in range(9)] for order in orders)


def test_the_size_of_a_space() -> None:
    three, whole = Choice(("a", "b", "c")), Interval(1, 4, whole=True)
    assert size({"x": three, "y": whole}) == 12
    assert size({"x": three, "y": Interval(0, 1)}) == math.inf
    assert texts(whole) == ["1", "2", "3", "4"]
    with pytest.raises(ValueError, match="no grid"):
        texts(Interval(0, 1))


intervals = st.builds(
    lambda ends, whole, log: Interval(min(ends), max(ends), whole, log),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    st.booleans(),
    st.booleans(),
)


@given(intervals, st.integers())
def test_what_is_drawn_lies_in_the_interval_and_is_read_as_the_same(
    domain: Interval, seed: int
) -> None:
    text = draw(domain, random.Random(seed))
    value = number_of(domain, text)
    assert value is not None
    assert text_of(domain, value) == text


@given(st.floats(allow_nan=False))
def test_a_number_beyond_is_brought_back(value: float) -> None:
    domain = Interval(-2.5, 7.0)
    assert -2.5 <= float(text_of(domain, value)) <= 7.0
    assert number_of(domain, repr(value)) == (value if -2.5 <= value <= 7.0 else None)
