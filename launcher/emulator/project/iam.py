"""IAM over REST: the service accounts of a project, and who may act as them.

https://cloud.google.com/iam/docs/reference/rest/v1/projects.serviceAccounts
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from grpc import StatusCode

from launcher.emulator.http.fields import take
from launcher.emulator.http.routes import Call, Route
from launcher.emulator.project.projects import Project, ServiceAccount, new_etag
from launcher.emulator.tpu.errors import ApiError
from launcher.emulator.world import World

Json = dict[str, Any]
ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])")
LENGTHS = range(6, 31)


def _create(world: World, call: Call) -> Json:
    project = world.projects.get(call.project)
    account_id = _checked_id(take(call.body, "accountId", str, "body"))
    email = f"{account_id}@{project.account_domain}"
    if email in project.accounts:
        raise ApiError(
            StatusCode.ALREADY_EXISTS,
            f"Service account {account_id} already exists within project "
            f"projects/{project.project_id}.",
        )
    body = _body(project, email, take(call.body, "serviceAccount", dict, "body"))
    project.accounts[email] = ServiceAccount(body)
    return body


def _checked_id(account_id: str) -> str:
    if len(account_id) not in LENGTHS:
        message = f'The account ID "{account_id}" does not have a length between 6 and 30.'
        raise ApiError(StatusCode.INVALID_ARGUMENT, message)
    if not ACCOUNT_ID.fullmatch(account_id):
        message = f'The account ID "{account_id}" does not match {ACCOUNT_ID.pattern}.'
        raise ApiError(StatusCode.INVALID_ARGUMENT, message)
    return account_id


def _body(project: Project, email: str, given: Json) -> Json:
    number = str(10**20 + secrets.randbelow(9 * 10**20))
    texts = {key: take(given, key, str, "body") for key in ("displayName", "description")}
    return {
        "name": f"projects/{project.project_id}/serviceAccounts/{email}",
        "projectId": project.project_id,
        "uniqueId": number,
        "email": email,
        **{key: text for key, text in texts.items() if text},
        "etag": new_etag(),
        "oauth2ClientId": number,
    }


def _find(world: World, call: Call) -> tuple[Project, ServiceAccount]:
    """The account of that address or number; in the project `-`, the address says where it is."""
    wanted, project_id = call.params["account"], call.project
    if project_id == "-":
        project_id = wanted.partition("@")[2].partition(".")[0]
    project = world.projects.get(project_id)
    for account in project.accounts.values():
        if wanted in (account.body["email"], account.body["uniqueId"]):
            return project, account
    message = f"Unknown service account: projects/{call.project}/serviceAccounts/{wanted}"
    raise ApiError(StatusCode.NOT_FOUND, message)


def _get(world: World, call: Call) -> Json:
    return dict(_find(world, call)[1].body)


def _list(world: World, call: Call) -> Json:
    accounts = world.projects.get(call.project).accounts.values()
    return {"accounts": [dict(account.body) for account in accounts]} if accounts else {}


def _delete(world: World, call: Call) -> Json:
    project, account = _find(world, call)
    del project.accounts[account.body["email"]]
    return {}


def _get_policy(world: World, call: Call) -> Json:
    return _find(world, call)[1].policy.to_json()


def _set_policy(world: World, call: Call) -> Json:
    project, account = _find(world, call)
    project.set_policy(account.policy, take(call.body, "policy", dict, "body"))
    return account.policy.to_json()


def _test_permissions(world: World, call: Call) -> Json:
    return granted(_find(world, call)[0], call)


def granted(project: Project, call: Call) -> Json:
    """Which of the permissions asked for the caller has."""
    asked = take(call.body, "permissions", list, "body")
    found = [permission for permission in asked if project.grants(str(permission))]
    return {"permissions": found} if found else {}


_ACCOUNTS = "/v1/projects/{project}/serviceAccounts"
_ACCOUNT = f"{_ACCOUNTS}/{{account}}"
_NAME = "projects.serviceAccounts"

ROUTES = (
    Route("POST", _ACCOUNTS, _create, f"{_NAME}.create", "accountId"),
    Route("GET", _ACCOUNTS, _list, f"{_NAME}.list"),
    Route("GET", _ACCOUNT, _get, f"{_NAME}.get", "account"),
    Route("DELETE", _ACCOUNT, _delete, f"{_NAME}.delete", "account"),
    Route("POST", f"{_ACCOUNT}:getIamPolicy", _get_policy, f"{_NAME}.getIamPolicy", "account"),
    Route("POST", f"{_ACCOUNT}:setIamPolicy", _set_policy, f"{_NAME}.setIamPolicy", "account"),
    Route(
        "POST",
        f"{_ACCOUNT}:testIamPermissions",
        _test_permissions,
        f"{_NAME}.testIamPermissions",
        "account",
    ),
)
