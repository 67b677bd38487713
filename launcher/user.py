"""Who runs this process."""

from __future__ import annotations

import getpass
import os


def name() -> str:
    """The user's name; that of a number where there is none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid-{os.getuid()}"
