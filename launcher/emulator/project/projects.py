"""What the emulator knows of projects and buckets: APIs, service accounts, policies. In memory."""

from __future__ import annotations

import base64
import re
import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from grpc import StatusCode

from launcher.emulator.http.fields import rows, take
from launcher.emulator.rules import Rule, Rules
from launcher.emulator.tpu.errors import ApiError

Json = dict[str, Any]
_ROLE = re.compile(r"((projects|organizations)/[^/]+/)?roles/[\w.]+")
_MEMBER = re.compile(r"(serviceAccount|user|group|domain):.+")


class Policy:
    """Who has which role on one resource, with the etag that guards read-modify-write."""

    def __init__(self) -> None:
        self._bindings: list[Mapping[str, Any]] = []
        self._etag = new_etag()

    def to_json(self) -> Json:
        return {"version": 1, "etag": self._etag, "bindings": self._bindings}

    def replace(self, bindings: list[Mapping[str, Any]], etag: str) -> None:
        """ApiError 10 if there is an etag that is not the latest."""
        if etag and etag != self._etag:
            raise ApiError(
                StatusCode.ABORTED,
                "There were concurrent policy changes. Please retry the whole read-modify-write "
                "with exponential backoff.",
            )
        self._bindings, self._etag = bindings, new_etag()


def new_etag() -> str:
    return base64.b64encode(secrets.token_bytes(9)).decode()


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """One service account; `body` is what the API shows of it."""

    body: Mapping[str, Any]
    policy: Policy = field(default_factory=Policy)


class Project:
    """One project. Every project exists, and has every API enabled but where a rule says no."""

    def __init__(self, project_id: str, rules: Rules) -> None:
        self.project_id = project_id
        self.created = datetime.now(UTC)
        self.policy = Policy()
        self.accounts: dict[str, ServiceAccount] = {}  # by e-mail address
        self._rules = rules
        self._enabled: set[tuple[Rule, str]] = set()  # in spite of which rule

    def set_policy(self, policy: Policy, given: Mapping[str, Any]) -> None:
        """Replaces a policy of this project's or of one of its accounts.

        ApiError 3 for a role or a member that does not exist, 10 for an etag of old.
        """
        bindings = rows(given, "bindings", "policy")
        for binding in bindings:
            self._check_role(take(binding, "role", str, "binding"))
            for member in take(binding, "members", list, "binding"):
                self._check_member(str(member))
        policy.replace(bindings, take(given, "etag", str, "policy"))

    def _check_role(self, role: str) -> None:
        if not _ROLE.fullmatch(role):
            message = f"Role ({role}) does not exist in the resource's hierarchy."
            raise ApiError(StatusCode.INVALID_ARGUMENT, message)

    def _check_member(self, member: str) -> None:
        kind, _, email = member.partition(":")
        if not _MEMBER.fullmatch(member):
            message = f"The member {member} is of an unknown type."
            raise ApiError(StatusCode.INVALID_ARGUMENT, message)
        ours = kind == "serviceAccount" and email.endswith(f"@{self.account_domain}")
        if ours and email not in self.accounts:
            message = f"Service account {email} does not exist."
            raise ApiError(StatusCode.INVALID_ARGUMENT, message)

    @property
    def account_domain(self) -> str:
        return f"{self.project_id}.iam.gserviceaccount.com"

    def is_enabled(self, service: str) -> bool:
        rule = self._against(service)
        return rule is None or (rule, service) in self._enabled

    def enable(self, service: str) -> None:
        """Enables an API that a rule has disabled."""
        if rule := self._against(service):
            self._enabled.add((rule, service))

    def grants(self, permission: str) -> bool:
        """Whether the caller has that permission."""
        return not self._rules.strike("permission-missing", node="", zone="", method=permission)

    def _against(self, service: str) -> Rule | None:
        return self._rules.strike("api-disabled", node="", zone="", method=service)


class Projects:
    """All projects, and all buckets, whose names are unique across projects."""

    def __init__(self, rules: Rules) -> None:
        self.buckets: dict[str, Json] = {}
        self.bucket_policies: defaultdict[str, Policy] = defaultdict(Policy)  # by name
        self._rules = rules
        self._projects: dict[str, Project] = {}

    def get(self, project_id: str) -> Project:
        if project_id not in self._projects:
            self._projects[project_id] = Project(project_id, self._rules)
        return self._projects[project_id]
