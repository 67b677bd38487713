"""The processes of a PyTorch/XLA program as one group, whether its devices are TPUs or CPUs.

Copy this file beside a script of your own:

    group = xla_group.join()
    group.sum_([parameter.grad for parameter in model.parameters()])

On TPUs what the processes add up goes from chip to chip, by XLA. PJRT's client for CPUs, which
stands in for the TPUs of an emulated host, knows of no other process: there the numbers go from the
XLA device to the host, through gloo, and back. So they do on TPU v2 and v3, whose chips are two
devices each, which XLA adds up by threads of `torch_xla.launch` only (mode.processes=host).

What a process says to the others in words goes through gloo everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401  (registers xla://)
import torch_xla.runtime as xr


@dataclass(frozen=True)
class Group:
    """`rank` counts as torch does, which on TPUs need not be the order of hosts and chips.

    `words` is the process group for what is not on a device; `joined` is False for the threads of
    one process, which this file does not bring together.
    """

    rank: int
    size: int
    through: str
    words: Any = None
    joined: bool = True

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add up each tensor over all processes, in place. Deterministic for the same processes."""
        if not self.joined:
            raise RuntimeError("threads of one process cannot add up here: mode.processes=chip")
        if self.through == "XLA":
            xm.all_reduce(xm.REDUCE_SUM, list(tensors))
        elif self.size > 1:
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu()
            dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.data.copy_(part.view(tensor.shape))

    def gather(self, value: Any) -> list[Any]:
        """What each process has to say, by rank."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value, group=self.words)
        return found

    def from_first(self, value: Any) -> Any:
        """What process 0 says, for all."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, group=self.words)
        return box[0]

    @property
    def about(self) -> str:
        """What stands in for what, where that is so: for the screen."""
        together = f", and add up through {self.through}" if self.size > 1 else ""
        how = together if self.joined else ", each for itself"
        if xr.device_type() == "TPU":
            return f"{self.size} processes on TPUs{how}"
        return f"emulated: CPU devices stand in for TPU chips{how}"

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def join() -> Group:
    """Find the other processes; all of them must call this. Once in a process."""
    is_tpu = xr.device_type() == "TPU"
    if is_tpu and xr.addressable_device_count() == 1:
        dist.init_process_group("xla", init_method="xla://")
        words = dist.new_group(backend="gloo")
        return Group(dist.get_rank(), dist.get_world_size(), "XLA", words)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        return Group(dist.get_rank(), dist.get_world_size(), "gloo")
    return Group(xr.global_ordinal(), xr.world_size(), "nothing", joined=xr.world_size() == 1)
