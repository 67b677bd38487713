"""The words of the API's errors, as people have reported them, and what each means."""

from __future__ import annotations

import pytest

from launcher.errors import Reason
from launcher.providers.reasons import POLICIES, classify

REPORTED = [
    (
        8,
        'There is no more capacity in the zone "us-central1-c"; you can try in another zone where'
        " Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)"
        " [EID: 0x9f48947a7d57c8d]",
        Reason.STOCKOUT,
    ),
    (
        9,
        "Insufficient reserved capacity. Contact customer support to increase your reservation.",
        Reason.RESERVATION,
    ),
    (8, "Insufficient reserved capacity. Contact customer support …", Reason.RESERVATION),
    (
        8,
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded."
        " Limit: 0 in region us-east5.",
        Reason.QUOTA,
    ),
    (8, "Quota 'TPUV5s' exhausted. Limit 32 in zone europe-west4-a", Reason.QUOTA),
    (8, "Maximum number of CreateNode requests per minute exceeded", Reason.RATE),
    (
        3,
        "Cloud TPU received a bad request. The requested accelerator configuration for accelerator"
        ' type, "v6e-1", could not be found in the zonal accelerator configurations for'
        ' "asia-east1-a".; the accelerator v6e-1 was not found in zone asia-east1-a',
        Reason.NOT_IN_ZONE,
    ),
    (
        3,
        'CloudTpu received an invalid AcceleratorType, "v3-8" for zone "us-central1-c". Valid'
        ' values are "v2-8, ".',
        Reason.NOT_IN_ZONE,
    ),
    (
        3,
        "Cloud TPU received a bad request. the node was preempted while it was being created",
        Reason.LOST,
    ),
    (3, "resource labels are invalid: value …", Reason.BAD_REQUEST),
    (
        7,
        "Permission denied on 'locations/us-central2-b' (or it may not exist).",
        Reason.PERMISSION,
    ),
    (7, "Permission 'tpu.nodes.create' denied on …", Reason.PERMISSION),
    (6, "Resource '…' already exists", Reason.TAKEN),
    (13, "an internal error has occurred", Reason.INTERNAL),
    (14, "The service is currently unavailable.", Reason.INTERNAL),
    (99, "a code of tomorrow", Reason.INTERNAL),
]


@pytest.mark.parametrize(("code", "message", "reason"), REPORTED)
def test_reported_errors(code: int, message: str, reason: Reason) -> None:
    assert classify(code, message) is reason


def test_every_reason_has_a_policy() -> None:
    assert set(POLICIES) == set(Reason)


def test_only_what_can_get_better_is_asked_for_again() -> None:
    final = {Reason.QUOTA, Reason.PERMISSION, Reason.NOT_IN_ZONE, Reason.BAD_REQUEST, Reason.TAKEN}
    assert {reason for reason, policy in POLICIES.items() if not policy.later} == final
