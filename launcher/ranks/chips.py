"""Which chips of a host a process gets, and the variables that tell it so. Pure.

Chips are shared out in three ways:

* `one_of_slice`: a process for each chip, all of a slice together one machine, as PyTorch/XLA has
  it. The values are those of its own `torch_xla._internal.tpu.configure_topology`;
* `part_of_host`: some chips of one host that know of no others, such as those of a trial beside
  other trials;
* `part_of_slice`: likewise some hosts of a slice, whose chips have the shape of a published type.

libtpu, which opens the chips, reads the TPU_* variables and CLOUD_TPU_TASK_ID. Where CPU devices
stand in for the chips, CPU_NUM_DEVICES (PyTorch/XLA) and JAX_NUM_CPU_DEVICES say how many; a TPU
host does not heed them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from launcher.accelerators import Accelerator, all_types, lookup

# A part of a host as a box, by its number of chips: those that libtpu takes. So JAX's own runner of
# multi-process tests (jax/_src/test_multiprocess.py) and Ray (ray/_private/accelerators/tpu.py).
PART_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
ALONE = "1,1,1"
LOCAL = "localhost"
# Each chip is two to the host (two vfio groups) and to PyTorch/XLA, which adds an axis to the box.
_HALVED = "tpu7x"


def per_host(accelerator: Accelerator) -> int:
    """How many processes a host has when each has one chip."""
    return accelerator.chips_per_host * (2 if accelerator.generation == _HALVED else 1)


def devices_per_process(accelerator: Accelerator) -> int:
    """How many XLA devices a process with one chip has: two, the chip's cores, on v2 and v3."""
    return accelerator.jax_devices_per_host // per_host(accelerator)


def one_of_slice(accelerator: Accelerator, worker: int, chip: int) -> dict[str, str]:
    """Of the process that has one chip, by its number on the host `worker`, of a whole slice.

    `meeting` adds what is known only when the hosts are there.
    """
    more = ",2" if accelerator.generation == _HALVED else ""
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": ALONE,
        "TPU_PROCESS_BOUNDS": accelerator.chip_bounds + more,
        "CLOUD_TPU_TASK_ID": str(worker * per_host(accelerator) + chip),
        **_stand_ins(devices_per_process(accelerator)),
    }


def meeting(addresses: Sequence[str], ports: Sequence[Sequence[int]]) -> str:
    """TPU_PROCESS_ADDRESSES: where libtpu of each process listens, in the order of the task ids.

    Both by worker id; `ports` are those of a host's processes, in the order of their chips. A host
    that is alone calls itself localhost, as PyTorch/XLA does.
    """
    names = addresses if len(addresses) > 1 else [LOCAL]
    pairs = zip(names, ports, strict=True)
    return ",".join(f"{name}:{port}" for name, own in pairs for port in own)


def parts(accelerator: Accelerator, chips: int) -> int:
    """How many parts of so many chips a host has; 0 where it cannot be divided so."""
    whole, rest = divmod(accelerator.chips_per_host, chips)
    return whole if chips in PART_BOUNDS and not rest else 0


def part_of_host(accelerator: Accelerator, chips: int, part: int, port: int) -> dict[str, str]:
    """Of a process that has the `part`-th of a host's `parts`, and sees nothing of the others.

    The host may be one of many of a slice. `port`, where libtpu listens, must be free on the host
    and another one for each part. Raises ValueError where the host has no such part.
    """
    if not 0 <= part < parts(accelerator, chips):
        name, has = accelerator.accelerator_type, accelerator.chips_per_host
        raise ValueError(f"a host of {name} has {has} chips: no part {part} of {chips} chips")
    bounds = PART_BOUNDS[chips]
    return {
        "TPU_VISIBLE_CHIPS": ",".join(str(part * chips + chip) for chip in range(chips)),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds,
        "TPU_PROCESS_BOUNDS": ALONE,
        "TPU_PROCESS_ADDRESSES": f"{LOCAL}:{port}",
        "TPU_PROCESS_PORT": str(port),
        "CLOUD_TPU_TASK_ID": "0",
        **_instead_of_metadata(accelerator, bounds),
        "TPU_WORKER_HOSTNAMES": LOCAL,
        **_stand_ins(chips * accelerator.devices_per_chip),
    }


def boxes(accelerator: Accelerator, hosts: int) -> list[tuple[int, ...]]:
    """The worker ids of each part of so many hosts; none where a slice is not shared out so.

    Worker ids count along x first, then y, then z, as TPU_PROCESS_BOUNDS has its tasks.
    """
    whole, part = _ints(accelerator.host_bounds), _ints(_box(accelerator, hosts))
    if not part or any(all_ % own for all_, own in zip(whole, part, strict=True)):
        return []
    found: dict[tuple[int, ...], list[int]] = {}
    cells = itertools.product(*map(range, reversed(whole)))
    for worker, (z, y, x) in enumerate(cells):
        found.setdefault((z // part[2], y // part[1], x // part[0]), []).append(worker)
    return [tuple(workers) for _, workers in sorted(found.items())]


def part_of_slice(accelerator: Accelerator, hosts: int, worker: int) -> dict[str, str]:
    """Of the process on the host that is the `worker`-th of one of the `boxes`.

    `meeting` adds what is known only when the hosts are there.
    """
    bounds, own = _box(accelerator, hosts), accelerator.chips_per_host_bounds
    return {
        "TPU_VISIBLE_CHIPS": ",".join(map(str, range(accelerator.chips_per_host))),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": own,
        "TPU_PROCESS_BOUNDS": bounds,
        "CLOUD_TPU_TASK_ID": str(worker),
        **_instead_of_metadata(accelerator, own, bounds, worker),
        **_stand_ins(accelerator.jax_devices_per_host),
    }


def _box(accelerator: Accelerator, hosts: int) -> str:
    """The hosts of a part as a box, as the published type of so many chips has them; or nothing."""
    chips, own = hosts * accelerator.chips_per_host, _ints(accelerator.chips_per_host_bounds)
    for name in all_types():
        kind = lookup(name)
        if (kind.generation, kind.chips) == (accelerator.generation, chips):
            shape = zip(_ints(kind.chip_bounds), own, strict=True)
            counts = [divmod(all_, chips) for all_, chips in shape]
            return "" if any(rest for _, rest in counts) else ",".join(str(n) for n, _ in counts)
    return ""


def _ints(bounds: str) -> list[int]:
    return [int(word) for word in bounds.split(",") if word]


def _instead_of_metadata(
    accelerator: Accelerator, chips: str, hosts: str = ALONE, worker: int = 0
) -> dict[str, str]:
    """The metadata server would tell of the whole slice (pytorch/xla#7714)."""
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator.accelerator_type,
        "TPU_HOST_BOUNDS": hosts,
        "TPU_CHIPS_PER_HOST_BOUNDS": chips,
        "TPU_WORKER_ID": str(worker),
    }


def _stand_ins(devices: int) -> dict[str, str]:
    return {"CPU_NUM_DEVICES": str(devices), "JAX_NUM_CPU_DEVICES": str(devices)}
