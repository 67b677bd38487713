"""Makes known to Hydra: `hydra/launcher=launcher`, `hydra/sweeper=grid` and `hydra/sweeper=tune`.

Hydra takes plug-ins only of the namespace package `hydra_plugins`, which it looks for on the path
of modules; an installed plug-in would be imported by every other Hydra program as well. So ours lie
in a folder that joins the path when this program is about to use Hydra.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "plugins"
MODULE = "hydra_plugins.launcher_sweep.plugins"
LAUNCHER, GRID, TUNE = "launcher", "grid", "tune"
OPTIONS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("launcher", LAUNCHER): {"_target_": f"{MODULE}.SweepLauncher"},
    ("sweeper", GRID): {
        "_target_": f"{MODULE}.GridSweeper",
        "max_batch_size": None,
        "params": None,
    },
    ("sweeper", TUNE): {"_target_": f"{MODULE}.TuneSweeper", "params": None},
}


def register() -> None:
    """Before anything is composed; again it changes nothing.

    Hydra looks for plug-ins once a process: where it did so before, ours are named to it.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    found = Plugins.instance()
    for (group, option), node in OPTIONS.items():
        ConfigStore.instance().store(group=f"hydra/{group}", name=option, node=dict(node))
        found.register(
            getattr(importlib.import_module(MODULE), node["_target_"].rpartition(".")[2])
        )
