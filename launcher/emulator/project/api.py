"""What a project is, allows and has enabled: Resource Manager, Service Usage, quotas, over REST.

https://cloud.google.com/resource-manager/reference/rest/v1/projects,
https://cloud.google.com/service-usage/docs/reference/rest (v1, and v1beta1 for quotas).
"""

from __future__ import annotations

import secrets
from typing import Any

from grpc import StatusCode

from launcher.emulator.http.fields import invalid, take
from launcher.emulator.http.routes import Call, Route
from launcher.emulator.machine.guest import project_number
from launcher.emulator.project.iam import granted
from launcher.emulator.tpu.errors import SERVICE_TITLES, ApiError
from launcher.emulator.world import World

Json = dict[str, Any]
_PROJECT = "/v1/projects/{project}"
_SERVICE = f"{_PROJECT}/services/{{service}}"
_USAGE = "type.googleapis.com/google.api.serviceusage.v1"


def _get_project(world: World, call: Call) -> Json:
    project = world.projects.get(call.project)
    return {
        "projectNumber": project_number(project.project_id),
        "projectId": project.project_id,
        "lifecycleState": "ACTIVE",
        "name": project.project_id,
        "createTime": project.created.isoformat(timespec="milliseconds"),
    }


def _get_policy(world: World, call: Call) -> Json:
    return world.projects.get(call.project).policy.to_json()


def _set_policy(world: World, call: Call) -> Json:
    project = world.projects.get(call.project)
    project.set_policy(project.policy, take(call.body, "policy", dict, "body"))
    return project.policy.to_json()


def _test_permissions(world: World, call: Call) -> Json:
    return granted(world.projects.get(call.project), call)


def _service_name(call: Call) -> str:
    """The service that a call names; ApiError 7 if there is none of that name."""
    name = call.params["service"]
    if name not in SERVICE_TITLES:
        raise ApiError(
            StatusCode.PERMISSION_DENIED, f"Not found or permission denied for service(s): {name}."
        )
    return name


def _service(world: World, project_id: str, name: str) -> Json:
    parent = f"projects/{project_number(project_id)}"
    enabled = world.projects.get(project_id).is_enabled(name)
    return {
        "name": f"{parent}/services/{name}",
        "parent": parent,
        "config": {"name": name, "title": SERVICE_TITLES[name]},
        "state": "ENABLED" if enabled else "DISABLED",
    }


def _get_service(world: World, call: Call) -> Json:
    return _service(world, call.project, _service_name(call))


def _list_services(world: World, call: Call) -> Json:
    """All services, or those that `filter=state:ENABLED` or `state:DISABLED` asks for."""
    wanted = call.query.get("filter", "")
    if wanted not in ("", "state:ENABLED", "state:DISABLED"):
        raise invalid("filter", wanted, "It must be state:ENABLED or state:DISABLED.")
    services = [_service(world, call.project, name) for name in SERVICE_TITLES]
    found = [one for one in services if not wanted or wanted == f"state:{one['state']}"]
    return {"services": found} if found else {}


def _enable_service(world: World, call: Call) -> Json:
    """An operation that is done."""
    name = _service_name(call)
    world.projects.get(call.project).enable(name)
    return {
        "name": f"operations/acat.p2-{project_number(call.project)}-{secrets.token_hex(16)}",
        "done": True,
        "response": {
            "@type": f"{_USAGE}.EnableServiceResponse",
            "service": _service(world, call.project, name),
        },
    }


RESOURCE_MANAGER = (
    Route("GET", _PROJECT, _get_project, "projects.get"),
    Route("POST", f"{_PROJECT}:getIamPolicy", _get_policy, "projects.getIamPolicy"),
    Route("POST", f"{_PROJECT}:setIamPolicy", _set_policy, "projects.setIamPolicy"),
    Route(
        "POST", f"{_PROJECT}:testIamPermissions", _test_permissions, "projects.testIamPermissions"
    ),
)
SERVICE_USAGE = (
    Route("GET", f"{_PROJECT}/services", _list_services, "services.list"),
    Route("GET", _SERVICE, _get_service, "services.get"),
    Route("POST", f"{_SERVICE}:enable", _enable_service, "services.enable"),
)
