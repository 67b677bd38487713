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
from launcher.providers import KINDS

if TYPE_CHECKING:
    from launcher.providers import Provider
    from launcher.spec import ProviderSpec


def open_provider(spec: ProviderSpec, nodes: Sequence[str]) -> Provider:
    """Attached to the emulator until it is closed: an empty emulator ends with its last client.

    The faults of `provider.rules` strike `nodes` alone, for as long as the provider is open.
    """
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(emulator.connect, state_folder(spec))
        from google.cloud import tpu_v2  # a second of imports, while the emulator starts
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        from launcher.providers.google import GoogleProvider

        attachment = starting.result()
    endpoint = attachment.endpoint
    with contextlib.ExitStack() as stack:
        stack.enter_context(attachment)
        if rules := spec.options.get("rules"):
            stack.enter_context(emulator.arm(endpoint, rules, nodes))
        channel = emulator.open_channel(endpoint)
        return GoogleProvider(
            spec.project or KINDS["local"].project,
            tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel)),
            endpoint,
            f"emulator on this machine ({endpoint})",
            console=lambda name, worker: console(endpoint, name, worker),
            on_close=stack.pop_all().close,
        )


def console(endpoint: str, name: str, worker: int) -> str:
    command = {"command": "console", "node": name, "worker": worker, "bytes": 4000}
    return str(emulator.control(endpoint, command).get("text", ""))


def is_running(spec: ProviderSpec) -> bool:
    return emulator.is_alive(state_folder(spec))


def state_folder(spec: ProviderSpec) -> Path:
    named = spec.options.get("state_dir")
    return Path(named).expanduser() if named else emulator.default_state_dir()
