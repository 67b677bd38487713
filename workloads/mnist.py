"""Learning to read handwritten digits: the program that sweeps of `lr` and `momentum` are shown on.

    python workloads/mnist.py --lr=0.1 --momentum=0.9
    python workloads/mnist.py --data=DIR          # with MNIST's own four files in DIR

It is an ordinary JAX program. Alone it uses the devices of this machine; started by the launcher,
one process a host, it spreads each batch over all chips. After every epoch it tells its accuracy
and loss on the test images, and saves. On SIGTERM all processes finish the same update, save it and
leave with exit code 143. On the same chips and with the same number of processes, a run that was
interrupted has the numbers of one that was not, bit for bit.

Read on in `mnist_data.py` (the images), `checkpoints.py`, `resumable.py` and `supervised.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import mnist_data
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from resumable import connect, keep_compiled, leave_with
from supervised import TERMINATED, Voice, Wish

if TYPE_CHECKING:
    from checkpoints import Checkpoints

LISTEN_INTERVAL = 50  # updates between two looks at whether any process was asked to stop
TEST_BATCH = 512  # images that are looked at together
KEEP = 2  # checkpoints, the newest


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Learn to read handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", help="a folder with MNIST's four IDX files; none: scikit-learn's small digits")
    add("--model", default="cnn", choices=sorted(MODELS))
    add("--lr", type=float, default=0.1, help="learning rate of SGD")
    add("--momentum", type=float, default=0.9)
    add("--batch_size", type=int, default=64, help="images of an update, over all chips")
    add("--epochs", type=int, default=5, help="in all, over all attempts")
    add("--seed", type=int, default=0)
    add(
        "--checkpoint_dir",
        default=os.environ.get("LAUNCHER_CHECKPOINT_DIR"),
        help="a folder or gs://bucket/folder; none: nothing is saved",
    )
    arguments = parser.parse_args(words)
    for name, least in {"batch_size": 1, "epochs": 0, "seed": 0}.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, not {getattr(arguments, name)}")
    return arguments


class Cnn(nn.Module):
    """Images (batch, height, width, 1) to logits (batch, classes)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (16, 32):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        return nn.Dense(mnist_data.CLASSES)(x)


class Mlp(nn.Module):
    """The same without convolutions."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
        return nn.Dense(mnist_data.CLASSES)(x)


MODELS: dict[str, type[nn.Module]] = {"cnn": Cnn, "mlp": Mlp}


class Trainer:
    """The network on a mesh of all chips. Learning rate and momentum are arguments of the compiled
    update, so that all trials of a sweep share one program.
    """

    def __init__(self, arguments: argparse.Namespace, digits: mnist_data.Digits) -> None:
        self.model = MODELS[arguments.model]()
        mesh = Mesh(np.array(jax.devices()), ("data",))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.rows = NamedSharding(mesh, PartitionSpec(None, "data"))
        self.train = self.put(digits.train_images), self.put(digits.train_labels)
        self.test = self.put(digits.test_images), self.put(digits.test_labels)
        self.shape = (1, *digits.train_images.shape[1:])
        self.rates = np.float32(arguments.lr), np.float32(arguments.momentum)
        self.update = jax.jit(self._update, donate_argnums=0, out_shardings=self.everywhere)
        self.measure = jax.jit(self._measure, out_shardings=self.everywhere)

    def put(self, array: np.ndarray, rows: bool = False) -> jax.Array:
        """On all chips: whole, or each chip its part of every row."""
        where = self.rows if rows else self.everywhere
        return jax.make_array_from_callback(array.shape, where, lambda index: array[index])

    def init(self, seed: int) -> Any:
        return jax.jit(self._init, out_shardings=self.everywhere)(jax.random.key(seed))

    def abstract_state(self) -> Any:
        shapes = jax.eval_shape(self._init, jax.random.key(0))
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.everywhere),
            shapes,
        )

    def _init(self, key: jax.Array) -> Any:
        params = self.model.init(key, jnp.zeros(self.shape))["params"]
        return {"params": params, "optimizer": optax.sgd(0.0, 0.0).init(params)}

    def _loss(self, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = self.model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def _update(self, state: Any, data: Any, rates: Any, order: jax.Array, row: Any) -> Any:
        """One step of SGD on the images that `order[row]` names."""
        images, labels = (part[order[row]] for part in data)
        gradients = jax.grad(self._loss)(state["params"], images, labels)
        updates, optimizer = optax.sgd(*rates).update(gradients, state["optimizer"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}

    def _measure(self, params: Any, data: Any) -> tuple[jax.Array, jax.Array]:
        """Accuracy, and mean cross entropy in nats."""

        def judge(one: Any) -> Any:
            image, label = one
            logits = self.model.apply({"params": params}, image[None])[0]
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
            return logits.argmax() == label, loss

        right, losses = jax.lax.map(judge, data, batch_size=TEST_BATCH)
        return right.mean(), losses.mean()


class Run:
    """One attempt: from the checkpoint to the last epoch, or to a wish to stop."""

    def __init__(self, arguments: argparse.Namespace, wish: Wish) -> None:
        self.arguments, self.wish = arguments, wish
        self.voice = Voice(jax.process_index() == 0)
        digits = mnist_data.load(arguments.data)
        self.images = len(digits.train_labels)
        self.per_epoch = self.images // arguments.batch_size
        self._check()
        self.trainer = Trainer(arguments, digits)
        self.checkpoints: Checkpoints | None = None
        self.saved = 0
        height, width = digits.train_images.shape[1:3]
        self.voice.say(
            f"{self.images} images of {height} x {width} to learn from,"
            f" {len(digits.test_labels)} to test with; {jax.device_count()} chips"
        )

    def _check(self) -> None:
        size, chips = self.arguments.batch_size, jax.device_count()
        if self.per_epoch == 0:
            raise ValueError(f"--batch_size={size} is more than all {self.images} images")
        if size % chips:
            raise ValueError(f"--batch_size={size} does not divide by {chips} chips")

    def train(self) -> int:
        """The exit code. All processes leave after the same update."""
        done, state = self.begin()
        last = self.arguments.epochs * self.per_epoch
        order, stopped = None, False
        while done < last and not stopped:
            epoch, row = divmod(done, self.per_epoch)
            if order is None or row == 0:
                order = self.order(epoch)
            trainer = self.trainer
            state = trainer.update(state, trainer.train, trainer.rates, order, np.int32(row))
            done += 1
            if row + 1 == self.per_epoch:
                self.tell(epoch + 1, state)
                self.save(done, state)
            if row + 1 == self.per_epoch or done % LISTEN_INTERVAL == 0:
                stopped = done < last and self.is_to_stop()
        self.end(done, state)
        if stopped:
            self.voice.say(f"stopped after {done} of {last} updates, as asked by SIGTERM")
        return TERMINATED if stopped else 0

    def begin(self) -> tuple[int, Any]:
        """The number of finished updates, and what they made."""
        done, state = 0, None
        if self.arguments.checkpoint_dir:
            from checkpoints import Checkpoints  # Orbax takes a while to import

            self.checkpoints = Checkpoints(self.arguments.checkpoint_dir, KEEP)
            done, state = self.checkpoints.restore(self.trainer.abstract_state())
        self.saved = done
        self.voice.metrics(restored_step=done // self.per_epoch)
        self.voice.say(f"begins after {done} updates" if done else "begins anew")
        return done, self.trainer.init(self.arguments.seed) if state is None else state

    def order(self, epoch: int) -> jax.Array:
        """A row of images for each update of the epoch; what is left over is left out."""
        size = self.arguments.batch_size
        order = mnist_data.order(self.arguments.seed, epoch, self.images)
        rows = order[: self.per_epoch * size].reshape(self.per_epoch, size)
        return self.trainer.put(rows, rows=True)

    def tell(self, epoch: int, state: Any) -> None:
        """The loss may be NaN: that is for whoever compares runs to judge."""
        measured = self.trainer.measure(state["params"], self.trainer.test)
        accuracy, loss = (float(value) for value in measured)
        self.voice.metrics(step=epoch, accuracy=accuracy, loss=loss)
        self.voice.say(f"epoch {epoch}: accuracy {accuracy:.4f}, loss {loss:.4f}")

    def is_to_stop(self) -> bool:
        if jax.process_count() == 1:
            return self.wish.is_there
        from checkpoints import gather

        return bool(gather([int(self.wish.is_there)])[:, 0].any())

    def save(self, done: int, state: Any) -> None:
        if self.checkpoints and done > self.saved:
            self.finish()
            self.checkpoints.save(done, state)
            self.saved = done

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and tell of it."""
        done = self.checkpoints.finished(wait=True) if self.checkpoints else None
        if done is not None:
            self.voice.metrics(saved_step=done // self.per_epoch)
            self.voice.say(f"saved after {done} updates")

    def end(self, done: int, state: Any) -> None:
        self.save(done, state)
        self.finish()
        if self.checkpoints:
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
