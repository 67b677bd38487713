"""Trials by plain Ray Tune, at its fastest: an actor a place, used again for each next trial.

python ray_tune.py TRIALS PLACES [--jax]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray_tasks
from ray import tune

HERE = str(Path(__file__).parent)


class Trial(tune.Trainable):
    """One call of `step` is a whole trial."""

    def setup(self, config: dict[str, Any]) -> None:
        sys.path.insert(0, HERE)
        self.with_jax = config["jax"]

    def step(self) -> dict[str, Any]:
        import trial

        value = trial.run(str(os.getpid()), time.time(), self.with_jax)
        return {"accuracy": value, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}  # Tune asks every trial for one at its end

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None: ...

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True


def main(trials: int, places: int, with_jax: bool) -> None:
    """All trials, then the end of Ray."""
    ray_tasks.start(places)
    with tempfile.TemporaryDirectory() as folder:
        tune.Tuner(
            Trial,
            param_space={"lr": tune.uniform(0, 1), "jax": with_jax},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "--jax" in sys.argv)
