"""The network, how it lies on the chips, and one step of its training.

A decoder-only transformer on bytes: RMS norms before each part, rotary positions, tied embedding.
The layers are one `scan`, so that compiling takes as long for 24 layers as for two; each is
recomputed in the backward pass, so that only its input is kept. Parameters and optimizer are
float32, matrix products run in `dtype`.

Each chip runs `local_gradients` on its rows of the batch and its share of the parameters, with the
sums over the mesh written out. All gradients travel as one vector: a sum costs a round of messages
whatever its size, which on emulated hosts (CPU devices over TCP) is the larger part of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from lm_text import VOCABULARY

Tree = Any
State = dict[str, Tree]  # params, optimizer
Batch = dict[str, Any]  # tokens, uint8 (batch, sequence + 1); stop, float32 (data axis,)

# What the model axis splits: heads and the hidden units of the MLP. All else is whole on each chip.
# Every array of a layer begins with the axis of the layers.
SPLIT = {
    "qkv": PartitionSpec(None, None, None, "model", None),  # layer, width, 3, head, head's width
    "out": PartitionSpec(None, "model", None, None),  # layer, head, head's width, width
    "up": PartitionSpec(None, None, "model"),  # layer, width, hidden
    "down": PartitionSpec(None, "model", None),  # layer, hidden, width
}


@dataclass(frozen=True)
class Sizes:
    """`split` is the number of chips that share a layer: 1 for the whole network."""

    layers: int
    width: int
    heads: int
    dtype: str
    split: int = 1


class Layer(nn.Module):
    """Attention, then an MLP, each added to its input; this chip's heads and hidden units."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        sizes, dtype = self.sizes, jnp.dtype(self.sizes.dtype)
        width, heads = sizes.width, sizes.heads // sizes.split
        y = nn.RMSNorm(dtype=dtype)(x)
        y = nn.DenseGeneral(
            (3, heads, width // sizes.heads), use_bias=False, dtype=dtype, name="qkv"
        )(y)
        query, key, value = (y[:, :, i] for i in range(3))
        y = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        y = nn.DenseGeneral(width, (-2, -1), use_bias=False, dtype=dtype, name="out")(y)
        x += self.total(y)
        y = nn.RMSNorm(dtype=dtype)(x)
        y = nn.Dense(4 * width // sizes.split, use_bias=False, dtype=dtype, name="up")(y)
        y = nn.Dense(width, use_bias=False, dtype=dtype, name="down")(nn.gelu(y))
        return x + self.total(y), None

    def total(self, part: jax.Array) -> jax.Array:
        return jax.lax.psum(part, "model") if self.sizes.split > 1 else part


class Transformer(nn.Module):
    """Tokens (batch, sequence) to float32 logits (batch, sequence, vocabulary)."""

    sizes: Sizes

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        sizes, dtype = self.sizes, jnp.dtype(self.sizes.dtype)
        embed = nn.Embed(VOCABULARY, sizes.width, dtype=dtype, name="embed")
        layers = nn.scan(
            nn.remat(Layer, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=sizes.layers,
        )
        x, _ = layers(sizes, name="layers")(embed(tokens), None)
        return embed.attend(nn.RMSNorm(dtype=dtype)(x)).astype(jnp.float32)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions (arXiv:2104.09864) on (batch, sequence, head, head's width)."""
    sequence, half = x.shape[1], x.shape[-1] // 2
    angles = np.outer(np.arange(sequence), 10_000.0 ** (-np.arange(half) / half))[:, None]
    cos, sin = jnp.asarray(np.cos(angles), x.dtype), jnp.asarray(np.sin(angles), x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def split_of(path: tuple[Any, ...]) -> PartitionSpec:
    """How the array at `path` of the state is split; the moments of a parameter are as itself."""
    names = (getattr(key, "key", None) for key in path)
    return next((SPLIT[name] for name in names if name in SPLIT), PartitionSpec())


def equal_if_whole(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
    """Say that what is not split is the same on the whole model axis.

    It is, exactly; but as a part of one vector with what is split that cannot be seen.
    """
    return leaf if "model" in split_of(path) else jax.lax.pmean(leaf, "model")


@dataclass(frozen=True)
class Trainer:
    """Everything about one network on one mesh: shapes, places and compiled functions."""

    sizes: Sizes  # of the whole network
    optimizer: optax.GradientTransformation
    mesh: Mesh

    @property
    def split(self) -> int:
        return int(self.mesh.shape["model"])

    def places(self, tree: Tree) -> Tree:
        """The specification of each array; without a split nothing need know of the model axis."""
        if self.split == 1:
            return jax.tree.map(lambda _: PartitionSpec(), tree)
        return jax.tree.map_with_path(lambda path, _: split_of(path), tree)

    def init(self, key: jax.Array) -> State:
        params = Transformer(self.sizes).init(key, jnp.zeros((1, 1), jnp.uint8))["params"]
        return {"params": params, "optimizer": self.optimizer.init(params)}

    def abstract_state(self) -> State:
        """Shapes, types and places of the state; nothing is computed."""
        shapes: State = jax.eval_shape(self.init, jax.random.key(0))

        def placed(leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            there = NamedSharding(self.mesh, spec)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there)

        return {
            name: jax.tree.map(placed, shapes[name], self.places(shapes[name])) for name in shapes
        }

    def abstract_batch(self, batch: int, sequence: int) -> Batch:
        rows = NamedSharding(self.mesh, PartitionSpec("data"))
        return {
            "tokens": jax.ShapeDtypeStruct((batch, sequence + 1), jnp.uint8, sharding=rows),
            "stop": jax.ShapeDtypeStruct((self.mesh.shape["data"],), jnp.float32, sharding=rows),
        }

    def local_loss(self, params: Tree, tokens: jax.Array) -> jax.Array:
        """Mean cross entropy of the next byte, in nats, of one chip's rows."""
        tokens = tokens.astype(jnp.int32)
        share = Transformer(replace(self.sizes, split=self.split))
        logits = share.apply({"params": params}, tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def local_gradients(self, params: Tree, batch: Batch) -> tuple[Tree, dict[str, jax.Array]]:
        """Means over the whole batch, from one chip's part: gradients, loss, and wishes to stop."""
        own = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), params)
        loss, gradients = jax.value_and_grad(self.local_loss)(own, batch["tokens"])
        vector, restore = ravel_pytree((gradients, {"loss": loss, "stop": batch["stop"][0]}))
        mean = restore(jax.lax.pmean(vector, "data"))
        return mean if self.split == 1 else jax.tree.map_with_path(equal_if_whole, mean)

    def step(self, state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        """One update; the result holds the loss before it, and `stop`, above 0 if any is."""
        places = self.places(state["params"])
        gradients, result = jax.shard_map(
            self.local_gradients,
            mesh=self.mesh,
            in_specs=(places, PartitionSpec("data")),
            out_specs=(places, PartitionSpec()),
        )(state["params"], batch)
        updates, optimizer = self.optimizer.update(gradients, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer}, result

    @cached_property
    def jit_loss(self) -> Any:
        return jax.jit(self.loss)

    def loss(self, params: Tree, tokens: jax.Array) -> jax.Array:
        """Of the whole batch; the same on every chip."""
        return jax.shard_map(
            lambda own, rows: jax.lax.pmean(self.local_loss(own, rows), "data"),
            mesh=self.mesh,
            in_specs=(self.places(params), PartitionSpec("data")),
            out_specs=PartitionSpec(),
        )(params, tokens)

    def jit_init(self) -> Callable[[jax.Array], State]:
        places = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state())
        return jax.jit(self.init, out_shardings=places)

    def jit_step(self) -> Any:
        """The state is donated: the new one takes its memory."""
        places = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state())
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(self.step, donate_argnums=0, out_shardings=(places, everywhere))


def bytes_per_chip(abstract: Tree) -> int:
    return sum(
        leaf.dtype.itemsize * int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
        for leaf in jax.tree.leaves(abstract)
    )


def adamw(steps: int, learning_rate: float, warmup: int) -> optax.GradientTransformation:
    """AdamW with a linear warm-up and a cosine down to a tenth; gradients clipped to norm 1."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, warmup, max(steps, warmup + 1), learning_rate / 10
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    )
