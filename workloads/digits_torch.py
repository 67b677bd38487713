"""Data-parallel training in PyTorch/XLA that survives being stopped, on handwritten digits.

    python workloads/digits_torch.py --steps=50

It is an ordinary PyTorch/XLA program: alone it uses one device of this machine; started by the
launcher, one process a chip, all chips of the slice. Each process computes the gradients of its
rows of the batch, `xla_group` adds them up. What step n reads is a function of the seed and n, so a
run that was interrupted ends as one that was not, bit for bit, with as many processes.

On SIGTERM all processes finish the same step, save it and leave with exit code 143. The data are
the 1,797 images of 8 x 8 pixels that scikit-learn brings along; a fifth is kept for the accuracy.

Read on in `xla_group.py` (the processes), `digits_checkpoint.py` and `supervised.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import digits_checkpoint
import numpy as np
import torch
import torch_xla
import torch_xla.runtime as xr
import xla_group
from sklearn.datasets import load_digits
from supervised import TERMINATED, Voice, Wish
from torch import nn

HELD_OUT = 5  # every fifth image
PRINT_INTERVAL = 20


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small net on the digits of scikit-learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=200, help="updates in all, over all attempts")
    parser.add_argument("--batch", type=int, default=96, help="images of an update, on all chips")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=64, help="of the hidden layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save_interval", type=int, default=20, help="steps")
    parser.add_argument("--eval_interval", type=int, default=100, help="steps; and at the end")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints, the newest")
    parser.add_argument(
        "--checkpoint_dir",
        default=os.environ.get("LAUNCHER_CHECKPOINT_DIR"),
        help="a folder or, with gcsfs, gs://bucket/folder; none: nothing is saved",
    )
    arguments = parser.parse_args(words)
    for name in ("steps", "batch", "width", "save_interval", "eval_interval", "keep"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    return arguments


class Digits:
    """Images as rows of 64 numbers from 0 to 1, in two parts; the rows of one process."""

    def __init__(self, group: xla_group.Group, batch: int, seed: int) -> None:
        if batch % group.size:
            raise SystemExit(f"--batch={batch} does not divide by {group.size} processes")
        images, labels = load_digits(return_X_y=True)
        held = np.arange(len(labels)) % HELD_OUT == 0
        self.images = torch.tensor(images[~held] / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels[~held])
        self.seed, self.batch = seed, batch
        each = batch // group.size
        self.mine = slice(group.rank * each, (group.rank + 1) * each)
        self.tests = len(labels[held])
        own = np.flatnonzero(held)[group.rank :: group.size]
        self.own_tests = (torch.tensor(images[own] / 16, dtype=torch.float32), labels[own])

    def rows(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This process's rows of the one batch of that step."""
        chance = np.random.default_rng((self.seed, step))
        chosen = torch.from_numpy(chance.integers(len(self.labels), size=self.batch)[self.mine])
        return self.images[chosen], self.labels[chosen]


class Report(Voice):
    """What process 0 tells of each step."""

    def __init__(self, leads: bool, batch: int) -> None:
        super().__init__(leads)
        self.batch, self.began = batch, time.monotonic()

    def step(self, step: int, loss: float) -> None:
        passed, self.began = time.monotonic() - self.began, time.monotonic()
        rate = round(self.batch / passed, 1)
        self.metrics(step=step, loss=loss, images_per_second=rate)
        if step % PRINT_INTERVAL == 0:
            self.say(f"step {step}: loss {loss:.4f}, {rate:,.0f} images/s")


class Run:
    """One attempt: from the checkpoint to the last step, or to a wish to stop."""

    def __init__(self, arguments: argparse.Namespace, wish: Wish) -> None:
        self.arguments, self.wish = arguments, wish
        self.group = xla_group.join()
        self.digits = Digits(self.group, arguments.batch, arguments.seed)
        self.report = Report(self.group.rank == 0, arguments.batch)
        self.device = torch_xla.device()
        torch.manual_seed(arguments.seed)
        width = arguments.width
        net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.net = net.to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), arguments.lr, momentum=0.9)
        self.saved: int | None = None

    def train(self) -> int:
        """The exit code. All processes leave the loop after the same step."""
        self.report.say(self.group.about)
        done, stopped, last = self.restore(), False, self.arguments.steps
        while done < last and not stopped:
            done += 1
            stopped = self.update(done)
            if done % self.arguments.save_interval == 0 or stopped or done == last:
                self.save(done)
            if done % self.arguments.eval_interval == 0 or done == last:
                self.evaluate(done)
        self.group.leave()
        if stopped and done < last:
            self.report.say(f"stopped after step {done}, as asked by SIGTERM")
            return TERMINATED
        self.report.say(f"finished at step {done}")
        return 0

    def update(self, step: int) -> bool:
        """One step; whether any process was asked to stop, which all learn of in the same step."""
        images, labels = (part.to(self.device) for part in self.digits.rows(step))
        self.optimizer.zero_grad()
        summed = nn.functional.cross_entropy(self.net(images), labels, reduction="sum")
        loss = summed / self.arguments.batch
        loss.backward()
        stop = torch.tensor([float(self.wish.is_there)]).to(self.device)
        told = torch.cat([loss.detach().reshape(1), stop])
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        self.group.sum_([*gradients, told])
        self.optimizer.step()
        torch_xla.sync()
        value, wishes = told.tolist()
        if not np.isfinite(value):
            raise ValueError(f"the loss of step {step} is {value}")
        self.report.step(step, value)
        return wishes > 0

    def evaluate(self, step: int) -> None:
        """The part of the images kept back that is named rightly; each process looks at its own."""
        images, labels = self.digits.own_tests
        with torch.no_grad():
            named = self.net(images.to(self.device)).argmax(dim=1).cpu().numpy()
        right = torch.tensor([float((named == labels).sum())]).to(self.device)
        self.group.sum_([right])
        accuracy = right.item() / self.digits.tests
        self.report.metrics(step=step, accuracy=accuracy)
        self.report.say(f"step {step}: accuracy {accuracy:.4f}")

    def restore(self) -> int:
        """The number of finished steps. Process 0 reads, for all: so they agree."""
        directory, found = self.arguments.checkpoint_dir, None
        if directory and self.group.rank == 0:
            found = digits_checkpoint.newest(directory)
        step, state = self.group.from_first(found) or (0, None)
        if state is not None:
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.report.metrics(restored_step=step)
        self.report.say(f"begins after step {step}" if step else "begins anew")
        return step

    def save(self, step: int) -> None:
        """Process 0 writes, since all have the same; the others go on."""
        if not self.arguments.checkpoint_dir or self.group.rank:
            return
        state: dict[str, Any] = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        directory, keep = self.arguments.checkpoint_dir, self.arguments.keep
        digits_checkpoint.save(directory, step, on_cpu(state), keep)
        self.report.metrics(saved_step=step)
        self.report.say(f"saved step {step}")


def on_cpu(value: Any) -> Any:
    """The same, every tensor on the host."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: on_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [on_cpu(inner) for inner in value]
    return value


def refuse_to_idle() -> None:
    """With one process a host, one chip of each would train, and each host by itself."""
    given = os.environ.get("LAUNCHER_NUM_PROCESSES")
    if given is None or torch.distributed.is_torchelastic_launched():
        return
    devices = int(given) * xr.addressable_device_count()
    if devices > 1:
        raise SystemExit(
            f"1 of {devices} devices would train: mode.processes=chip gives each a process"
        )


def main() -> int:
    wish = Wish()
    arguments = parse(sys.argv[1:])
    refuse_to_idle()
    return Run(arguments, wish).train()


if __name__ == "__main__":
    sys.exit(main())
