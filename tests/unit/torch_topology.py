"""What PyTorch/XLA itself computes on emulated hosts, as JSON: run by `test_chips`.

It reads the emulator's metadata over HTTP, by a host's own address, in an interpreter of its own:
importing it takes seconds and changes the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator

from torch_xla._internal import tpu

from launcher import accelerators
from launcher.accelerators import Accelerator
from launcher.emulator.machine import guest
from launcher.emulator.machine.metadata import PORT, MetadataServer, claim_addresses
from launcher.emulator.tpu.wire import v2
from launcher.ranks.chips import per_host

BASE_PORT = 8476  # of PyTorch/XLA


def address(worker: int) -> str:
    return f"10.0.{worker // 250}.{worker % 250 + 1}"


def values(accelerator: Accelerator, worker: int) -> dict[str, str]:
    me = guest.Identity(
        "p", "z", "node", "0a", worker, tuple(map(address, range(accelerator.hosts)))
    )
    return guest.metadata(me, accelerator, v2.Node())


def computed(accelerator: Accelerator, worker: int, chip: int) -> dict[str, str]:
    """The variables that it sets for a process."""
    before = dict(os.environ)
    try:
        tpu.configure_topology(chip, per_host(accelerator), BASE_PORT)
        return {name: value for name, value in os.environ.items() if name not in before}
    finally:
        os.environ.clear()
        os.environ.update(before)


def all_computed(server: MetadataServer) -> Iterator[tuple[str, int, int, dict[str, str]]]:
    """Of the first process of each type and of its last."""
    for accelerator in map(accelerators.lookup, accelerators.all_types()):
        last = (accelerator.hosts - 1, per_host(accelerator) - 1)
        for worker, chip in dict.fromkeys([(0, 0), last]):
            server.replace("", values(accelerator, worker))
            found = computed(accelerator, worker, chip)
            yield accelerator.accelerator_type, worker, chip, found


def main() -> None:
    (listener,) = claim_addresses(1, start=30_000)
    server = MetadataServer(listener, {})
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    own = listener.getsockname()[0]
    tpu._GCE_METADATA_ROOT_URL = f"http://{own}:{PORT}/computeMetadata/v1"
    print(json.dumps(list(all_computed(server))))


if __name__ == "__main__":
    main()
