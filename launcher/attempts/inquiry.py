"""Gathers the evidence of how an attempt ended: what the gang saw, and what the API says."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.attempts.account import Account
from launcher.attempts.gang import Report
from launcher.errors import ProvisioningError
from launcher.judging import herald
from launcher.judging.evidence import Evidence, Queued, Symptom
from launcher.judging.verdict import Budget, Outcome, judge
from launcher.providers import KINDS, Provider, Resource
from launcher.providers.states import GONE
from launcher.provisioning.capacity import CAPACITIES
from launcher.provisioning.provision import Joined
from launcher.session import Session

LOOK_SECONDS = 0.1  # between looks at the API, growing
LONGEST_LOOK_SECONDS = 5.0
MOST_LOOKS = 16  # at a time
# From its end, for a lost host to turn out as preempted: it is replaced in any case. A preemption
# takes all hosts of a slice, and what it takes to get another one is much more than this.
NAMING_SECONDS, NAMING_WHOLE_SECONDS = 0.2, 2.0

Look = Callable[[], Mapping[str, Any]]


def inquire(session: Session, joined: Joined, report: Report, account: Account) -> Evidence:
    """All that can be known of an attempt that has ended, before what follows is decided.

    Every process that ended well is not asked about, unless its slice may be taken back at any
    time: a program that saves at the system's SIGTERM ends well, too.
    """
    known = Evidence(
        report.endings,
        hosts=report.hosts,
        notices=report.notices,
        hang=report.hang,
        recall=report.recall,
        stopped_at=report.stopped_at,
        head_lost=report.head_lost,
        step=account.step,
        earlier=account.earlier,
    )
    well = all(ending.code == 0 for ending in report.endings) and not report.head_lost
    if well and not CAPACITIES[joined.choice.offer.capacity].taken_back:
        return known
    session.screen.wait("asking what became of the slices")
    evidence = with_news(session, known, look_of(session, joined), account)
    session.screen.wait("")
    return evidence


def with_news(session: Session, known: Evidence, look: Look, account: Account) -> Evidence:
    """Look until nothing that news may tell would change what follows, or it must have come.

    What one look has told stays known when the next one is not answered.
    """
    began, delay = time.monotonic(), LOOK_SECONDS
    while True:
        waited = time.monotonic() - began
        known = dataclasses.replace(known, window=round(waited, 3), **look())
        left = patience(session, known, account, waited)
        if left <= 0:
            return known
        session.interrupt.pause(min(delay, left))
        delay = min(1.5 * delay, LONGEST_LOOK_SECONDS)


def patience(session: Session, evidence: Evidence, account: Account, waited: float) -> float:
    """How many seconds more to wait for news.

    The API can lag behind the death of a host. That is waited for only where it decides whether the
    run ends: else it goes on with what it knows, and mends the charge later (`herald`).
    """
    judged, window = judge(evidence), news_seconds(session)
    if judged.outcome is Outcome.HOST_LOST:
        naming = NAMING_WHOLE_SECONDS if is_whole(evidence, judged.slices) else NAMING_SECONDS
        return evidence.moment + naming - time.time()
    charged = judged.budget is Budget.FAILURES
    doubtful = charged and (herald.is_unsure(judged) or herald.in_doubt(evidence, window))
    return window - waited if doubtful and account.budget.stops(judged, evidence.step) else 0.0


def is_whole(evidence: Evidence, slices: Collection[int]) -> bool:
    """Whether no host of these slices is known to live."""
    hosts = [host for host in evidence.hosts if host.place[0] in slices]
    return all(host.alive is False for host in hosts)


def news_seconds(session: Session) -> float:
    return KINDS[session.spec.provider.kind].news_seconds


def look_of(session: Session, joined: Joined) -> Look:
    """How to ask: the API, or the cluster that the slices were borrowed of."""
    if states := joined.states:
        return lambda: {"node_states": states()}
    provider = session.provider.get()
    return lambda: look(provider, joined)


def look(provider: Provider, joined: Joined) -> dict[str, Any]:
    """Fields of the evidence. What the API does not tell, since it is away, is left out."""
    requests, names = joined.choice.requests, joined.choice.node_names
    nodes_of = {request.name: request.nodes for request in requests if request.queued}
    try:
        with ThreadPoolExecutor(MOST_LOOKS) as pool:
            found = list(pool.map(provider.get, (*names, *nodes_of)))
    except ProvisioningError:
        return {}
    nodes, queued = dict(enumerate(found[: len(names)])), found[len(names) :]
    there = {index: node for index, node in nodes.items() if node}
    return {
        "node_states": {index: node.raw_state if node else GONE for index, node in nodes.items()},
        "health": {index: node.health for index, node in there.items() if node.health},
        "created": {index: node.created for index, node in there.items()},
        "symptoms": [
            Symptom(index, kind, int(worker) if worker.isdecimal() else None, details)
            for index, node in there.items()
            for kind, worker, details in node.symptoms
        ],
        "queued": [
            queued_of(resource, [joined.choice.nodes.index(node) for node in own])
            for resource, own in zip(queued, nodes_of.values(), strict=True)
        ],
    }


def queued_of(resource: Resource | None, slices: Iterable[int]) -> Queued:
    if resource is None:
        return Queued(GONE, tuple(slices))
    code, error = resource.error or (None, "")
    return Queued(resource.raw_state, tuple(slices), code, error)
