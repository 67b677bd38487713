"""The smallest useful program, in PyTorch/XLA: every chip has a tensor, and all add up one number.

It is an ordinary PyTorch/XLA program: `torch_xla.launch` calls `show` for each chip. By itself
(`python workloads/basic_torch_xla.py`), and with one process a host, that starts a process for each
chip of this machine; with one process a chip it calls `show` in the process that is there.
"""

from __future__ import annotations

import os

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import xla_group
from supervised import Voice


def place() -> tuple[int, str]:
    """Where this process stands in the order of slices, hosts and chips; and how it is called."""
    names = ("LAUNCHER_SLICE", "LAUNCHER_HOST", "LOCAL_RANK")
    values = [(letter, os.environ.get(name)) for letter, name in zip("shp", names, strict=True)]
    words = [f"{letter}{value}" for letter, value in values if value is not None]
    return int(os.environ.get("LAUNCHER_PROCESS_ID", "0")), " ".join(words)


def say(text: str) -> None:
    """In one piece: `print` writes the end of a line by itself, and threads share the output."""
    print(f"{text}\n", end="", flush=True)


def tensors(group: xla_group.Group) -> tuple[int, list[torch.Tensor]]:
    """How many devices there are in all, and this process's tensors: its number and that count."""
    devices = xm.get_xla_supported_devices() if group.joined else [torch_xla.device()]
    first, count = group.rank * len(devices), group.size * len(devices)
    values = (torch.tensor([first + i + 1.0, count]) for i in range(len(devices)))
    return count, [value.to(device) for value, device in zip(values, devices, strict=True)]


def describe(group: xla_group.Group, count: int, found: list[torch.Tensor]) -> list[str]:
    """A line for each device: its ordinal, the number of all, its place, the tensor on it."""
    name = place()[1]
    return [
        f"ordinal {int(tensor[0]) - 1} of {count}{name and f', {name}'}: {tensor}"
        for tensor in found
    ]


def show(_index: int) -> None:
    group = xla_group.join()
    if group.rank == 0:
        say(group.about)
    count, found = tensors(group)
    lines = describe(group, count, found)
    if not group.joined:  # threads, which XLA gives no way to talk to each other on CPUs
        say("\n".join(lines))
        return
    total = sum((tensor[:1].cpu() for tensor in found), torch.zeros(1))
    total = total.to(torch_xla.device())
    group.sum_([total])
    add_up(group, count, int(total), lines)
    group.leave()


def add_up(group: xla_group.Group, count: int, total: int, lines: list[str]) -> None:
    """The sum on every process, and on the first the lines of all in the order of their places."""
    say(f"process {group.rank} of {group.size}: sum over all devices {total}")
    if total != count * (count + 1) // 2:
        raise SystemExit(f"the sum over all devices is {total}, not {count * (count + 1) // 2}")
    everything = sorted(group.gather((place(), group.rank, lines)))
    voice = Voice(leads=everything[0][1] == group.rank)
    voice.metrics(step=1, device_count=count, sum=total)
    voice.say("\n".join(line for *_, said in everything for line in said))


if __name__ == "__main__":
    torch_xla.launch(show)
