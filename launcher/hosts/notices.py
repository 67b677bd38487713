"""Hears that this host will go: from its metadata server, and by SIGTERM. Runs on a host.

`instance/preempted` turns TRUE when Compute Engine takes a VM back, and the VM is then shut down
(https://cloud.google.com/compute/docs/instances/preemptible#metadata); `instance/maintenance-event`
names maintenance that is due
(https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice). The host's own init
announces a shutdown by SIGTERM, at which a Ray worker would leave.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

LOOK_SECONDS = 1.0
LOOK_LATER_SECONDS = 16.0  # at most, where nobody answers
ANSWER_SECONDS = 2.0
# What is asked, by the kind of notice, and the answer that is none.
QUESTIONS = {"preempted": "FALSE", "maintenance-event": "NONE"}
SIGTERM = "SIGTERM"


class Notices:
    """Calls `tell` with each new notice: its kind, the server's word, and when it was heard."""

    def __init__(self, environment: Mapping[str, str], tell: Callable[..., None]) -> None:
        server = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
        self.url = f"http://{server}/computeMetadata/v1/instance/"
        self.tell = tell
        self.in_force: dict[str, dict[str, Any]] = {}
        self.answers = False  # whether the server has answered when it was asked last
        self.asking = threading.Lock()
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        threading.Thread(target=self._look, daemon=True).start()
        self._take_sigterm()

    def _look(self) -> None:
        wait = LOOK_SECONDS
        while True:
            self._ask_all()
            wait = LOOK_SECONDS if self.answers else min(2 * wait, LOOK_LATER_SECONDS)
            time.sleep(wait)

    def refresh(self) -> None:
        """Look at once, where it takes no time."""
        if self.answers:
            self._ask_all()

    def _ask_all(self) -> None:
        with self.asking:
            answered = [self._ask(kind, none) for kind, none in QUESTIONS.items()]
            self.answers = all(answered)

    def _ask(self, kind: str, none: str) -> bool:
        """Note what the server says; False when it says nothing."""
        request = urllib.request.Request(self.url + kind, headers={"Metadata-Flavor": "Google"})
        try:
            with self.opener.open(request, timeout=ANSWER_SECONDS) as reply:
                word = reply.read(1024).decode(errors="replace").strip()
        except (OSError, ValueError, http.client.HTTPException):
            return False
        if word in ("", none):
            self.in_force.pop(kind, None)
        elif self.in_force.get(kind, {}).get("word") != word:
            self._note(kind, word)
        return True

    def _note(self, kind: str, word: str = "") -> None:
        notice = {"told": kind, "word": word, "time": time.time()}
        self.in_force[kind] = notice
        self.tell(**notice)

    def _take_sigterm(self) -> None:
        """Have SIGTERM noted in place of Ray's own handler, which leaves.

        By a wake-up descriptor: the main thread of a Ray worker is in Ray's own loop, where it
        runs no handlers. Only the main thread may do this; elsewhere Ray's handler stays.
        """
        with contextlib.suppress(ValueError):
            bell, ringer = socket.socketpair()
            ringer.setblocking(False)
            signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
            signal.signal(signal.SIGTERM, lambda *_: None)
            threading.Thread(target=self._hear, args=(bell, ringer), daemon=True).start()

    def _hear(self, bell: socket.socket, _ringer: socket.socket) -> None:
        while numbers := os.read(bell.fileno(), 64):
            if signal.SIGTERM in numbers and SIGTERM not in self.in_force:
                self._note(SIGTERM)
