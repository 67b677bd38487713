"""Checks of Python and of the packages that the launcher needs, against what it was tested with."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from launcher.doctor.context import Context
from launcher.doctor.findings import Finding, ok, problem, warning

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 4


def python(_: Context) -> Iterator[Finding]:
    wanted, found = SpecifierSet(requires_python()), platform.python_version()
    if wanted.contains(found, prereleases=True):
        yield ok(f"Python {found}")
    else:
        yield problem(
            f"Python {found}, but launcher needs {wanted}", "make a new virtual environment"
        )


def packages(_: Context) -> Iterator[Finding]:
    """Bounds are those of pyproject.toml; constraints.txt holds what was tested."""
    wanted = [Requirement(line) for line in requirements()]
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate()]
    installed = {each.name: version_of(each.name) for each in needed}
    wrong = [each for each in needed if not fits(each, installed[each.name])]
    for each in wrong:
        have = installed[each.name] or "not installed"
        yield problem(f"{each}: {have}", f"python -m pip install '{each}'")
    if not wrong:
        yield ok(f"{len(needed)} packages, within their bounds")
    yield from untested(installed)


def fits(wanted: Requirement, version: str | None) -> bool:
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def untested(installed: Mapping[str, str | None]) -> Iterator[Finding]:
    tested = constraints()
    other = [
        f"{name} {version} (tested: {tested[normal(name)]})"
        for name, version in installed.items()
        if version and version != tested.get(normal(name), version)
    ]
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        text = f"not the versions that were tested: {', '.join(other[:SHOWN])}{more}"
        yield warning(text, f"python -m pip install -e {ROOT} -c {ROOT / 'constraints.txt'}")


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def project() -> Mapping[str, Any]:
    """The table of pyproject.toml in a checkout, whose installed metadata may be older; else {}."""
    path = ROOT / "pyproject.toml"
    if not path.is_file():
        return {}
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["project"])


def requires_python() -> str:
    return str(project().get("requires-python") or metadata.metadata("launcher")["Requires-Python"])


def requirements() -> list[str]:
    return list(project().get("dependencies") or metadata.requires("launcher") or ())


def constraints() -> dict[str, str]:
    """Package → version, of a checkout."""
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pairs = (line.partition("==") for line in lines if re.match(r"[A-Za-z0-9]", line))
    return {normal(name): version.strip() for name, _, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
