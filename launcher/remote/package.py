"""The zip that a job is made of.

    launcher/       this very package
    packages/       pure-Python packages that it needs and a foreign cluster may lack
    code.tar        the user's files, exactly those of the manifest, with modes and links
    job.json        what is to be done
    secrets.json    values of secret variables; the job deletes it once it has read them

Ray keeps the zip in the memory of the head until the job has ended, behind the cluster's token.
Secrets are in no other place: no environment of Ray's, no argv, no metadata, no log.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.codec import from_json, to_json
from launcher.errors import ClusterError
from launcher.hosts import archive
from launcher.providers import Pause
from launcher.provisioning import removal
from launcher.provisioning.requests import Identity
from launcher.record import Progress
from launcher.remote.jobs import Jobs
from launcher.source import FileEntry, Manifest
from launcher.spec import Spec

FORMAT = 1
PURE = ("tenacity",)
CODE, JOB, SECRETS = "code.tar", "job.json", "secrets.json"
STOP_MARGIN = 120.0  # seconds that a job has to leave, beside grace and deletion
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Job:
    """What a job is to do. `id` is its submission id, which makes the package unlike all others.

    `folder` is the run folder as the user knows it; `sizes` are those of files in it that go on,
    in bytes, and `progress` how far its runs had come. `files` are the code's, `about_code` says
    in words where it is from, `git` in what state it was there.
    """

    id: str
    verb: str  # run | up | down
    name: str
    folder: Path
    identity: Identity
    spec: Spec | None  # None for down
    files: tuple[tuple[str, int, int, str | None], ...]
    about_code: str
    git: Mapping[str, Any]
    progress: Progress
    sizes: Mapping[str, int]

    def manifest(self, root: Path) -> Manifest:
        """Of the code, once it is unpacked in `root`."""
        entries = (
            FileEntry(PurePosixPath(p), size, mode, link) for p, size, mode, link in self.files
        )
        return Manifest(root, tuple(entries))


def send(jobs: Jobs, job: Job, manifest: Manifest | None, pause: Pause) -> None:
    """Ray's own limit from SIGTERM to SIGKILL is 3 s: a supervisor deletes its slices meanwhile."""
    grace = job.spec.retry.grace if job.spec else 0.0
    patience = int(grace + removal.DELETE_SECONDS + STOP_MARGIN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{job.id}.zip"
        write(path, job, manifest)
        jobs.submit(job.id, path, {"RAY_JOB_STOP_WAIT_TIME_S": str(patience)}, pause)


def write(path: Path, job: Job, manifest: Manifest | None) -> None:
    """The package of a job, for this user's eyes only."""
    path.touch(0o600)
    job, secrets = without_secrets(job)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as package:
        for name, source in own_files():
            package.writestr(member(name), source.read_bytes())
        package.writestr(member(JOB), json.dumps({"format": FORMAT, **to_json(job)}))
        if secrets:
            package.writestr(member(SECRETS, 0o600), json.dumps(secrets))
        if manifest:
            with package.open(member(CODE), "w", force_zip64=True) as code:
                for chunk in archive.pack(manifest):
                    code.write(chunk)


def member(name: str, mode: int = 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _LONG_AGO)
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def own_files() -> Iterator[tuple[str, Path]]:
    """Names in the package, and where the files are here."""
    for name, prefix in (("launcher", ""), *((name, "packages/") for name in PURE)):
        spec = importlib.util.find_spec(name)
        assert spec is not None  # this package, and what it depends on
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for source in sorted(root.rglob("*")):
            if source.is_file() and source.suffix in (".py", ".csv", ".typed"):
                yield f"{prefix}{name}/{source.relative_to(root).as_posix()}", source


def without_secrets(job: Job) -> tuple[Job, dict[str, str]]:
    """The job with empty texts for the values of secret variables, and these."""
    workload = job.spec.workload if job.spec else None
    if job.spec is None or workload is None:
        return job, {}
    secrets = {name: workload.env[name] for name in sorted(workload.secret_env)}
    bare = replace(workload, env={**workload.env, **dict.fromkeys(secrets, "")})
    return replace(job, spec=replace(job.spec, workload=bare)), secrets


def read(folder: Path) -> Job:
    """The job of an unpacked package, with its secrets, which are deleted.

    Raises ClusterError when another version of the launcher has packed it.
    """
    found = json.loads((folder / JOB).read_text(encoding="utf-8"))
    if (version := found.pop("format", None)) != FORMAT:
        raise ClusterError(f"the job is of format {version}, this launcher reads {FORMAT}")
    job = from_json(Job, found)
    secrets = folder / SECRETS
    if not secrets.exists() or job.spec is None or job.spec.workload is None:
        return job
    values = json.loads(secrets.read_text(encoding="utf-8"))
    secrets.unlink()
    workload = job.spec.workload
    full = replace(workload, env={**workload.env, **values})
    return replace(job, spec=replace(job.spec, workload=full))
