"""Whether this Python has what an emulated host needs: it is theirs as well.

On a real host the startup script installs what mode and workload require. An emulated one would do
the same, for each host anew and for gigabytes; what belongs to an extra of the launcher is asked
for once, here, instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launcher.doctor.packages import ROOT, project, version_of
from launcher.errors import ClusterError
from launcher.providers import KINDS
from launcher.spec import Spec

_DEVELOPMENT = "dev"  # holds the others' packages again


def require(*specs: Spec, here: Sequence[str] = ()) -> None:
    """Raises ClusterError with the command that installs all that is missing: for emulated hosts,
    and what is needed `here`, wherever the hosts are.
    """
    wanted = dict.fromkeys([*here, *(name for spec in specs for name in _emulated(spec))])
    missing = list(lacking([*wanted], extras()))
    if missing:
        names = ",".join(sorted({extra for _, extra in missing}))
        faults = "; ".join(fault for fault, _ in missing)
        raise ClusterError(
            f"this Python, which emulated hosts use as well, lacks packages: {faults}"
            f"\n{command(names)}"
        )


def _emulated(spec: Spec) -> Sequence[str]:
    if KINDS[spec.provider.kind].billed:
        return ()
    own = spec.workload.requirements if spec.workload else ()
    return (*spec.mode.requirements, *own)


def lacking(requirements: Sequence[str], of: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with each package that is not as required, and the extra that has it."""
    for wanted in map(Requirement, requirements):
        extra, version = of.get(canonicalize_name(wanted.name)), version_of(wanted.name)
        if extra is None:
            continue
        if version is None:
            yield f"{wanted.name} is not installed", extra
        elif not wanted.specifier.contains(version, prereleases=True):
            yield f"{wanted.name} is {version}, not {wanted.specifier}", extra


def extras() -> dict[str, str]:
    """Package → the extra of the launcher that it belongs to."""
    listed = project().get("optional-dependencies") or _installed()
    return {
        canonicalize_name(Requirement(line).name): extra
        for extra, lines in listed.items()
        for line in lines
        if extra != _DEVELOPMENT
    }


def _installed() -> dict[str, list[str]]:
    """Of a launcher that is no checkout."""
    about = metadata.metadata("launcher")
    lines = metadata.requires("launcher") or []
    return {
        extra: [line for line in lines if f"extra == '{extra}'" in line.replace('"', "'")]
        for extra in about.get_all("Provides-Extra") or []
    }


def command(names: str) -> str:
    """How to install these extras, in the versions that were tested where they are known."""
    constraints = ROOT / "constraints.txt"
    if constraints.is_file():
        return f"python -m pip install -e '{ROOT}[{names}]' -c {constraints}"
    listed = _installed()
    lines = (line.partition(";")[0].strip() for name in names.split(",") for line in listed[name])
    return f"python -m pip install {' '.join(map(shlex.quote, dict.fromkeys(lines)))}"
