"""The errors that users meet, as one tree; each class carries its exit code.

    LauncherError                 1    a fault of ours
    ├── ConfigError               2    the configuration is wrong; lists every problem
    ├── ProvisioningError         3    no slices, or slices that could not be removed
    │   ├── slices.PartlyLost     3    some slices went while they were made, and others came
    │   ├── Unanswered            3    the service was away for a while, or took no more reads
    │   └── Refused               3    one request came to nothing, and why
    │       └── SliceLost         3    … since the slice was lost before its hosts could be used
    ├── ClusterError              4    hosts did not join, versions differ, dependencies
    │   ├── cluster.HostsMissing  4    some have not joined in time, though others have or might
    │   ├── fanout.HostsLost      4    agents that can be asked no more
    │   ├── coordinator.HeadLost  4    the Ray head has ended
    │   ├── Superseded            4    another supervisor has taken the attempt over
    │   └── remote.follow.Lost    4    a job that ended without a last word
    ├── WorkloadError             5    the user's program failed
    ├── PreemptionBudgetSpent     6    preempted more often than retry.max_preemptions
    ├── sweep.desk.Stopped        1    a trial is to end now; it never reaches the user
    │   └── driver.NoneLeft       1    … nor does this: slices that no trial needs any more
    ├── sweep.grids.Over          1    … nor this: a sweeper asks for more of a sweep that has ended
    └── Interrupted             130    Ctrl-C, SIGTERM, or `cancel`

A message says what happened, where (key, file and line, host, log), and what to do. They reach the
user without a traceback.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class LauncherError(Exception):
    """Base of everything the launcher raises on purpose."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration.

    `key` is the dotted path in the composed config, `where` a `file:line` or an override as typed,
    `hint` the mend ("did you mean …?"). Any may be empty except `message`.
    """

    message: str
    key: str = ""
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        subject = f"{self.key}: " if self.key else ""
        place = f" ({self.where})" if self.where else ""
        hint = f"\n      {self.hint}" if self.hint else ""
        return f"{subject}{self.message}{place}{hint}"


class ConfigError(LauncherError):
    """Every problem found in the configuration, together."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = (Problem(problems),) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(f"  • {problem}" for problem in self.problems))


class ProvisioningError(LauncherError):
    """The provider could not give, or could not remove, the slices."""

    exit_code = 3


class Unanswered(ProvisioningError):
    """A read was tried for a while in vain, for a reason that passes by itself."""


class Reason(enum.StrEnum):
    """Why the API did not give what was asked for."""

    STOCKOUT = "no capacity"
    RESERVATION = "no reserved capacity"
    QUOTA = "quota"
    RATE = "too many requests"
    PERMISSION = "permission"
    NOT_IN_ZONE = "not in this zone"
    BAD_REQUEST = "bad request"
    INTERNAL = "internal error"
    LOST = "lost"
    DEADLINE = "deadline"
    TAKEN = "name taken"


class Refused(ProvisioningError):
    """One request came to nothing; the message holds the server's own words.

    `outright`: the only call that was made for it was refused, so that nothing can come of it.
    """

    def __init__(self, reason: Reason, message: str, *, outright: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.outright = outright


class SliceLost(Refused):
    """A slice was preempted or deleted before its hosts could be used; another may be had."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.LOST, message)


class ClusterError(LauncherError):
    """The slices are there, but no usable Ray cluster came of them."""

    exit_code = 4


class Superseded(ClusterError):
    """Another supervisor has taken the attempt over: what was held is that one's."""


class WorkloadError(LauncherError):
    """The user's program failed; `code` is its own exit code."""

    exit_code = 5

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class PreemptionBudgetSpent(LauncherError):
    """The run was preempted more often than `retry.max_preemptions` allows."""

    exit_code = 6


class Interrupted(LauncherError):
    """Stopped by the user."""

    exit_code = 130
