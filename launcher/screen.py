"""What a person sees: the workload's lines on stdout, the launcher's own on stderr.

Through a pipe everything is plain lines. On a terminal the launcher's lines are coloured, and a
status line says what is being waited for.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from launcher.hosts.member import Member

LONGEST_LINE = 65_536
# Chatter of libraries, a line per device: kept in the logs, not shown.
CHATTER = re.compile(rb"connected to \d+ peer ranks|Expected number of connected peer ranks")


class Screen:
    """Prints; never raises because a reader went away."""

    def __init__(self, started: float | None = None) -> None:
        self.started = time.monotonic() if started is None else started
        self.lock = threading.Lock()
        self.partial: dict[Member, bytes] = {}
        self.out = tolerant(sys.stdout)
        self.err = tolerant(sys.stderr)
        self.console = rich_console() if self.err.isatty() else None
        self.colour = self.console is not None and self.out.isatty()
        self.status: Any = None
        self.subject = ""

    def phase(self, topic: str, text: str) -> None:
        """A fact: what has been done."""
        elapsed = time.monotonic() - self.started
        with self.lock, contextlib.suppress(OSError, ValueError):
            if self.console is None:
                print(f"{elapsed:6.1f}s  {topic:<12} {text}", file=self.err, flush=True)
            else:
                from rich.text import Text

                line = Text.assemble((f"{elapsed:6.1f}s  ", "dim"), (f"{topic:<12} ", "bold"), text)
                self.console.print(line)  # one call: the status line is drawn anew in between

    def wait(self, text: str) -> None:
        """What is being waited for; empty when nothing is. Through a pipe a line when it is new."""
        subject = text.partition(":")[0]
        if self.console is None:
            if subject and subject != self.subject:
                self.phase("wait", text)
            self.subject = subject
            return
        with self.lock:
            if self.status is not None:
                self.status.stop()
                self.status = None
            if text:
                self.status = self.console.status(f"[dim]{text}[/]", spinner="dots")
                self.status.start()

    def output(self, member: Member, chunk: bytes) -> None:
        """Print the whole lines among what a process wrote, each behind its place."""
        *lines, rest = (self.partial.get(member, b"") + chunk).replace(b"\r\n", b"\n").split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self.partial[member] = rest
        self._print(member, lines)

    def metrics(self, values: Mapping[str, Any]) -> None:
        """A program's metrics are not for the screen of a single run: it prints what it wants."""

    def finish(self) -> None:
        """Print last lines that lack a newline."""
        for member, rest in self.partial.items():
            if rest:
                self._print(member, [rest])
        self.partial.clear()

    def _print(self, member: Member, lines: list[bytes]) -> None:
        lines = [line for line in lines if not CHATTER.search(line)]
        if not lines:
            return
        prefix = f"[{member}] "
        if self.colour:
            colour = 32 + (member.slice * 64 + member.host) % 5  # none of them red
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        text = "".join(f"{prefix}{line.decode(errors='replace')}\n" for line in lines)
        try:
            with self.lock:
                self.out.write(text)
                self.out.flush()
        except (OSError, ValueError):  # no reader, no space, closed: the run goes on without
            self.out = io.StringIO()


def tolerant(stream: Any) -> Any:
    """The stream, made to replace what its encoding lacks; a dummy when it is closed."""
    if stream is None:
        return io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def rich_console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
