"""Pre-training of a small language model that survives being stopped at any moment.

    python workloads/lm.py --steps=20

It is an ordinary JAX program. Alone it uses the devices of this machine; started by the launcher,
one process a host, it uses all chips of all slices. It saves every `save_interval` steps and begins
where the last complete checkpoint was. On SIGTERM all processes finish the same step, save it and
leave with exit code 143. On the same chips and with the same number of processes, a run that was
interrupted has the losses of one that was not, bit for bit.

Read on in `lm_text.py` (the data), `lm_model.py` (the network and a step of its training),
`device_mesh.py` (which chips share what), `checkpoints.py`, `resumable.py` and `supervised.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import device_mesh
import jax
import lm_model
import lm_text
import numpy as np
from resumable import connect, keep_compiled, leave_with
from supervised import TERMINATED, Voice, Wish

if TYPE_CHECKING:
    from checkpoints import Checkpoints

# Steps that are sent to the chips before the loss of the first is looked at: they need not wait for
# the host, and a wish to stop is heard so much later.
AHEAD = 4
PRINT_INTERVAL = 10
VALIDATION_BATCHES = 4


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pre-train a language model on the sources of Python's standard library.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    number = parser.add_argument_group("training")
    number.add_argument("--steps", type=int, default=100, help="updates in all, over all attempts")
    number.add_argument("--batch", type=int, default=16, help="rows of an update, over all chips")
    number.add_argument("--sequence", type=int, default=64, help="bytes of a row")
    number.add_argument("--lr", type=float, default=3e-3, help="learning rate after the warm-up")
    number.add_argument("--warmup", type=int, default=20, help="steps")
    number.add_argument("--seed", type=int, default=0)
    number.add_argument("--eval_interval", type=int, default=0, help="steps; 0: no validation")
    size = parser.add_argument_group("network")
    size.add_argument("--layers", type=int, default=2)
    size.add_argument("--width", type=int, default=64)
    size.add_argument("--heads", type=int, default=4)
    size.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    size.add_argument("--model_parallel", type=int, default=1, help="chips that share a layer")
    saving = parser.add_argument_group("checkpoints")
    saving.add_argument(
        "--checkpoint_dir",
        default=os.environ.get("LAUNCHER_CHECKPOINT_DIR"),
        help="a folder or gs://bucket/folder; none: nothing is saved",
    )
    saving.add_argument("--save_interval", type=int, default=10, help="steps; 0: only at the end")
    saving.add_argument("--keep", type=int, default=3, help="checkpoints, the newest")
    arguments = parser.parse_args(words)
    for fault in faults(arguments):
        parser.error(fault)
    return arguments


def faults(arguments: argparse.Namespace) -> list[str]:
    """What no mesh can mend; what depends on the chips is checked when they are known."""
    least = {"steps": 0, "save_interval": 0, "eval_interval": 0, "warmup": 0, "seed": 0}
    small = ("batch", "sequence", "layers", "width", "heads", "model_parallel", "keep")
    found = [
        f"--{name} must be at least {bound}, not {getattr(arguments, name)}"
        for name, bound in {**least, **dict.fromkeys(small, 1)}.items()
        if getattr(arguments, name) < bound
    ]
    if not found and arguments.width % (2 * arguments.heads):
        found.append(f"--width={arguments.width} must be even for each of {arguments.heads} heads")
    if not found and arguments.heads % arguments.model_parallel:
        found.append(f"--heads={arguments.heads} do not divide by {arguments.model_parallel} chips")
    return found


def sizes(arguments: argparse.Namespace) -> lm_model.Sizes:
    return lm_model.Sizes(arguments.layers, arguments.width, arguments.heads, arguments.dtype)


class Feed:
    """Batches as global arrays, of which each process makes the rows of its own chips."""

    def __init__(self, arguments: argparse.Namespace, trainer: lm_model.Trainer) -> None:
        self.seed, self.batch, self.sequence = arguments.seed, arguments.batch, arguments.sequence
        self.corpus = lm_text.load()
        self.abstract = trainer.abstract_batch(arguments.batch, arguments.sequence)
        chips = trainer.mesh.devices
        if self.batch % len(chips):
            raise ValueError(f"--batch={self.batch} does not divide by {len(chips)} rows of chips")
        me = jax.process_index()
        self.mine = [i for i, row in enumerate(chips) if me in {d.process_index for d in row}]
        each = self.batch // len(chips)
        self.rows = [i * each + k for i in self.mine for k in range(each)]

    def train(self, step: int, stop: bool) -> lm_model.Batch:
        flags = np.full(len(self.mine), stop, np.float32)
        return {"tokens": self.tokens(self.corpus.train, step), "stop": self.spread("stop", flags)}

    def tokens(self, text: np.ndarray, number: int) -> jax.Array:
        key = (self.seed, number)
        return self.spread("tokens", lm_text.rows(text, key, self.batch, self.sequence, self.rows))

    def spread(self, name: str, local: np.ndarray) -> jax.Array:
        whole = self.abstract[name]
        return jax.make_array_from_process_local_data(whole.sharding, local, whole.shape)


class Report(Voice):
    """What process 0 tells of each step."""

    def __init__(self, tokens: int) -> None:
        super().__init__(jax.process_index() == 0)
        self.tokens = tokens  # of one step
        self.times = deque([time.monotonic()], maxlen=PRINT_INTERVAL + 1)

    def step(self, step: int, loss: float) -> None:
        """The rate is that of the last steps together: single ones are read in bursts."""
        self.times.append(time.monotonic())
        passed = self.times[-1] - self.times[0]
        rate = self.tokens * (len(self.times) - 1) / passed if passed else 0.0
        self.metrics(step=step, loss=loss, tokens_per_second=round(rate, 1))
        if step % PRINT_INTERVAL == 0:
            self.say(f"step {step}: loss {loss:.4f}, {rate:,.0f} tokens/s")

    def saved(self, step: int | None) -> None:
        if step is not None:
            self.metrics(saved_step=step)
            self.say(f"saved step {step}")


class Run:
    """One attempt: from the checkpoint to the last step, or to a wish to stop."""

    def __init__(self, arguments: argparse.Namespace, wish: Wish) -> None:
        self.arguments, self.wish = arguments, wish
        mesh = device_mesh.training_mesh(jax.devices(), arguments.model_parallel)
        optimizer = lm_model.adamw(arguments.steps, arguments.lr, arguments.warmup)
        self.trainer = lm_model.Trainer(sizes(arguments), optimizer, mesh)
        self.feed = Feed(arguments, self.trainer)
        self.report = Report(arguments.batch * arguments.sequence)
        self.checkpoints: Checkpoints | None = None
        self.results: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self.loss = float("nan")

    def begin(self) -> tuple[int, lm_model.State]:
        """Compile while the checkpoint is being read; return the number of finished steps."""
        abstract = self.trainer.abstract_state()
        self.introduce(abstract)
        with ThreadPoolExecutor(1) as pool:
            step = self.trainer.jit_step()
            compiled = pool.submit(lambda: step.lower(abstract, self.feed.abstract).compile())
            done, state = self.restore(abstract)
            self.update = compiled.result()
        if state is None:
            state = self.trainer.jit_init()(jax.random.key(self.arguments.seed))
        self.report.metrics(restored_step=done)
        self.report.say(f"begins after step {done}" if done else "begins anew")
        self.report.times.clear()
        return done, state

    def introduce(self, abstract: lm_model.State) -> None:
        count = sum(leaf.size for leaf in jax.tree.leaves(abstract["params"]))
        size = lm_model.bytes_per_chip(abstract)
        digest, shape = self.feed.corpus.digest, dict(self.trainer.mesh.shape)
        text = f"mesh {shape}, {count:,} parameters, state {size / 2**20:,.1f} MiB a chip"
        print(f"process {jax.process_index()} of {jax.process_count()}: text {digest[:16]}")
        self.report.say(text)

    def restore(self, abstract: lm_model.State) -> tuple[int, Any]:
        from checkpoints import Checkpoints, gather  # Orbax takes a while to import

        texts = gather([int(self.feed.corpus.digest[:6], 16)])[:, 0]
        if len(set(texts.tolist())) > 1:
            raise ValueError("the hosts have different texts: is Python the same on all of them?")
        if not self.arguments.checkpoint_dir:
            return 0, None
        self.checkpoints = Checkpoints(self.arguments.checkpoint_dir, self.arguments.keep)
        return self.checkpoints.restore(abstract)

    def train(self) -> int:
        """The exit code. All processes leave the loop after the same step."""
        done, state = self.begin()
        last, stopped = self.arguments.steps, False
        while done < last and not stopped:
            done += 1
            state, result = self.update(state, self.feed.train(done, self.wish.is_there))
            self.results.append((done, result))
            stopped = self.look(AHEAD)
            if self.is_due(self.arguments.save_interval, done) and not stopped:
                # Nothing is saved before its losses are told: no gap in the curve after a restart.
                stopped = self.look(0)
                if not stopped and done < last:
                    self.save(done, state)
            if self.is_due(self.arguments.eval_interval, done) and not stopped:
                self.validate(done, state)
            if self.checkpoints:
                self.report.saved(self.checkpoints.finished())
        stopped = self.look(0) or stopped
        self.end(done, state)
        if stopped and done < last:
            self.report.say(f"stopped after step {done}, as asked by SIGTERM")
            return TERMINATED
        loss = f", loss {self.loss!r} ({self.loss.hex()})" if np.isfinite(self.loss) else ""
        self.report.say(f"finished at step {done}{loss}")
        return 0

    def is_due(self, interval: int, step: int) -> bool:
        return interval > 0 and step % interval == 0

    def look(self, ahead: int) -> bool:
        """Report the losses of all but the last `ahead` steps; whether anybody wants to stop.

        The answer comes out of the step itself, so it is the same for all processes: no process
        can leave while another waits for it in the next step.
        """
        stop = False
        while len(self.results) > ahead:
            step, result = self.results.popleft()
            self.loss = float(result["loss"])
            if not np.isfinite(self.loss):
                raise ValueError(f"the loss of step {step} is {self.loss}")
            self.report.step(step, self.loss)
            stop = stop or float(result["stop"]) > 0
        return stop

    def validate(self, step: int, state: lm_model.State) -> None:
        text = self.feed.corpus.validation
        batches = (self.feed.tokens(text, number) for number in range(VALIDATION_BATCHES))
        losses = [float(self.trainer.jit_loss(state["params"], batch)) for batch in batches]
        loss = sum(losses) / len(losses)
        self.report.metrics(step=step, validation_loss=loss)
        self.report.say(f"step {step}: validation loss {loss:.4f}")

    def save(self, step: int, state: lm_model.State) -> None:
        if self.checkpoints:
            self.report.saved(self.checkpoints.finished(wait=True))
            self.checkpoints.save(step, state)

    def end(self, step: int, state: lm_model.State) -> None:
        """Save the last state, unless this attempt began with it, and wait until it is complete."""
        if self.checkpoints:
            if np.isfinite(self.loss):  # of a step that this attempt made
                self.save(step, state)
            self.report.saved(self.checkpoints.finished(wait=True))
            self.checkpoints.close()


def work(arguments: argparse.Namespace, wish: Wish) -> int:
    connect()
    keep_compiled(arguments.checkpoint_dir)
    return Run(arguments, wish).train()


def main() -> None:
    wish = Wish()
    arguments = parse(sys.argv[1:])
    leave_with(lambda: work(arguments, wish))


if __name__ == "__main__":
    main()
