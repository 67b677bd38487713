"""One VM: its address, folders and metadata server, and the processes below its init."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.emulator.machine import guest, init
from launcher.emulator.machine.metadata import MetadataServer
from launcher.errors import ConfigError, ProvisioningError

PATIENCE = 5.0
"""Seconds that a host's init has to obey; it takes milliseconds unless somebody stopped it."""
_inits: set[int] = set()
_INIT = (sys.executable, "-S", "-E", init.__file__)


class HostState(StrEnum):
    """OFF → RUNNING ⇄ FROZEN → OFF. A host that is switched off may boot again."""

    OFF = "off"
    RUNNING = "running"
    FROZEN = "frozen"


_OBEYED = {b"F": HostState.FROZEN, b"T": HostState.RUNNING}


class Host:
    """One VM. Its folder lives as long as its node does, its temp folder while it is on.

    `values` are those of its metadata server, `variables` what its environment has beside what all
    have.
    """

    def __init__(
        self,
        identity: guest.Guest,
        values: Mapping[str, str],
        variables: Mapping[str, str],
        listener: socket.socket,
        folder: Path,
        temp: Path,
    ) -> None:
        self.identity = identity
        self.state = HostState.OFF
        self.console = folder / "console.log"
        self.metadata = MetadataServer(listener, values)
        self._home = folder / "home"
        self._script = folder / "startup-script"
        self._environment = {**guest.environment(identity, self._home, temp), **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    def boot(self, script: str) -> None:
        """Starts init and, if there is one, the startup script."""
        self._home.mkdir(parents=True, exist_ok=True)
        self._script.write_text(script, encoding="utf-8")
        argv = (*_INIT, str(self._script)) if script else _INIT
        self._link, theirs = socket.socketpair()
        with theirs, self.console.open("ab") as console:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=console,
                stderr=console,
                cwd=self._home,
                env=self._environment,
                start_new_session=True,
            )
        _inits.add(self._process.pid)
        self._gone.clear()
        self._answers = asyncio.Queue()
        self.state = HostState.RUNNING
        self._link.setblocking(False)
        asyncio.get_running_loop().add_reader(self._link, self._hear)

    async def end(self) -> None:
        """Switches the host off; returns when no process of it is left."""
        if self.state is HostState.OFF or not self._process:
            return
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._gone.wait()
        except TimeoutError:
            self._process.kill()  # what it leaves behind becomes ours, and is killed too
            await self._gone.wait()

    async def freeze(self) -> None:
        """Stops every process of the host."""
        await self._order(b"F")

    async def thaw(self) -> None:
        """Lets a frozen host go on."""
        await self._order(b"T")

    async def _order(self, order: bytes) -> None:
        """Raises ConfigError if the host is off, or about to be; ProvisioningError if init does not
        obey in time: it may still do so later.
        """
        if self.state is HostState.OFF:
            raise ConfigError(f"host {self.identity.label} is off")
        try:
            self._link.send(order)
        except OSError as error:
            raise ConfigError(f"host {self.identity.label} is being switched off") from error
        try:
            async with asyncio.timeout(PATIENCE):
                while await self._answers.get() not in (order, b""):
                    pass  # the late answer to an order that was given up
        except TimeoutError:
            message = f"init of host {self.identity.label} does not answer within {PATIENCE:.0f} s"
            raise ProvisioningError(message) from None

    def _hear(self) -> None:
        """Init has answered an order, or has ended."""
        try:
            answer = self._link.recv(1)
        except ConnectionError:
            answer = b""
        self._answers.put_nowait(answer)
        if answer:
            self.state = _OBEYED[answer]
        else:
            self._note_end()

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()
        if self._process:
            killed = self._process.wait()
            _inits.discard(self._process.pid)
            if killed:
                _end_orphans()
        self.state = HostState.OFF
        self._gone.set()

    def tail(self, size: int) -> str:
        """The last bytes of the console log, as text."""
        with contextlib.suppress(FileNotFoundError), self.console.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
        return ""

    def to_json(self) -> dict[str, Any]:
        """What the ledger and `hosts` say of it."""
        running = self._process and self.state is not HostState.OFF
        return {
            "host": self.identity.label,
            "node": self.identity.node,
            "worker": self.identity.worker,
            "address": self.identity.address,
            "pid": self._process.pid if running and self._process else None,
            "state": self.state.value,
            "console": str(self.console),
        }


def _end_orphans() -> None:
    """Kills what a host leaves behind whose init was itself killed.

    The emulator is a child subreaper as well, so that such processes are now children of its own;
    beside these it has only the inits.
    """
    while strays := set(init.children().get(os.getpid(), ())) - _inits:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
