"""Trials as calls of a function, by one of Hydra's launchers: its own, or hydra-ray-launcher's.

python hydra_sweep.py -m 'lr=range(1,21)' [+jax=true] [hydra/launcher=ray …]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import hydra
from omegaconf import DictConfig

sys.path.insert(0, str(Path(__file__).parent))


@hydra.main(version_base="1.3", config_path=None)
def main(config: DictConfig) -> float:
    """hydra-ray-launcher pickles it by value: what it needs it imports itself."""
    import trial

    return trial.run(str(os.getpid()), time.time(), bool(config.get("jax")))


if __name__ == "__main__":
    main()
