"""Every second of a run in one phase, on a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.attempts.timeline import PHASES, Timeline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_preempted_run_keeps_what_its_checkpoint_held() -> None:
    clock = Clock()
    line = Timeline(clock)

    def spend(phase: str, seconds: float) -> None:
        line.enter(phase)
        clock.now += seconds

    spend("create", 5)
    spend("boot", 3)
    line.begin_attempt()
    clock.now += 2  # init
    line.output()
    clock.now += 1  # a program that reports steps was still starting up
    for step in range(10):
        line.step(step)
        clock.now += 1
    spend("recovery", 4)
    line.begin_attempt()
    line.resume(5)
    clock.now += 2
    for step in range(6, 12):
        line.step(step)
        clock.now += 1
    spend("teardown", 1)
    seconds = line.seconds()
    assert seconds["init"] == 5
    assert seconds["lost"] == 5  # after step 5 was done, five seconds until the end
    assert seconds["productive"] == 5 + 6
    assert seconds["total"] == clock.now - 100
    assert line.goodput() == pytest.approx(11 / seconds["total"], abs=1e-4)


def test_what_is_done_after_a_notice_is_part_of_the_stop() -> None:
    """The steps of the grace are kept by its save, so that nothing of them is lost."""
    clock = Clock()
    line = Timeline(clock)
    line.begin_attempt()
    for step in range(5):
        clock.now += 1
        line.step(step)
    clock.now += 1
    line.enter("recovery")  # the notice
    for step in range(5, 9):
        clock.now += 1
        line.step(step)
    clock.now += 2  # the evidence
    line.begin_attempt()
    line.resume(8)
    seconds = line.seconds()
    assert (seconds["init"], seconds["productive"], seconds["lost"]) == (1, 5, 0)
    assert seconds["recovery"] == 6


def test_a_first_step_after_a_notice_does_not_end_the_stop() -> None:
    clock = Clock()
    line = Timeline(clock)
    line.begin_attempt()
    clock.now += 3
    line.enter("recovery")
    clock.now += 1
    line.step(1)
    clock.now += 1
    line.begin_attempt()
    line.resume(1)
    seconds = line.seconds()
    assert (seconds["init"], seconds["recovery"]) == (3, 2)
    assert seconds["productive"] == seconds["lost"] == 0


def test_a_program_without_steps_is_at_work_from_its_first_output() -> None:
    clock = Clock()
    line = Timeline(clock)
    line.begin_attempt()
    clock.now += 2
    line.output()
    clock.now += 3
    assert line.seconds()["productive"] == 3
    line.begin_attempt()
    line.resume(None)
    assert (line.seconds()["productive"], line.seconds()["lost"]) == (0, 3)


ACTS = st.lists(
    st.tuples(
        st.sampled_from([*PHASES, "begin", "output", "step", "resume", "none"]),
        st.floats(0, 100),
        st.integers(0, 50),
    )
)


@given(ACTS)
@example([("step", 0.0, 0), ("step", 1.0, 0), ("resume", 0.0, 0)])  # nothing went before
def test_the_phases_add_up_and_none_is_negative(acts: list[tuple[str, float, int]]) -> None:
    clock = Clock()
    line = Timeline(clock)
    for act, seconds, step in acts:
        clock.now += seconds
        match act:
            case "begin":
                line.begin_attempt()
            case "output":
                line.output()
            case "step":
                line.step(step)
            case "resume":
                line.resume(step)
            case "none":
                line.resume(None)
            case _:
                line.enter(act)
    found = line.seconds()
    total = found.pop("total")
    assert sum(found.values()) == pytest.approx(total, abs=0.02)
    assert all(value >= -0.001 for value in found.values())
