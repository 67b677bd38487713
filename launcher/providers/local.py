"""The Google provider on a channel to the emulator, which is started when none is running.

The client, the calls and the startup script are those of a real project; only the channel leads to
this machine. This is the one module of the launcher that knows the emulator.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.emulator import client as emulator
from launcher.providers import EMULATED_PROJECT

if TYPE_CHECKING:
    from launcher.providers import Provider
    from launcher.spec import ProviderSpec


def open_provider(spec: ProviderSpec) -> Provider:
    """Attached to the emulator until it is closed: an empty emulator ends with its last client."""
    state_dir = spec.options.get("state_dir")
    folder = Path(state_dir).expanduser() if state_dir else emulator.default_state_dir()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(emulator.connect, folder)
        from google.cloud import tpu_v2  # a second of imports, while the emulator starts
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        from launcher.providers.google import GoogleProvider

        attachment = starting.result()

    for rule in spec.options.get("rules", ()):
        emulator.control(attachment.endpoint, {"command": "fault", **rule})

    class LocalProvider(GoogleProvider):
        def console(self, name: str, worker: int) -> str:
            command = {"command": "console", "node": name, "worker": worker, "bytes": 4000}
            return str(emulator.control(self.endpoint, command).get("text", ""))

        def close(self) -> None:
            super().close()
            attachment.close()

    channel = emulator.open_channel(attachment.endpoint)
    client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    title = f"emulator on this machine ({attachment.endpoint})"
    return LocalProvider(spec.project or EMULATED_PROJECT, client, attachment.endpoint, title)
