"""The least that composing our configuration can cost: a bare Hydra application on its conf/."""

from __future__ import annotations

from pathlib import Path

import hydra
from omegaconf import DictConfig

CONF = Path(__file__).parents[2] / "conf"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> None:
    """Never reached: the benchmark asks for `--cfg job`."""


if __name__ == "__main__":
    main()
