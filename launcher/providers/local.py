"""The Google provider on a channel to the emulator, which is started when none is running.

The client, the calls and the startup script are those of a real project; only the channel leads to
this machine. This is the one module of the launcher that knows the emulator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.emulator import client as emulator
from launcher.errors import ProvisioningError
from launcher.providers import project_of

if TYPE_CHECKING:
    from launcher.providers import Provider
    from launcher.providers.services import Services
    from launcher.spec import ProviderSpec


def open_provider(spec: ProviderSpec, nodes: Sequence[str]) -> Provider:
    """Attached to the emulator until it is closed: an empty emulator ends with its last client.

    The faults of `provider.rules` strike `nodes` alone, for as long as the provider is open.
    """
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(emulator.connect, state_folder(spec))
        from google.cloud import tpu_v2  # a second of imports, while the emulator starts
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        from launcher.providers import rest
        from launcher.providers.google import GoogleProvider
        from launcher.providers.throttle import Throttle

        attachment = starting.result()
    endpoint = attachment.endpoint
    with contextlib.ExitStack() as stack:
        stack.enter_context(attachment)
        if rules := spec.options.get("rules"):
            stack.enter_context(emulator.arm(endpoint, rules, nodes))
        channel = emulator.open_channel(endpoint)
        project = project_of(spec)
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        return GoogleProvider(
            project,
            client,
            endpoint,
            f"emulator on this machine ({endpoint})",
            rest=lambda: rest.RestTpu(rest.anonymous_session(), rest_root(spec), client),
            admit=Throttle(f"{project}-{endpoint}").admit,
            console=lambda name, worker: console(endpoint, name, worker),
            on_close=stack.pop_all().close,
        )


def open_services(spec: ProviderSpec) -> Services:
    """The emulator must be running, and held by an open provider."""
    from launcher.providers import rest, services

    return services.Services(rest.anonymous_session, rest_root(spec))


def console(endpoint: str, name: str, worker: int) -> str:
    command = {"command": "console", "node": name, "worker": worker, "bytes": 4000}
    return str(emulator.control(endpoint, command).get("text", ""))


def rest_root(spec: ProviderSpec) -> str:
    """The URL under which the emulator answers for every REST service."""
    found = emulator.rest_endpoint(state_folder(spec))
    if found is None:
        raise ProvisioningError(f"no emulator serves {state_folder(spec)}")
    return found


def compute_root(spec: ProviderSpec) -> str | None:
    """The URL of Compute Engine. The emulator must be running, and held by an open provider."""
    return rest_root(spec)


def is_running(spec: ProviderSpec) -> bool:
    return emulator.is_alive(state_folder(spec))


def state_folder(spec: ProviderSpec) -> Path:
    named = spec.options.get("state_dir")
    return Path(named).expanduser() if named else emulator.default_state_dir()
