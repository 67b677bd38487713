"""Scenarios, their moments, and what is found out about a run that was disturbed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.values import is_name
from launcher.errors import ConfigError, ProvisioningError
from launcher.rehearsal import place as places
from launcher.rehearsal import table
from launcher.rehearsal.compare import Lost, compare, is_compared, lost
from launcher.rehearsal.conduct import Job, Ran
from launcher.rehearsal.draw import draw
from launcher.rehearsal.judge import Finding, Told, course, judge, read
from launcher.rehearsal.scenarios import (
    CLEAN,
    STANDARD,
    Expect,
    Scenario,
    When,
    choose,
    load,
    load_all,
)
from launcher.rehearsal.series import Series
from launcher.rehearsal.triggers import Course, Lookout, News, Trigger, Unreachable
from launcher.screen import Screen
from launcher.verbs import Arguments
from launcher.verbs.rehearse import own_words, rehearse, scenarios_of

COURSE = Course(steps=60, seconds=10.0, saves=True)
SILENT = Course(steps=None, seconds=10.0, saves=False)


def test_an_emulator_that_does_not_start_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(mute))
    monkeypatch.setattr(places, "START_SECONDS", 0.1)
    with places.opened(tmp_path / "rehearsal", "one") as place:
        with pytest.raises(ProvisioningError, match="did not start"), places.emulator(place):
            pass
        assert not place.processes()


def test_an_emulator_that_does_not_answer_costs_its_scenario_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conduct(_job: Job, scenario: Scenario, *_: Any) -> Ran:
        if scenario.name == "two":
            raise ProvisioningError("no emulator answers")
        return Ran(exit_code=0)

    monkeypatch.setattr("launcher.rehearsal.series.conduct", conduct)
    result = {"status": "succeeded", "preemptions": 0, "failures": 0}
    told = Told(result, [], [], saves=False)
    monkeypatch.setattr("launcher.rehearsal.series.read", lambda _: told)
    stopped: Any = None
    series = Series(tmp_path / "all", Job((), 2), Screen(), stopped)
    names = ("one", "two", "three")
    assert not series.run([Scenario(name, (), Expect((0, 0)), "", 1.0) for name in names])
    assert [finding.passed for finding in series.findings] == [True, True, False, True]
    assert series.findings[2].failures[0] == "no emulator answers"


# --- scenarios ------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "faults.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_standard_set_is_valid_and_covers_what_it_should() -> None:
    found = {scenario.name: scenario for scenario in load(STANDARD)}
    assert all(is_name(name) and scenario.about for name, scenario in found.items())
    deeds = {deed.do for scenario in found.values() for deed in scenario.deeds}
    assert deeds == {
        *("preempt", "kill-host", "freeze-host", "delete-node", "stockout", "slow-create"),
        *("kill-head", "kill-launcher"),
    }


def test_the_page_of_documentation_tells_of_each() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rehearse.md").read_text(encoding="utf-8")
    told = page.partition("## The standard set")[2].partition("## ")[0]
    assert re.findall(r"^\| `(.+?)`", told, re.MULTILINE) == [s.name for s in load(STANDARD)]


def test_the_scenario_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rehearse.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = load(written(tmp_path, text))
    assert len(found.deeds) == 4


def test_a_scenario_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        - name: mine
          limit: 2m
          deeds:
            - {do: stockout, count: 2}
            - {when: {event: started, step: 25%, after: 500ms}, do: preempt, slice: 1, notice: 3s}
          expect: {preemptions: [1, 2], failures: 1, status: failed}
        """,
    )
    (found,) = load(path)
    assert (found.name, found.limit, found.expect) == (
        "mine",
        120.0,
        Expect((1, 2), (1, 1), "failed"),
    )
    first, second = found.deeds
    assert (first.when, first.options) == (None, {"count": 2})
    assert second.when == When("started", share=0.25, after=0.5)
    assert (second.slice, second.options) == (1, {"notice": "3s"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1", r"faults.yaml:1.*must be a list of scenarios|must be a list of scenarios"),
        ("- name: x\n  deeds: [", "not valid YAML"),
        ("- name: x", r"0.deeds: not set \(\S+:1\)"),
        ("- {name: x, deeds: []}", "at least one deed"),
        (
            "- name: x\n  deeds:\n    - do: premept",
            r"no deed 'premept' \(\S+:3\)\n.*mean preempt\?",
        ),
        ("- name: x\n  deeds:\n    - do: kill-host", r"worker: kill-host needs it \(\S+:3\)"),
        (
            "- name: x\n  deeds:\n    - do: preempt\n      notise: 3s",
            r"notise: no option of preempt \(\S+:4\)",
        ),
        ("- name: x\n  deeds: [{do: preempt, notice: 3}]", "'3' is no duration"),
        ("- name: x\n  deeds: [{do: delete-node, worker: 0}]", "no option of delete-node"),
        (
            "- name: x\n  deeds:\n    - do: preempt\n      when: {steps: 3}",
            r"when.steps: no such key \(\S+:4\)\n.*mean step\?",
        ),
        ("- name: x\n  deeds: [{do: preempt, when: {step: 100%}}]", "a share such as 50%"),
        ("- name: x\n  deeds: [{do: preempt, when: {after: soon}}]", "a duration"),
        ("- {name: x, deeds: [{do: preempt}], expect: {failures: many}}", r"\[least, most\]"),
        ("- {name: x, deeds: [{do: preempt, slice: 1.0}]}", "slice"),
        ("- {name: x, deeds: [{do: preempt}], expect: {failures: [3, 1]}}", "from 3 to 1 there is"),
        ("- {name: x, deeds: [{do: preempt}], limit: 0s}", "limit: leaves no time"),
        ("- {name: x, deeds: [{do: preempt, when: {event: ''}}]}", "a kind of event"),
        ("- {name: clean, deeds: [{do: preempt}]}", "cannot be a name"),
        ("- {name: a/b, deeds: [{do: preempt}]}", "cannot be a name"),
        (
            "- {name: x, deeds: [{do: preempt}]}\n- {name: x, deeds: [{do: preempt}]}",
            r"another scenario is named 'x' \(\S+:1\)|another scenario is named 'x' \(\S+:2\)",
        ),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert re.search(told, str(caught.value)), caught.value


def test_names_are_chosen_and_collide(tmp_path: Path) -> None:
    found = load(STANDARD)
    assert [s.name for s in choose(found, ["stockout", "preempted"])] == ["preempted", "stockout"]
    with pytest.raises(ConfigError, match="did you mean preempted"):
        choose(found, ["preemted"])
    with pytest.raises(ConfigError, match="another scenario is named preempted"):
        load_all([STANDARD, written(tmp_path, "- {name: preempted, deeds: [{do: preempt}]}")])
    with pytest.raises(ConfigError, match="no file of scenarios"):
        load_all([tmp_path / "none.yaml"])


@given(seed=st.integers(0, 10**6))
def test_what_is_drawn_could_have_been_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    drawn = draw(2, seed)
    assert drawn == draw(2, seed)
    path = tmp_path_factory.mktemp("drawn") / "faults.yaml"
    path.write_text(yaml.safe_dump([dict(scenario.source) for scenario in drawn]))
    assert tuple(replace(scenario, by_chance=True) for scenario in load(path)) == drawn


# --- triggers -------------------------------------------------------------------------------------


def test_a_trigger_waits_for_one_thing_after_the_other() -> None:
    files = [frozenset({("a", 1, 1)}), frozenset({("a", 1, 1)}), frozenset({("a", 2, 2)})]
    trigger = Trigger(When("started", share=0.5, checkpoint=True, after=1.0), COURSE)
    asked: list[tuple[News, float]] = [
        (News(step=60), 0.0),  # of the attempt before
        (News(frozenset({"started"}), 29), 1.0),
        (News(step=30, files=lambda: files[0]), 2.0),
        (News(files=lambda: files[1]), 3.0),
        (News(files=lambda: files[2]), 4.0),
        (News(), 4.9),
        (News(), 5.0),
    ]
    assert [trigger.has_come(*each) for each in asked] == [False] * 6 + [True]


def test_without_a_condition_it_is_due_at_once() -> None:
    assert Trigger(None, SILENT).has_come(News(), 0.0)


def test_a_program_without_steps_is_struck_by_the_clock() -> None:
    trigger = Trigger(When(share=0.3), SILENT)
    started = News(frozenset({"started"}))
    moments = ((News(), 0.0), (started, 5.0), (News(), 7.9), (News(), 8.0))
    assert [trigger.has_come(*each) for each in moments] == [False, False, False, True]


@pytest.mark.parametrize("when", [When(step=3), When(checkpoint=True)])
def test_what_cannot_come_is_not_waited_for(when: When) -> None:
    with pytest.raises(Unreachable, match="the clean run"):
        Trigger(when, SILENT)


def test_the_lookout_sees_only_what_is_new(tmp_path: Path) -> None:
    lookout = Lookout(tmp_path)
    assert lookout.look().step is None
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    (tmp_path / "events.jsonl").write_text('{"kind": "plan"}\n{"kind": "started"}\n')
    news = lookout.look()
    assert (news.events, news.step) == ({"plan", "started"}, 2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('ep": 3}\n')
    news = lookout.look()
    assert (news.events, news.step) == (frozenset(), 3)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"seq": 2, "ki\n{"kind": "plan"}\n')  # a launcher was killed as it wrote
    assert lookout.look().events == {"plan"}
    before = news.files()
    (tmp_path / "checkpoints" / "10.tmp").mkdir(parents=True)
    assert news.files() != before


# --- comparison -----------------------------------------------------------------------------------


def lines(*steps: int, attempt: int = 0, **values: Any) -> list[dict[str, Any]]:
    own = {"attempt": attempt, "process": "s0 h0"}
    return [{"step": step, "loss": 1 / step, **values, **own} for step in steps]


def test_the_last_values_are_compared_to_the_digit() -> None:
    clean = lines(1, 2, 3, tokens_per_second=1.0)
    again = [*lines(1, 2, tokens_per_second=7.0), *lines(2, 3, attempt=1, tokens_per_second=9.0)]
    assert compare(clean, again).equal is True
    off = [*again[:-1], {**again[-1], "loss": 0.3334}]
    found = compare(clean, off)
    assert found.equal is False
    assert found.text == "loss 0.3334, not 0.3333333333333333 (differs from step 3 on)"
    assert compare(clean, off, tolerance=1e-3).equal is True
    assert compare(clean, lines(1, 2)).text.startswith("step 2, not 3")


def test_what_cannot_be_compared_is_said() -> None:
    assert compare([], lines(1)).equal is None
    assert compare([{"note": 1, "attempt": 0}], []).equal is False
    nan = lines(1, loss=float("nan"))
    assert compare(nan, nan).equal is True


@pytest.mark.parametrize(
    ("key", "compared"),
    [
        *(("loss", True), ("timestep", True), ("step", True), ("learning_rate", True)),
        *(("tokens_per_second", False), ("step_time_ms", False), ("restored_step", False)),
    ],
)
def test_times_and_speeds_are_not_compared(key: str, compared: bool) -> None:
    assert is_compared(key) is compared


def restored(step: int, attempt: int) -> dict[str, Any]:
    return {"restored_step": step, "attempt": attempt}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ([], Lost()),
        (lines(1, 2, 3), Lost()),
        ([*lines(1, 25), *lines(21, 40, attempt=1)], Lost(5)),
        ([*lines(1, 25), restored(20, 1), restored(20, 2), *lines(21, 30, attempt=2)], Lost(5)),
        ([*lines(1, 7), restored(0, 1), *lines(1, 9, attempt=1)], Lost(7, True)),
        ([restored(0, 0), restored(0, 1), *lines(1, attempt=1)], Lost()),
        ([*lines(1, 20), *lines(16, 30, attempt=1), *lines(26, attempt=2)], Lost(10)),
    ],
)
def test_lost_steps(metrics: Sequence[Mapping[str, Any]], expected: Lost) -> None:
    assert lost(metrics) == expected


# --- findings -------------------------------------------------------------------------------------

RESULT = {
    "status": "succeeded",
    "exit_code": 0,
    "message": "",
    "preemptions": 0,
    "failures": 0,
    "resumed_from": [],
    "seconds": {"boot": 2.0, "productive": 5.0, "total": 10.0},
}
Make = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def made(name: str, metrics: Sequence[Mapping[str, Any]], **result: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps({**RESULT, **result}))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in metrics))
        events = [("started", 2.0), ("verdict", 8.0)]
        text = (json.dumps({"kind": kind, "elapsed": at}) + "\n" for kind, at in events)
        (folder / "events.jsonl").write_text("".join(text))
        (folder / "checkpoints" / "20").mkdir(parents=True)
        return folder

    return made


ONCE = Scenario("once", (), Expect((1, 1)), "preempted once")
AGAIN = [*lines(1, 25), *lines(21, 40, attempt=1)]


def found(made: Make, ran: Ran, *, strict: bool = False, **result: Any) -> Finding:
    clean = read(made("clean", lines(1, 20, 40)))
    folder = made("once", result.pop("metrics", AGAIN), **{"preemptions": 1, **result})
    return judge(ONCE, ran, read(folder), clean, folder, strict=strict)


def test_a_run_that_resumed_passes(made: Make) -> None:
    seconds = {"boot": 5.0, "productive": 5.0, "total": 15.0}
    finding = found(made, Ran(0), resumed_from=[20], seconds=seconds)
    assert (finding.passed, finding.failures, finding.warnings) == (True, (), ())
    assert (finding.resumed_from, finding.steps_lost, finding.metrics_equal) == ((20,), 5, True)
    assert finding.seconds_more == {"boot": 3.0, "productive": 0.0, "total": 5.0}
    assert json.loads(json.dumps(finding.to_json()))["charged"] == {"preemptions": 1, "failures": 0}


@pytest.mark.parametrize(
    ("ran", "result", "told"),
    [
        (Ran(5), {"status": "failed", "message": "a bug\nmore"}, "failed, not succeeded: a bug"),
        (Ran(1), {}, "exit code 1, though it succeeded"),
        (Ran(0), {"preemptions": 0, "failures": 1}, "charged to preemptions: 0, not 1"),
        (Ran(0), {"failures": 1}, "charged to failures: 1, not 0"),
        (Ran(0), {"metrics": lines(1, 39)}, "other metrics than the clean run: step 39, not 40"),
        (Ran(0, left=["projects/p/nodes/n"]), {}, "left behind: projects/p/nodes/n"),
        (Ran(0, undone=["preempt: refused"]), {}, "never happened: preempt: refused"),
        (Ran(143, troubles=["not done within 9 s"]), {}, "not done within 9 s"),
    ],
)
def test_whatever_is_wrong_fails(made: Make, ran: Ran, result: dict[str, Any], told: str) -> None:
    finding = found(made, ran, **result)
    assert finding.passed is False
    assert any(failure.startswith(told) for failure in finding.failures), finding.failures


@pytest.mark.parametrize(("done", "passes"), [((), False), (("preempt after step 9",), True)])
def test_what_comes_too_late_by_chance_is_told(
    made: Make, done: tuple[str, ...], passes: bool
) -> None:
    (drawn,) = draw(1, seed=1)
    clean, told = read(made("clean", lines(1, 40))), read(made("x", lines(1, 40)))
    finding = judge(drawn, Ran(0, undone=["preempt"], done=[*done]), told, clean, Path("x"))
    assert finding.passed is passes
    assert "never happened: preempt" in (finding.warnings if passes else finding.failures)


def test_a_run_without_a_result_fails(made: Make) -> None:
    clean = read(made("clean", lines(1)))
    finding = judge(ONCE, Ran(-9), read(Path("nowhere")), clean, Path("nowhere"))
    assert finding.failures[0] == "came to no result (exit code -9)"
    assert table.cells(finding.to_json())[1:3] == ("FAILED", "-")


@pytest.mark.parametrize("strict", [False, True])
def test_a_run_that_began_anew_is_warned_of(made: Make, strict: bool) -> None:
    metrics = [*lines(1, 25), *lines(1, 40, attempt=1)]
    finding = found(made, Ran(0), strict=strict, metrics=metrics)
    told = finding.failures if strict else finding.warnings
    assert (finding.passed, finding.steps_lost) == (not strict, 25)
    assert told == ("all steps were lost once: begun anew",)


def test_a_scenario_that_cannot_be_is_skipped(made: Make) -> None:
    finding = found(made, Ran(skipped="the clean run told no steps"))
    assert finding.passed is None
    assert finding.warnings == ("skipped: the clean run told no steps",)


def test_the_course_of_a_clean_run(made: Make) -> None:
    assert course(read(made("a", lines(1, 40)))) == Course(40, 6.0, True)
    assert course(read(made("b", []))).steps is None


def test_the_table(made: Make) -> None:
    seconds = {"boot": 5.0, "recovery": 3.2, "lost": 0.4, "total": 18.6}
    finding = found(made, Ran(0, left=["x"]), resumed_from=[20, None], seconds=seconds)
    again = replace(finding, scenario="skipped-one", passed=None, warnings=("skipped: why",))
    shown = table.plain([finding.to_json(), again.to_json()]).splitlines()
    assert [len(re.split(r"\s{2,}", line)) for line in shown] == [len(table.HEAD)] * 3
    assert re.split(r"\s{2,}", shown[1]) == [
        *("once", "FAILED", "20, ?", "5", "equal", "+8.6 s (recovery 3, boot 3)"),
        *("1 preemption", "1"),
    ]
    told = list(table.remarks([finding.to_json()]))
    assert told[0] == "once failed: left behind: x"
    assert told[1].endswith("once")


# --- the command line -----------------------------------------------------------------------------


def test_one_that_was_drawn_can_be_chosen() -> None:
    drawn = scenarios_of({"--random": "3"}, 7)
    chosen = scenarios_of({"--random": "3", "--only": "random-2,preempted"}, 7)
    assert [scenario.name for scenario in chosen] == ["preempted", "random-2"]
    assert chosen[1] in drawn


def test_what_a_rehearsal_decides_itself_is_dropped() -> None:
    words = ["cluster=v4-8", "provider=google", "+provider.project=p", "keep=true", "mode.slices=2"]
    assert own_words([*words, "workload.checkpoint_dir=gs://b"]) == (
        ["cluster=v4-8", "mode.slices=2"],
        ["provider=google", "+provider.project=p", "keep=true", "workload.checkpoint_dir=gs://b"],
    )


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"--only": "nope"}, "no scenario 'nope'"),
        ({"--random": "2", "--only": "random-3"}, "no scenario 'random-3'"),
        ({"--only": "random-3"}, "--random N --seed S draws it"),
        ({"--random": "x"}, "--random: must be a whole number, not 'x'"),
        ({"--tolerance": "2"}, "a number from 0 to 1"),
        ({"--faults": "none.yaml"}, "no file of scenarios"),
        ({"--faults": "far.yaml"}, "x: preempt: no slice 7, the run has 1"),
        ({"--faults": "far.yaml"}, "x: kill-host: no worker 9, a slice has 1"),
        ({}, "already|exists"),
    ],
)
def test_nothing_is_begun_when_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    deeds = "[{do: preempt, slice: 7}, {do: kill-host, worker: 9}]"
    (tmp_path / "far.yaml").write_text(f"- {{name: x, deeds: {deeds}}}")
    with pytest.raises(ConfigError, match=told):
        rehearse(Arguments(overrides=["cluster=v4-8", "name=taken"], values=values))
    assert CLEAN not in {path.name for path in (tmp_path / "runs" / "taken").iterdir()}
