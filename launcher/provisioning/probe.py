"""Asks for the slices that an elastic run lacks, while it goes on with those that it has.

A probe is a real request: there is no other way to learn whether there is capacity. What it asks
for is on record first, under the run's name and labels, so that whoever comes after a death removes
it; what does not come in time is deleted. Only hosts that have joined the cluster make the run
larger, so that its processes leave for as short a time as a restart takes.
"""

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from launcher import cluster
from launcher.cluster import Host
from launcher.deadline import Deadline
from launcher.errors import LauncherError, ProvisioningError
from launcher.hosts.member import Place
from launcher.providers import Deadlines
from launcher.provisioning import joining, on_record, provision, slices, unwanted
from launcher.provisioning.provision import Joined
from launcher.provisioning.requests import Request
from launcher.session import Session


class Probe:
    """Nothing at first; from the time at which a change would be welcome, one probe after another.

    `look` is called now and then by the thread that owns the run; `end` before that goes on.
    """

    def __init__(self, session: Session, joined: Joined) -> None:
        self._session = session
        self._joined = joined
        self._mode = session.spec.mode
        self._wide = session.plan.widest(joined.choice)
        self._lacking = [
            index for index, node in enumerate(self._wide.nodes) if node not in joined.choice.nodes
        ]
        self._due = Deadline(max(self._mode.probe_interval, self._mode.resize_interval))
        self._abort = threading.Event()
        self._keeps = False  # whether an abort leaves what was asked for to somebody else
        self._pool = ThreadPoolExecutor(1)
        self._asking: Future[dict[Place, Host]] | None = None
        self.grown: Mapping[Place, Host] = {}  # hosts of new slices, by place in the widest choice

    def look(self) -> str:
        """Why the run is to start again: it can be larger; "" while it cannot."""
        if self._lacking and self._asking is None and self._due.passed:
            self._asking = self._pool.submit(self._ask)
        if self._asking and self._asking.done() and not self.grown:
            self._conclude(self._asking)
        if not self.grown:
            return ""
        before = len(self._joined.choice.nodes)
        return f"{before + len({slice_ for slice_, _ in self.grown})} slices in place of {before}"

    def abort(self) -> None:
        """Ask no more. What is under way comes to its end by itself, and then `end` returns."""
        self._abort.set()

    def end(self, *, keeps: bool = False) -> None:
        """Ask no more. What has grown stays; what else was asked for is deleted, unless another
        supervisor `keeps` the run.
        """
        self._keeps = keeps
        self.abort()
        self._pool.shutdown()
        if self._asking and not self.grown and not self._asking.exception():
            self.grown = self._asking.result()

    def _conclude(self, asking: Future[dict[Place, Host]]) -> None:
        """Take what came, or begin to wait for the next time."""
        try:
            self.grown = asking.result()
        except Exception as error:  # whatever it is: the run itself goes on
            if not isinstance(error, LauncherError):
                traceback.print_exception(error)
            why = (str(error) or repr(error)).splitlines()[0]
            self._session.tell("probe", f"no larger number of slices: {why}")
            self._asking = None
            self._due = Deadline(self._mode.probe_interval)

    # --- in a thread of its own -------------------------------------------------------------------

    def _ask(self) -> dict[Place, Host]:
        """The hosts of as many new slices as make a larger size; whatever else came is deleted."""
        incarnation = secrets.token_hex(4)
        fill = provision.filler(self._joined.head)
        wanted = [self._wide.requests[index] for index in self._lacking]
        asked = [slices.filled(r, self._session, incarnation, fill) for r in wanted]
        self._session.tell("probe", f"asks for {len(wanted)} more", slices=len(wanted))
        on_record.add(self._session, wanted, incarnation)
        came: list[int] = []
        try:
            came = self._enough(self._create(asked))
            return self._join(came, incarnation)
        except BaseException:
            came = []
            raise
        finally:
            if not self._keeps:
                others = [self._wide.requests[i] for i in self._lacking if i not in came]
                unwanted.remove(self._session, others)

    def _create(self, asked: Sequence[Request]) -> list[int]:
        """Those of the lacking slices that became READY, by their number in the widest choice."""
        with ThreadPoolExecutor(len(asked)) as pool:
            made = [pool.submit(self._create_one, request) for request in asked]
        errors = [error for each in made if (error := each.exception())]
        came = [i for i, each in zip(self._lacking, made, strict=True) if not each.exception()]
        if not came or not all(isinstance(error, ProvisioningError) for error in errors):
            raise errors[0]
        return came

    def _create_one(self, request: Request) -> None:
        limit = Deadlines(slices.queue_seconds(self._session), self._wide.provision_timeout)
        provider = self._session.provider.get()
        self._pause(0)
        self._session.folder.event("provisioning", node=request.name, endpoint=provider.endpoint)
        provider.create(request, limit, self._pause, lambda *_: None)

    def _enough(self, came: Sequence[int]) -> list[int]:
        """As many of those that came as make one of the sizes."""
        before = len(self._joined.choice.nodes)
        size = next(size for size in self._mode.sizes if size <= before + len(came))
        if size <= before:
            raise ProvisioningError(f"{len(came)} came, which makes none of mode.slices")
        return list(came[: size - before])

    def _join(self, came: Collection[int], incarnation: str) -> dict[Place, Host]:
        late = Deadline(self._session.spec.cluster.join_timeout)
        incarnations = dict.fromkeys(self._wide.nodes, incarnation)
        return cluster.gather(
            joining.expected(self._wide, incarnations, came),
            self._wide.offer.accelerator.hosts,
            lambda: late.passed,
            self._pause,
            self._console,
            lambda _: None,
        )

    def _console(self, node: str, worker: int) -> str:
        return joining.console(self._session, self._wide, node, worker)

    def _pause(self, seconds: float) -> None:
        if self._abort.wait(seconds):
            raise ProvisioningError("given up, since the run goes on without")


def probe_for(session: Session, joined: Joined) -> Probe | None:
    """One for a run that could be larger, and makes its own slices."""
    if not session.spec.mode.is_elastic or joined.states is not None:
        return None
    return Probe(session, joined)
