"""Why a request came to nothing, told from the code and the words of the API's error. Pure.

Code 8 has four meanings and code 3 three, so that the words decide; what each reason means for the
fallback chain is one table. Texts: googleapis' answers as quoted in terraform-provider-google#21243
(stockout, type not in zone), marin#1612 (quota), marin#6198 (rate) and skypilot#4579 (reservation).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import Reason


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows: `again` at once with the same offer, after a pause, so many times; `later`,
    in another round of the chain. What is neither is not asked for any more.
    """

    again: int = 0
    later: bool = False
    hint: str = ""


POLICIES: Mapping[Reason, Policy] = {
    Reason.STOCKOUT: Policy(later=True),
    Reason.RESERVATION: Policy(later=True, hint="the reservation is in use or too small"),
    Reason.LOST: Policy(later=True),
    Reason.DEADLINE: Policy(later=True),
    Reason.RATE: Policy(again=5, later=True),
    Reason.INTERNAL: Policy(again=3, later=True),
    Reason.QUOTA: Policy(
        hint="ask for more in the console (IAM & Admin, Quotas), or free what is held:"
        " `python -m launcher gc` shows leftovers, which count as well"
    ),
    Reason.PERMISSION: Policy(hint="`python -m launcher doctor` tells which permission is missing"),
    Reason.NOT_IN_ZONE: Policy(hint="cluster.zone=any tries every zone that offers the type"),
    Reason.BAD_REQUEST: Policy(),
    Reason.TAKEN: Policy(),
}

# (code, pattern, reason): the first that fits. An empty pattern fits every text.
_TABLE: tuple[tuple[int, str, Reason], ...] = (
    (8, r"reserved capacity|reservation", Reason.RESERVATION),
    (8, r"per minute|qps|rate limit|too many requests", Reason.RATE),
    (8, r"quota|limit:? ", Reason.QUOTA),
    (8, r"", Reason.STOCKOUT),
    (9, r"reserved capacity|reservation", Reason.RESERVATION),
    (4, r"", Reason.DEADLINE),  # such as the end of a queued resource's validity
    (3, r"preempted", Reason.LOST),
    (3, r"not found in zone|zonal accelerator|invalid AcceleratorType", Reason.NOT_IN_ZONE),
    (3, r"", Reason.BAD_REQUEST),
    (5, r"", Reason.BAD_REQUEST),
    (9, r"", Reason.BAD_REQUEST),
    (11, r"", Reason.BAD_REQUEST),
    (12, r"", Reason.BAD_REQUEST),
    (7, r"", Reason.PERMISSION),
    (16, r"", Reason.PERMISSION),
    (6, r"", Reason.TAKEN),
)


def classify(code: int, message: str) -> Reason:
    """The reason for a gRPC status code and its message; INTERNAL for what passes by itself."""
    for known, pattern, reason in _TABLE:
        if code == known and re.search(pattern, message, re.IGNORECASE):
            return reason
    return Reason.INTERNAL
