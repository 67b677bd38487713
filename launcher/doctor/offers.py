"""Checks that the zones offer what is asked for: the accelerator type and the runtime version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from google.api_core import exceptions

from launcher.config.nearest import nearest_hint
from launcher.doctor.answers import is_disabled
from launcher.doctor.context import CALL_SECONDS, Context
from launcher.doctor.findings import Finding, Outcome, by_place, ok, problem, warning

AT_ONCE = 8


def types(context: Context) -> Iterator[Finding]:
    """Every pair of type and zone of the chain."""
    tpu = context.cloud.tpu
    wanted = [(o.zone, o.accelerator.accelerator_type) for o in context.spec.cluster.offers]

    def listed(parent: str) -> list[str]:
        found = tpu.list_accelerator_types(parent=parent, timeout=CALL_SECONDS)
        return [each.type_ or each.name.rpartition("/")[2] for each in found]

    yield from compare(context, list(dict.fromkeys(wanted)), listed, "cluster.zone=any tries all")


def runtime_versions(context: Context) -> Iterator[Finding]:
    tpu = context.cloud.tpu
    wanted = [(offer.zone, offer.runtime_version) for offer in context.spec.cluster.offers]

    def listed(parent: str) -> list[str]:
        found = tpu.list_runtime_versions(parent=parent, timeout=CALL_SECONDS)
        return [each.version or each.name.rpartition("/")[2] for each in found]

    mend = "cluster.runtime_version=null takes the type's own"
    yield from compare(context, list(dict.fromkeys(wanted)), listed, mend)


def compare(
    context: Context,
    wanted: Sequence[tuple[str, str]],
    listed: Callable[[str], list[str]],
    mend: str,
) -> Iterator[Finding]:
    """What is wanted in each zone against what is listed there.

    As long as one zone has it, what others lack is no more than a warning: they are passed over.
    """
    project = context.cloud.project

    def look(zone: str) -> list[str] | exceptions.GoogleAPICallError:
        try:
            return listed(f"projects/{project}/locations/{zone}")
        except exceptions.GoogleAPICallError as error:
            return error

    zones = list(dict.fromkeys(zone for zone, _ in wanted))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        known = dict(zip(zones, pool.map(look, zones), strict=True))
    found = [(zone, judge(name, known[zone], mend)) for zone, name in wanted]
    if any(finding.outcome is Outcome.OK for _, finding in found):
        found = [(zone, softened(finding)) for zone, finding in found]
    yield from by_place(found)


def judge(name: str, known: list[str] | exceptions.GoogleAPICallError, mend: str) -> Finding:
    if isinstance(known, exceptions.GoogleAPICallError):
        if not is_shut(known):
            raise known
        locations = "gcloud compute tpus locations list"
        return problem(f"{known.message} No TPUs for you", locations)
    if name in known:
        return ok(f"{name} is offered")
    hint = nearest_hint(name, known)
    return problem(f"{name} is not offered", *filter(None, (hint, mend)))


def is_shut(error: exceptions.GoogleAPICallError) -> bool:
    """Whether the zone has no TPUs for this project, which a disabled API says nothing of."""
    refused = isinstance(error, exceptions.Forbidden | exceptions.NotFound)
    return refused and not is_disabled(error)


def softened(finding: Finding) -> Finding:
    bad = finding.outcome is Outcome.PROBLEM
    return warning(finding.text, *finding.mend) if bad else finding
