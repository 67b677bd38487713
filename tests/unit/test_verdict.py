"""Verdicts: labelled cases from the field, and what holds of all evidence.

Each file under `data/verdicts/` is one case: a title, its source (an issue, or `own`), the evidence
and the verdict that is expected. `"tail": "@name"` stands for the text in `data/tails/name.txt`,
and a reason that the code says is left out.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.codec import from_json, to_json
from launcher.errors import Reason
from launcher.hosts.member import Ending, Member, describe, member_text
from launcher.judging.evidence import (
    Cancelled,
    Earlier,
    Evidence,
    Hang,
    Host,
    Notice,
    Queued,
    Refusal,
    Symptom,
    Told,
)
from launcher.judging.outcome import POLICIES, Budget, Outcome, Repair
from launcher.judging.verdict import in_short, judge, record, replay

DATA = Path(__file__).parent / "data"
CASES = sorted((DATA / "verdicts").glob("*.json"))


def load(path: Path) -> tuple[Evidence, dict[str, Any]]:
    case = json.loads(path.read_text("utf-8"))
    for ending in case["evidence"].get("endings", ()):
        ending.setdefault("reason", describe(ending["code"] or 0))
        if ending.get("tail", "").startswith("@"):
            ending["tail"] = (DATA / "tails" / f"{ending['tail'][1:]}.txt").read_text("utf-8")
    return from_json(Evidence, case["evidence"]), case["expect"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    evidence, expect = load(path)
    verdict = record(evidence, judge(evidence))
    assert {key: verdict[key] for key in expect} == expect, verdict["summary"]


def test_cases_cover_every_outcome() -> None:
    counts = Counter(load(path)[1]["outcome"] for path in CASES)
    assert set(counts) == {outcome.value for outcome in Outcome}
    assert len(CASES) >= 45


def test_cases_carry_their_source() -> None:
    for path in CASES:
        case = json.loads(path.read_text("utf-8"))
        assert case["title"], path
        assert case["source"] == "own" or "#" in case["source"], path


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_order_of_arrival_does_not_matter(path: Path) -> None:
    evidence, _ = load(path)
    for seed in range(6):
        assert judge(shuffled(evidence, random.Random(seed))) == judge(evidence)


def shuffled(evidence: Evidence, chance: random.Random) -> Evidence:
    """The same facts in another order; only the history has one."""

    def mix(values: Any) -> Any:
        return tuple(chance.sample(tuple(values), len(values)))

    def mix_keys(table: Any) -> Any:
        return dict(mix(table.items()))

    return dataclasses.replace(
        evidence,
        endings=mix(evidence.endings),
        hosts=mix(evidence.hosts),
        notices=mix(evidence.notices),
        queued=mix(evidence.queued),
        symptoms=mix(evidence.symptoms),
        node_states=mix_keys(evidence.node_states),
        health=mix_keys(evidence.health),
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_all_clocks_moved_together_change_nothing(path: Path) -> None:
    evidence, expect = load(path)
    moved = from_json(Evidence, _later(to_json(evidence), 86_400.0))
    verdict = record(moved, judge(moved))
    assert {key: verdict[key] for key in expect} == expect


def _later(value: Any, seconds: float) -> Any:
    times = {"time", "since", "silent_since", "broke_at", "stopped_at"}
    if isinstance(value, dict):
        return {
            key: item + seconds if key in times and item is not None else _later(item, seconds)
            for key, item in value.items()
        }
    return [_later(item, seconds) for item in value] if isinstance(value, list) else value


def test_a_summary_names_process_and_reason() -> None:
    evidence, _ = load(DATA / "verdicts" / "jax-raise-both-abort.json")
    verdict = judge(evidence)
    assert verdict.summary == (
        "s0 h1 failed first: killed by SIGABRT; it raised an exception:"
        " ValueError: bad batch at step 20"
    )
    assert verdict.collateral == (Member(0, 0),)


def test_a_summary_names_slice_host_and_state() -> None:
    summaries = {
        name: judge(load(DATA / "verdicts" / f"{name}.json")[0]).summary
        for name in (
            "m3-slice-1-lost",
            "r1-host-frozen",
            "x4-notice-exit-143",
            "c1-stop-during-preemption",
        )
    }
    assert summaries == {
        "m3-slice-1-lost": "slice 1 is PREEMPTED",
        "r1-host-frozen": "s0 h2 was lost: it fell silent; its node is READY",
        "x4-notice-exit-143": "s0 h0 had notice that it is preempted (TRUE)",
        "c1-stop-during-preemption": (
            "stopped by the user (cancel); before that slice 0 is PREEMPTED"
        ),
    }


EXIT = Ending(Member(0, 0), 1, "exit code 1", 100.0)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("CREATING", Outcome.WORKLOAD_FAILED),
        ("READY", Outcome.WORKLOAD_FAILED),
        ("RESTARTING", Outcome.WORKLOAD_FAILED),
        ("REIMAGING", Outcome.HOST_LOST),
        ("DELETING", Outcome.PREEMPTED),
        ("REPAIRING", Outcome.HOST_LOST),
        ("STOPPED", Outcome.PREEMPTED),
        ("STOPPING", Outcome.PREEMPTED),
        ("STARTING", Outcome.WORKLOAD_FAILED),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("TERMINATED", Outcome.MAINTENANCE),
        ("HIDING", Outcome.PREEMPTED),
        ("HIDDEN", Outcome.PREEMPTED),
        ("UNHIDING", Outcome.WORKLOAD_FAILED),
        ("UNKNOWN", Outcome.WORKLOAD_FAILED),
        ("STATE_UNSPECIFIED", Outcome.WORKLOAD_FAILED),
        ("GONE", Outcome.PREEMPTED),
    ],
)
def test_every_state_word_of_a_node(word: str, outcome: Outcome) -> None:
    assert judge(Evidence([EXIT], {0: word})).outcome is outcome


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("ACTIVE", Outcome.WORKLOAD_FAILED),
        ("PROVISIONING", Outcome.WORKLOAD_FAILED),
        ("SUSPENDING", Outcome.PREEMPTED),
        ("SUSPENDED", Outcome.PREEMPTED),
        ("FAILED", Outcome.PREEMPTED),
        ("DELETING", Outcome.PREEMPTED),
    ],
)
def test_every_state_word_of_a_queued_resource(word: str, outcome: Outcome) -> None:
    verdict = judge(Evidence([EXIT], {0: "READY"}, queued=[Queued(word, (0,))]))
    assert verdict.outcome is outcome


@pytest.mark.parametrize("word", ["HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", ""])
def test_other_health_words_are_no_sign(word: str) -> None:
    verdict = judge(Evidence([EXIT], {0: "READY"}, {0: word}))
    assert verdict.outcome is Outcome.WORKLOAD_FAILED


def test_every_outcome_has_a_policy() -> None:
    assert set(POLICIES) == set(Outcome)
    for policy in POLICIES.values():
        assert policy.again or policy.repair is Repair.NOTHING
        assert policy.again or policy.budget is Budget.NONE


def test_replay_of_a_written_verdict(tmp_path: Path) -> None:
    path = tmp_path / "attempt-0.json"
    for case in CASES:
        evidence, _ = load(case)
        verdict = judge(evidence)
        path.write_text(json.dumps(record(evidence, verdict)))
        assert replay(path) == verdict


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no evidence"),
        ("{", "attempt-0.json"),
        (
            '{"evidence": {"endings": [{"member": "x", "code": 1, "time": 1.0, "reason": ""}]}}',
            "'x' is no process",
        ),
        ('{"evidence": {"endings": [{"code": 1, "time": 1.0}]}}', "'member' is missing"),
        ('{"evidence": {"ending": []}}', "'ending' is none of endings"),
        (
            '{"evidence": {"endings": [{"member": "s0 h0", "code": [], "time": 1, "reason": ""}]}}',
            "[0].code",
        ),
        ('{"evidence": {"notices": [{"place": [0], "told": "preempted", "time": 1}]}}', "2 values"),
        ('{"evidence": {"node_states": {"x": "READY"}}}', "node_states"),
    ],
)
def test_replay_says_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "attempt-0.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"attempt-0\.json") as raised:
        replay(path)
    assert message in str(raised.value)


# Evidence of all shapes, sensible or not.

unhurried = settings(max_examples=50, deadline=None)
numbers = st.integers(0, 5)
times = st.floats(0, 2e9, allow_nan=False)
maybe = st.none() | times
words = st.sampled_from(["READY", "PREEMPTED", "GONE", "UNKNOWN", "REPAIRING", "HEALTHY", ""])
places = st.tuples(numbers, numbers)
members = st.builds(lambda s, h: Member(s, h), numbers, numbers) | st.builds(
    lambda s, h, p: Member(s, h, p, single=False), numbers, numbers, numbers
)
texts = st.text(max_size=40) | st.sampled_from(
    [path.read_text("utf-8") for path in sorted((DATA / "tails").glob("*.txt"))]
)
endings = st.builds(
    Ending,
    members,
    st.none() | st.integers(-31, 255),
    st.text(max_size=20),
    times,
    st.booleans(),
    texts,
)
evidences = st.builds(
    Evidence,
    endings=st.lists(endings, max_size=6, unique_by=lambda e: e.member),
    node_states=st.dictionaries(numbers, words),
    health=st.dictionaries(numbers, words),
    created=st.dictionaries(numbers, st.text(max_size=3)),
    symptoms=st.lists(
        st.builds(Symptom, numbers, st.sampled_from(["OUT_OF_MEMORY", "X"]), st.none() | numbers)
    ),
    queued=st.lists(
        st.builds(
            Queued,
            st.sampled_from(["ACTIVE", "SUSPENDED"]),
            st.lists(numbers).map(tuple),
            st.none() | numbers,
            st.text(max_size=5),
        ),
        max_size=2,
    ),
    hosts=st.lists(
        st.builds(Host, places, st.none() | st.booleans(), maybe, maybe, numbers), max_size=4
    ),
    notices=st.lists(
        st.builds(Notice, places, st.sampled_from(Told), times, st.text(max_size=5)), max_size=3
    ),
    hang=st.none() | st.builds(Hang, times, st.lists(members).map(tuple), st.none() | numbers),
    cancelled=st.none() | st.builds(Cancelled, st.sampled_from(["SIGINT", "cancel"]), times),
    refused=st.none() | st.builds(Refusal, st.sampled_from(Reason), st.text(max_size=5)),
    stopped_at=maybe,
    head_lost=st.sampled_from(["", "gone"]),
    recall=st.sampled_from(["", "2 slices in place of 1"]),
    window=times,
    step=st.none() | numbers,
    earlier=st.lists(
        st.builds(
            Earlier,
            numbers,
            st.sampled_from([o.value for o in Outcome]),
            st.none() | places,
            st.sampled_from(["", "a", "b"]),
            numbers,
            st.none() | numbers,
        ),
        max_size=3,
    ),
)


@unhurried
@given(evidences)
def test_json_there_and_back_is_exact(evidence: Evidence) -> None:
    again = from_json(Evidence, json.loads(json.dumps(to_json(evidence))))
    assert again == evidence
    assert [e.member.single for e in again.endings] == [e.member.single for e in evidence.endings]


@unhurried
@given(evidences)
def test_every_evidence_has_one_verdict(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert len(verdict.summary.splitlines()) == 1
    assert verdict.budget is POLICIES[verdict.outcome].budget
    assert json.dumps(record(evidence, verdict))
    if verdict.cause is not None:
        assert verdict.cause.member not in verdict.collateral
    if verdict.outcome is Outcome.SUCCEEDED:
        assert all(e.code == 0 and not e.collateral for e in evidence.endings)
    if verdict.budget is Budget.FAILURES and verdict.outcome is not Outcome.HANG:
        assert any(e.code != 0 for e in evidence.endings)
        assert verdict.code != 0
    in_short(0, evidence, verdict)


@unhurried
@given(evidences, st.integers(0, 2**16))
def test_any_evidence_in_any_order(evidence: Evidence, seed: int) -> None:
    assert judge(shuffled(evidence, random.Random(seed))) == judge(evidence)


@given(members)
def test_a_member_is_written_without_doubt(member: Member) -> None:
    evidence = Evidence([Ending(member, 0, "exit code 0", 1.0)])
    assert from_json(Evidence, to_json(evidence)).endings[0].member == member
    assert member_text(member).startswith(f"s{member.slice} h{member.host}")
