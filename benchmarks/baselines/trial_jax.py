"""One trial that imports JAX as programs do, at their top, and runs one step: see `trial`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import trial


def step() -> float:
    gradient = jax.jit(jax.grad(lambda x: jnp.tanh(x @ x).sum()))
    return float(gradient(jnp.ones((64, 64)))[0, 0])


if __name__ == "__main__":
    trial.main(step)
