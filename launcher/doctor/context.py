"""What checks look at: the configuration, and the provider that it names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.doctor.findings import Finding, Skip
from launcher.errors import (
    ClusterError,
    ConfigError,
    LauncherError,
    ProvisioningError,
)
from launcher.plan import Plan
from launcher.providers import KINDS, Provider, project_of
from launcher.session import LazyProvider
from launcher.spec import ProviderSpec, Spec

if TYPE_CHECKING:
    from launcher.providers.services import Services

CALL_SECONDS = 15.0  # of one call to Google


class Cloud:
    """The provider of a configuration, opened by whichever check needs it first.

    Both kinds of provider are Google's client, of a project or of the emulator.
    """

    def __init__(self, spec: ProviderSpec) -> None:
        self.spec = spec
        self.project = project_of(spec)
        self._provider = LazyProvider(spec)
        self._lock = threading.Lock()
        self._services: Services | None = None

    def open(self) -> Provider:
        """Raises LauncherError when there are no credentials, or the emulator does not start."""
        return self._provider.get()

    @property
    def tpu(self) -> Any:
        """The `TpuClient`."""
        return self._opened().client

    @property
    def services(self) -> Services:
        from launcher.providers.services import open_services

        self._opened()
        with self._lock:
            if self._services is None:
                self._services = open_services(self.spec)
            return self._services

    def _opened(self) -> Provider:
        try:
            return self.open()
        except LauncherError:
            raise Skip("the provider cannot be asked, see above") from None

    @property
    def emulated(self) -> bool:
        return not KINDS[self.spec.kind].billed

    def close(self) -> None:
        self._provider.close()


@dataclass(frozen=True, slots=True)
class Context:
    """`loaded` is None when the configuration is wrong, as `error` says. `cwd` is where the user
    stands: run folders are made in it. `owner` is the user as a label value.
    """

    cwd: Path
    owner: str
    loaded: tuple[Spec, Plan, Cloud] | None
    error: ConfigError | None = None

    @property
    def spec(self) -> Spec:
        return self._need()[0]

    @property
    def plan(self) -> Plan:
        return self._need()[1]

    @property
    def cloud(self) -> Cloud:
        return self._need()[2]

    def _need(self) -> tuple[Spec, Plan, Cloud]:
        if self.loaded is None:
            raise Skip("the configuration is wrong, see above")
        return self.loaded

    @property
    def zones(self) -> list[str]:
        """Every zone that is tried, once."""
        return list(dict.fromkeys(offer.zone for offer in self.spec.cluster.offers))

    @property
    def bucket(self) -> str | None:
        return bucket_of(self.spec)


def bucket_of(spec: Spec) -> str | None:
    """The bucket of the checkpoints, None if they go elsewhere."""
    where = (spec.workload.checkpoint_dir if spec.workload else None) or ""
    return where.removeprefix("gs://").split("/")[0] if where.startswith("gs://") else None


Look = Callable[[Context], Iterable[Finding]]

CONFIG, MACHINE, PROVIDER = ConfigError, ClusterError, ProvisioningError
"""What a problem is about, as the error that a run would end in."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at. `look` may raise Skip, and any error of the provider."""

    title: str
    area: type[LauncherError]  # CONFIG, MACHINE or PROVIDER
    look: Look
