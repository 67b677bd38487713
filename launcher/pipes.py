"""A command whose reader goes away, as in `… | head -1`, ends quietly."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable


def until_unread(call: Callable[[], int]) -> int:
    """The exit code of a call, or that of SIGPIPE when nobody reads what it prints any more."""
    try:
        code = call()
        sys.stdout.flush()
    except BrokenPipeError:
        if not (_unread(1) or _unread(2)):
            raise
        code = 128 + signal.SIGPIPE
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # the interpreter flushes once more as it ends
        os.dup2(nowhere, 2)
    return code


def _unread(descriptor: int) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(descriptor, 0)  # an error is reported unasked
    return any(event & select.POLLERR for _, event in poll.poll(0))
