"""Where remote runs are supervised: the kinds of coordinators, behind one interface."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from launcher import registry
from launcher.errors import ClusterError, ConfigError
from launcher.plan import Choice
from launcher.providers import KINDS, Pause
from launcher.provisioning import looks, on_record, slices
from launcher.remote import tunnel
from launcher.remote.jobs import Dashboard, Jobs
from launcher.session import Session
from launcher.spec import Spec

HEAD_SECONDS = 900.0  # a fresh VM installs Python and Ray
REACH_SECONDS = 10.0  # one that is known to have a head


class Site(Protocol):
    """A coordinator. `record` is what `of_record` needs to find it again."""

    @property
    def record(self) -> Mapping[str, Any]: ...

    def prepare(self, session: Session) -> None:
        """Make it, or see that it is there. It is on record first."""

    def reached(self, pause: Pause) -> contextlib.AbstractContextManager[Jobs]:
        """Its jobs. Raises ClusterError when it cannot be reached."""

    def dashboard(self) -> str:
        """How the user gets to see the dashboard."""


def forget_token(record: Mapping[str, Any]) -> None:
    """Of a cluster that has ended with its slice."""
    if found := record.get("host0"):
        host0_token(found["run"]).unlink(missing_ok=True)


def host0_token(run: str) -> Path:
    return registry.home() / "coordinators" / f"host0-{run}.token"


def of_spec(spec: Spec, session: Session) -> Site:
    from launcher.remote import vm

    match spec.cluster.coordinator:
        case "vm":
            return VmSite(vm.wanted(spec, on_record.provider_of(session), session.owner))
        case "host0":
            external_ips = spec.cluster.machine.external_ips
            return Host0Site(spec.name, on_record.provider_of(session), external_ips)
        case address:
            return AddressSite(url_of(address), os.environ.get("RAY_AUTH_TOKEN_PATH"))


def of_record(record: Mapping[str, Any]) -> Site:
    """Raises ClusterError when the VM is not on record any more."""
    from launcher.remote import vm

    if url := record.get("url"):
        return AddressSite(url, record["token_path"])
    if "host0" in record:
        return Host0Site(**record["host0"])
    if found := vm.find(record["vm"]):
        return VmSite(found)
    raise ClusterError(f"the coordinator {record['vm']} is not on record any more")


@dataclass(frozen=True, slots=True)
class Door:
    """The way to a dashboard that we have started: its address, or a tunnel to Google's network."""

    title: str
    kind: str  # of the provider
    ssh: tuple[str, ...]  # to the machine, where a tunnel is needed
    address: str
    port: int
    token_file: Path

    @contextlib.contextmanager
    def opened(self, pause: Pause) -> Iterator[Jobs]:
        """Raises ClusterError when it cannot be reached."""
        if not self.address:
            raise ClusterError(f"{self.title} is not up yet")
        try:
            token = self.token_file.read_text()
        except OSError as error:
            raise ClusterError(f"no token for {self.title}: {error}") from error
        with self._url(pause) as url:
            yield Jobs(Dashboard(url, token))

    def _url(self, pause: Pause) -> contextlib.AbstractContextManager[str]:
        if KINDS[self.kind].tunnelled:
            return tunnel.opened(self.ssh, self.address, self.port, pause)
        return contextlib.nullcontext(f"http://{self.address}:{self.port}")

    def for_users(self) -> str:
        if not KINDS[self.kind].tunnelled:
            return f"http://{self.address}:{self.port}"
        forward = tunnel.command(self.ssh, self.address, self.port)
        return f"http://localhost:{self.port} after: {forward}"


def tail(console: str) -> str:
    """The end of a console, which tells why a startup script came to nothing."""
    return "".join(f"\n    | {line}" for line in console.strip().splitlines()[-15:])


class VmSite:
    """A VM of its own."""

    def __init__(self, found: Any) -> None:
        from launcher.remote.vm import Vm

        self.vm: Vm = found

    @property
    def record(self) -> Mapping[str, Any]:
        return {"vm": self.vm.key}

    def prepare(self, session: Session) -> None:
        from launcher.remote import vm, vm_making
        from launcher.remote.vm_instances import Instances

        runs = tuple(sorted({*self.vm.runs, session.spec.name}))
        self.vm, pause = replace(self.vm, runs=runs), session.interrupt.pause
        session.screen.wait("coordinator: looking for it")
        with vm_making.held(self.vm, pause):
            if not self._answers(pause):
                session.provider.get()  # holds the emulator, if it is one
                self.vm = vm_making.make(self.vm, session.spec, session.owner, session.tell, pause)
            vm.note(self.vm)
        vm.tell_other_settings(self.vm, session.spec, session.tell)
        session.screen.wait("coordinator: waiting for its Ray head")
        try:
            with self.reached(pause, HEAD_SECONDS):
                about = f"{self.vm.title} is up; dashboard: {self.dashboard()}"
        except ClusterError as error:
            raise ClusterError(
                f"{self.vm.title}: no Ray head within {HEAD_SECONDS:g} s: {error};"
                f" the end of its serial console:{tail(Instances(self.vm).console())}"
            ) from error
        session.tell("coordinator", about)
        session.screen.wait("")

    def _answers(self, pause: Pause) -> bool:
        """Whether the VM on record is at work: then Compute Engine need not be asked."""
        if self.vm.address:
            with contextlib.suppress(ClusterError), self._door.opened(pause):
                return True
        return False

    @contextlib.contextmanager
    def reached(self, pause: Pause, seconds: float = REACH_SECONDS) -> Iterator[Jobs]:
        with contextlib.ExitStack() as stack:
            deadline = time.monotonic() + seconds
            while True:
                try:
                    jobs = stack.enter_context(self._door.opened(pause))
                    break
                except ClusterError as error:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"{self.vm.title} does not answer: {error}") from error
                    pause(0.5)
            yield jobs

    @property
    def _door(self) -> Door:
        vm = self.vm
        ssh, port = tunnel.to_vm(vm.name, vm.zone, vm.project), vm.ports[-1] if vm.ports else 0
        return Door(vm.title, vm.provider["kind"], ssh, vm.address, port, vm.token_file)

    def dashboard(self) -> str:
        return self._door.for_users()


class Host0Site:
    """Worker 0 of the run's only slice. The slice is made here, and lost together with the head."""

    def __init__(
        self,
        run: str,
        provider: Mapping[str, Any],
        external_ips: bool,
        node: str = "",
        address: str = "",
        ports: Sequence[int] = (),
    ) -> None:
        self._run = run
        self._provider = provider
        self._external_ips = external_ips
        self._node = node
        self._address = address
        self._ports = list(ports)

    @property
    def record(self) -> Mapping[str, Any]:
        run = {"run": self._run, "provider": self._provider, "external_ips": self._external_ips}
        where = {"node": self._node, "address": self._address, "ports": self._ports}
        return {"host0": {**run, **where}}

    def prepare(self, session: Session) -> None:
        """The slice, with a Ray head on worker 0. Its hosts join while the job is on its way."""
        token, path = secrets.token_hex(32), host0_token(self._run)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(0o600)
        path.write_text(token)
        self._ports = list(KINDS[session.spec.provider.kind].vm_ports())

        def fill(node: dict[str, Any], incarnation: str) -> None:
            join = {"incarnation": incarnation, "ports": self._ports}
            node["metadata"] |= {"launcher-join": json.dumps(join), "launcher-token": token}

        slices.acquire(session, fill, partial(self._await_head, session))
        session.tell("coordinator", f"worker 0 of {self._node}; dashboard: {self.dashboard()}")

    def _await_head(
        self, session: Session, choice: Choice, _incarnation: str, creating: slices.Creating
    ) -> None:
        """Raises Refused when the slice comes to nothing, ClusterError when its head does."""
        provider, pause = session.provider.get(), session.interrupt.pause
        (self._node,) = choice.node_names
        while not all(future.done() for future in creating):
            pause(0.05)
        for future in creating:
            future.result()
        node = provider.get(self._node)
        self._address = node.addresses[0] if node and node.addresses else ""
        session.screen.wait("worker 0: waiting for its Ray head")
        deadline = time.monotonic() + session.spec.cluster.join_timeout
        while not self._answers(pause):
            looks.require_alive(session, choice, range(len(choice.nodes)))
            if time.monotonic() > deadline:
                limit = f"{session.spec.cluster.join_timeout:g} s (cluster.join_timeout)"
                shown = tail(provider.console(self._node, 0))
                raise ClusterError(f"no Ray head on worker 0 within {limit}; its console:{shown}")
            pause(0.2)
        session.screen.wait("")

    def _answers(self, pause: Pause) -> bool:
        with contextlib.suppress(ClusterError), self.reached(pause):
            return True
        return False

    def reached(self, pause: Pause) -> contextlib.AbstractContextManager[Jobs]:
        return self._door.opened(pause)

    @property
    def _door(self) -> Door:
        token, kind = host0_token(self._run), self._provider["kind"]
        if not self._node:
            return Door(self._run, kind, (), "", 0, token)
        _, project, _, zone, _, node = self._node.split("/")
        ssh = tunnel.to_host0(node, zone, project, external_ips=self._external_ips)
        return Door(self._node, kind, ssh, self._address, self._ports[-1], token)

    def dashboard(self) -> str:
        return self._door.for_users()


class AddressSite:
    """A Ray cluster of somebody's, by the address of its dashboard. Nothing is made there.

    Its token is that of Ray's own variables: RAY_AUTH_TOKEN, else the file RAY_AUTH_TOKEN_PATH,
    whose name is kept for later commands.
    """

    def __init__(self, url: str, token_path: str | None) -> None:
        self._url = url
        self._token_path = token_path

    @property
    def record(self) -> Mapping[str, Any]:
        path = self._token_path and str(Path(self._token_path).expanduser().absolute())
        return {"url": self._url, "token_path": path}

    def prepare(self, session: Session) -> None:
        with self.reached(session.interrupt.pause):
            session.tell("coordinator", f"Ray cluster at {self._url}")

    @contextlib.contextmanager
    def reached(self, pause: Pause) -> Iterator[Jobs]:
        yield Jobs(Dashboard(self._url, self._token()))

    def dashboard(self) -> str:
        return self._url

    def _token(self) -> str | None:
        """Raises ConfigError when the file that is named cannot be read."""
        if token := os.environ.get("RAY_AUTH_TOKEN"):
            return token
        if self._token_path is None:
            return None
        try:
            return Path(self._token_path).expanduser().read_text().strip()
        except OSError as error:
            raise ConfigError(f"RAY_AUTH_TOKEN_PATH: {error}") from error


def url_of(address: str) -> str:
    """`host:port` of a dashboard as a URL; one that is a URL stays."""
    return (address if "://" in address else f"http://{address}").rstrip("/")
