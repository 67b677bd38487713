"""Evidence → Verdict: how an attempt ended and whose fault it was. A pure function.

No budget is charged before the evidence is in: what a host lost, or a notice, explains is never the
program's fault, and what one process did of itself is never its peers'. The rules are asked in
turn, the first that knows decides:

    refused      nothing was started
    succeeded    every process ended with code 0, and nobody had told them to leave
    cancelled    the user stopped it, whatever else went on
    program      its own error, which no loss explains
    lost         slices or hosts went (`losses`)
    headless     the Ray head went, and the attempt was stopped
    resized      the launcher itself ended it, for another on more slices
    failed       one process failed of itself (`blame`)
    hung         nothing moved
    apart        all speak of others: one left early, never came, or the network broke
    stopped      all were told to leave, and whoever told them has died before it said why
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.codec import from_json, to_json
from launcher.errors import Reason
from launcher.hosts.member import LEFT_EARLY, Ending, Member, Place, member_text
from launcher.judging import blame, losses
from launcher.judging.blame import Death
from launcher.judging.evidence import Earlier, Evidence
from launcher.judging.losses import Sign
from launcher.judging.outcome import POLICIES, Budget, Outcome, Policy, Repair
from launcher.judging.signatures import MEANINGS, Kind, last_words
from launcher.providers import reasons

__all__ = ["Budget", "Evidence", "Outcome", "Policy", "Repair", "Verdict", "judge", "replay"]

# Machines in a row that are lost at one step of one process before the program is at fault.
SAME_LIMIT = 3
SHOWN = 3  # members in a summary


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an attempt, and why.

    `summary` is one sentence. `cause` is the ending that came first in truth, None when no process
    ended so; `collateral` are the processes that it took along. `code` is the workload's own exit
    code, 128+n for a signal, 0 where it did not fail of itself. `slices` must be replaced when the
    repair says so. `retriable`: whether another attempt can end better.
    """

    outcome: Outcome
    summary: str
    cause: Ending | None = None
    code: int = 0
    collateral: tuple[Member, ...] = ()
    slices: tuple[int, ...] = ()
    retriable: bool = False

    @property
    def budget(self) -> Budget:
        return POLICIES[self.outcome].budget

    @property
    def repair(self) -> Repair:
        return POLICIES[self.outcome].repair


@dataclass(frozen=True, slots=True)
class Facts:
    """The evidence, and what is read from it once, by place and by weight."""

    evidence: Evidence
    deaths: Sequence[Death]
    signs: Sequence[Sign]


Finding = tuple[Outcome, str, Ending | None, Iterable[int]]
"""Outcome, summary, cause, and the slices to replace."""


def judge(evidence: Evidence) -> Verdict:
    """The verdict on an attempt. The order of the endings, signs and hosts does not matter."""
    facts = Facts(evidence, blame.deaths(evidence), losses.signs(evidence))
    for rule in RULES:
        if finding := rule(facts):
            return _verdict(facts, *_seen_before(facts, finding))
    return _verdict(
        facts, Outcome.CANCELLED, "stopped before its end, though nothing failed", None, ()
    )


def _verdict(
    facts: Facts, outcome: Outcome, summary: str, cause: Ending | None, slices: Iterable[int]
) -> Verdict:
    return Verdict(
        outcome,
        " ".join(summary.splitlines()),
        cause,
        _own_code(outcome, cause),
        tuple(d.ending.member for d in facts.deaths if d.ending.code != 0 and not _is(d, cause)),
        tuple(sorted(set(slices))),
        _is_retriable(facts.evidence, outcome),
    )


def _is_retriable(evidence: Evidence, outcome: Outcome) -> bool:
    """As the table says; of what was refused, the reason tells whether it passes."""
    if outcome is Outcome.REFUSED and evidence.refused:
        return reasons.POLICIES[evidence.refused.reason].later
    return POLICIES[outcome].again


def _is(death: Death, cause: Ending | None) -> bool:
    return cause is not None and death.ending.member == cause.member


# The workload's own code is told only where it is its own; a hang's is the launcher's signal.
_OWN_CODE = {o for o, p in POLICIES.items() if p.budget is Budget.FAILURES} - {Outcome.HANG}


def _own_code(outcome: Outcome, cause: Ending | None) -> int:
    if outcome not in _OWN_CODE or cause is None:
        return 0
    if cause.collateral:  # it had raised before the launcher's signal
        return 1
    if cause.code == 0:  # it left its peers, that was its failure
        return LEFT_EARLY
    code = -9 if cause.code is None else cause.code
    return code if code >= 0 else 128 - code


def _refused(facts: Facts) -> Finding | None:
    refused = facts.evidence.refused
    if refused is None:
        return None
    outcome = REFUSALS.get(refused.reason, Outcome.REFUSED)
    return outcome, f"no slices ({refused.reason}): {refused.message}", None, ()


REFUSALS: Mapping[Reason, Outcome] = {
    Reason.STOCKOUT: Outcome.STOCKOUT,
    Reason.RESERVATION: Outcome.STOCKOUT,
    Reason.DEADLINE: Outcome.STOCKOUT,
    Reason.LOST: Outcome.PREEMPTED,
}


def _succeeded(facts: Facts) -> Finding | None:
    """All ended well. What was told to leave may have saved and left with 0 long before its end."""
    endings, evidence = facts.evidence.endings, facts.evidence
    if not endings or any(e.code != 0 or e.collateral for e in endings) or evidence.hang:
        return None
    last = max(e.time for e in endings)
    cut = evidence.cancelled and evidence.cancelled.time < last
    told = any(s.meaning.orderly and (s.time is None or s.time <= last) for s in facts.signs)
    if cut or told:
        return None
    return Outcome.SUCCEEDED, "every process ended with exit code 0", None, ()


def _cancelled(facts: Facts) -> Finding | None:
    cancelled = facts.evidence.cancelled
    if cancelled is None:
        return None
    before = blame.cause(facts.deaths)
    also = f"; before that {facts.signs[0]}" if facts.signs else ""
    if before and before.ending.time < cancelled.time and not also:
        also = f"; before that {_died(before)}"
    return Outcome.CANCELLED, f"stopped by the user ({cancelled.by}){also}", None, ()


def _program(facts: Facts) -> Finding | None:
    """Errors that no lost host explains, though there is a sign of one.

    Code that cannot be imported; the same own error in every process; or an own error beside mere
    announcements.
    """
    if not facts.signs:
        return None
    imports = [d for d in blame.failures(facts.deaths) if d.kind is Kind.IMPORT_ERROR]
    firm = any(s.meaning.firm for s in facts.signs)
    found = blame.earliest(imports)
    if not found and (not firm or blame.agrees(facts.deaths)):
        found = blame.earliest(blame.failed_alone(facts.deaths))
    return _fault(facts, found) if found and found.is_own else None


def _lost(facts: Facts) -> Finding | None:
    if not facts.signs:
        return None
    sign = facts.signs[0]
    gone = {s.slice for s in facts.signs}
    cause = _first_of(facts, sign)
    summary = str(sign)
    if sign.meaning.outcome is Outcome.HOST_LOST and sign.place:
        state = facts.evidence.node_states.get(sign.slice)
        summary += f"; its node is {state}" if state else "; the API said nothing of its node"
    return sign.meaning.outcome, summary, cause, gone


def _first_of(facts: Facts, sign: Sign) -> Ending | None:
    """The ending that stands for a loss: of its host, else of its slice, else of any."""
    bad = [d.ending for d in facts.deaths if d.ending.code != 0]
    lost = [e for e in bad if e.code is None]
    nearby = [e for e in bad if e.member.place == sign.place]
    slice_ = [e for e in bad if e.member.slice == sign.slice]
    gone = [e for e in lost if e.member.slice == sign.slice]
    for group in (nearby, gone, lost, slice_, bad):
        if group:
            return min(group, key=lambda e: (e.time, e.member))
    return None


def _resized(facts: Facts) -> Finding | None:
    """All left because the launcher told them to, or were done."""
    evidence = facts.evidence
    if not evidence.recall or any(e.code != 0 and not e.collateral for e in evidence.endings):
        return None
    return Outcome.RESIZED, evidence.recall, None, ()


def _headless(facts: Facts) -> Finding | None:
    if not facts.evidence.head_lost:
        return None
    return Outcome.HEAD_LOST, facts.evidence.head_lost, None, ()


def _failed(facts: Facts) -> Finding | None:
    death = blame.cause(facts.deaths)
    return _fault(facts, death) if death else None


# What a text of its own makes of a failed process; all else is the program's failure.
KINDS: Mapping[Kind, Outcome] = {
    Kind.HBM: Outcome.OUT_OF_MEMORY,
    Kind.HOST_MEMORY: Outcome.OUT_OF_MEMORY,
    Kind.NO_SPACE: Outcome.NO_SPACE,
    Kind.DEVICE_BUSY: Outcome.LEFTOVER,
    Kind.NO_DEVICE: Outcome.BAD_HOST,
    Kind.NETWORK: Outcome.NETWORK,
}
SYMPTOMS: Mapping[str, Outcome] = {
    "HBM_OUT_OF_MEMORY": Outcome.OUT_OF_MEMORY,
    "MESH_BUILD_FAIL": Outcome.BAD_HOST,
}


def _fault(facts: Facts, death: Death) -> Finding:
    """One process failed of itself: what of."""
    outcome = Outcome.OUT_OF_MEMORY if death.starved else _outcome_of(facts, death)
    slices = {death.ending.member.slice} if POLICIES[outcome].repair is Repair.SLICES else ()
    return outcome, _died(death), death.ending, slices


def _outcome_of(facts: Facts, death: Death) -> Outcome:
    if death.kind is Kind.NO_DEVICE and _everywhere(facts, Kind.NO_DEVICE):
        return Outcome.WORKLOAD_FAILED  # not one bad host: a wrong runtime version, say
    if death.kind and death.kind in KINDS:
        return KINDS[death.kind]
    symptoms = (s.kind for s in facts.evidence.symptoms if s.slice == death.ending.member.slice)
    told = (SYMPTOMS[kind] for kind in symptoms if kind in SYMPTOMS and death.kind is None)
    return min(told, default=Outcome.WORKLOAD_FAILED)


def _everywhere(facts: Facts, kind: Kind) -> bool:
    """Whether hosts of several places failed with this, and none failed otherwise."""
    failed = blame.failures(facts.deaths)
    places = {d.ending.member.place for d in failed}
    return len(places) > 1 and all(d.kind is kind for d in failed)


def _died(death: Death) -> str:
    """A process's own failure in words."""
    member, reason = death.ending.member, death.ending.reason
    if death.starved:
        return f"{member} failed first: {reason}, since its host ran out of memory"
    signature = death.signature
    if signature is None:
        words = last_words(death.ending.tail)
        return f"{member} failed first: {reason}" + (f"; its last line: {words}" if words else "")
    return f"{member} failed first: {reason}; it {MEANINGS[signature.kind]}: {signature.text}"


def _hung(facts: Facts) -> Finding | None:
    hang = facts.evidence.hang
    if hang is None:
        return None
    step = "no step at all" if hang.step is None else f"no step after {hang.step}"
    some = 0 < len(hang.members) < len(facts.deaths)  # else nobody stands out
    who = f"; silent: {_names(hang.members)}" if some else ""
    cause = _ending_of(facts, min(hang.members)) if some else None
    return Outcome.HANG, f"{step} and no output{who}", cause, ()


def _apart(facts: Facts) -> Finding | None:
    """All that failed speak of others, and every host and slice is there."""
    failed = blame.failures(facts.deaths)
    if not failed:
        return None
    death, left = blame.named(facts.deaths)
    if death and left:
        summary = f"{death.ending.member} left before its peers: {death.ending.reason}"
        return Outcome.WORKLOAD_FAILED, summary, death.ending, ()
    late = [death.ending.member] if death else blame.quiet(facts.deaths)
    first = blame.earliest(failed)
    assert first is not None
    assert first.signature is not None
    if late and first.kind is Kind.COORDINATION:
        summary = f"{_names(late)} did not answer its peers: {first.signature.text}"
        return Outcome.HANG, summary, _ending_of(facts, min(late)), ()
    summary = (
        f"{first.ending.member} {MEANINGS[first.signature.kind]}, though no process failed of"
        f" itself and every host is there: {first.signature.text}"
    )
    return Outcome.NETWORK, summary, first.ending, ()


def _stopped(facts: Facts) -> Finding | None:
    """Of a launcher that took the attempt up while its processes saved and left."""
    endings = facts.evidence.endings
    told = [e for e in endings if e.collateral]
    if not told or any(e.code != 0 and not e.collateral for e in endings):
        return None
    first = min(told, key=lambda e: (e.time, e.member))
    return Outcome.STOPPED, f"told to leave by no launcher that is left: {first.reason}", None, ()


def _ending_of(facts: Facts, member: Member) -> Ending | None:
    return next((d.ending for d in facts.deaths if d.ending.member == member), None)


def _names(members: Iterable[Member]) -> str:
    ordered = sorted(members)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(map(str, ordered[:SHOWN])) + more


RULES: Sequence[Callable[[Facts], Finding | None]] = (
    _refused,
    _succeeded,
    _cancelled,
    _program,
    _lost,
    _headless,
    _resized,
    _failed,
    _hung,
    _apart,
    _stopped,
)

_BROKE = frozenset({Outcome.HOST_LOST, Outcome.BAD_HOST, Outcome.LEFTOVER})


def _seen_before(facts: Facts, finding: Finding) -> Finding:
    """What the history of the same host changes: a machine that fails twice is bad."""
    outcome, summary, cause, slices = finding
    if cause is None or not facts.evidence.earlier:
        return finding
    place = cause.member.place
    here = [e for e in facts.evidence.earlier if e.place == place]
    if outcome is Outcome.HOST_LOST and _kills_its_host(facts, here):
        return Outcome.WORKLOAD_FAILED, f"{summary}; each time at this step", cause, slices
    if not _is_bad(facts, outcome, cause, here):
        return finding
    return Outcome.BAD_HOST, f"{summary}; this machine failed before", cause, {place[0], *slices}


def _is_bad(facts: Facts, outcome: Outcome, cause: Ending, here: Sequence[Earlier]) -> bool:
    created = facts.evidence.created.get(cause.member.slice, "")
    same = [e for e in here if e.created == created]
    if outcome in (Outcome.HOST_LOST, Outcome.LEFTOVER):
        return any(e.outcome in _BROKE for e in same)
    if outcome is not Outcome.WORKLOAD_FAILED or cause.code not in blame.CRASHES:
        return False
    code = _own_code(outcome, cause)
    crashed = [e for e in here if e.code == code]
    return bool(crashed) and all(e.created == created for e in crashed)


def _kills_its_host(facts: Facts, here: Sequence[Earlier]) -> bool:
    """Lost at the same step on one machine after another: the program does it."""
    step, last = facts.evidence.step, facts.evidence.earlier[-(SAME_LIMIT - 1) :]
    return (
        step is not None
        and len(last) == SAME_LIMIT - 1
        and all(e in here and e.step == step and e.outcome in _BROKE for e in last)
        and len({e.created for e in last}) == len(last)
    )


def in_short(attempt: int, evidence: Evidence, verdict: Verdict, unsure: bool = False) -> Earlier:
    """What the evidence of later attempts keeps of this one."""
    place: Place | None = verdict.cause.member.place if verdict.cause else None
    created = evidence.created.get(place[0], "") if place else ""
    return Earlier(
        attempt,
        verdict.outcome.value,
        place,
        created,
        verdict.code,
        evidence.step,
        evidence.moment,
        unsure,
    )


def record(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    """What `verdicts/attempt-N.json` holds: the judgement together with all it was made of."""
    return {
        "outcome": verdict.outcome.value,
        "summary": verdict.summary,
        "cause": member_text(verdict.cause.member) if verdict.cause else None,
        "code": verdict.code,
        "collateral": [member_text(member) for member in verdict.collateral],
        "budget": verdict.budget.value,
        "repair": verdict.repair.value,
        "slices": list(verdict.slices),
        "retriable": verdict.retriable,
        "evidence": to_json(evidence),
    }


def replay(path: Path) -> Verdict:
    """Judge the evidence of a verdict's file again. Raises ValueError, with the file's name."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if not isinstance(content, dict) or "evidence" not in content:
            raise ValueError("it holds no evidence")
        return judge(from_json(Evidence, content["evidence"]))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
