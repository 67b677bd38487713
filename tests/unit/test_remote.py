"""What a job on a coordinator is made of, and what it says: packages, frames, and the mirror."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.exceptions import TransportError
from hypothesis import given, settings
from hypothesis import strategies as st
from requests import ConnectionError

import launcher
from launcher import cluster, errors, registry, source
from launcher.accelerators import Accelerator, all_types, lookup
from launcher.codec import from_json, to_json
from launcher.compose import compose
from launcher.errors import (
    ClusterError,
    Interrupted,
    LauncherError,
    PreemptionBudgetSpent,
    ProvisioningError,
)
from launcher.hosts.member import Member
from launcher.providers import Listing, Resource
from launcher.providers.states import State as ProviderState
from launcher.provisioning.requests import Identity
from launcher.record import Progress, RunFolder, last_step
from launcher.remote import borrow, jobs, launch, package, standing, tunnel, vm
from launcher.remote.follow import Lost, member_of
from launcher.remote.frames import Decoder, Emitter, FolderFrames, Frame, Mirror, encode
from launcher.remote.jobs import Dashboard, Jobs
from launcher.remote.operations import await_operation
from launcher.remote.package import Job
from launcher.remote.vm import Vm
from launcher.spec import Offer, ProviderSpec, Spec
from launcher.verbs import gc, take_apart
from launcher.verbs.logs import logs

SECRET = "hunter2-é\ud800"


def spec(tmp_path: Path) -> Spec:
    (tmp_path / "train.py").write_text("print('é')\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "again.py").symlink_to("train.py")
    words = ["cluster=v6e-16", "mode=jax", "workload.script=train.py", "workload.args.lr=1e-4"]
    found = compose([*words, "name=one"], cwd=tmp_path)
    assert found.workload is not None
    env = {"TOKEN": SECRET, "PLAIN": "text"}
    workload = replace(found.workload, env=env, secret_env=frozenset({"TOKEN"}))
    return replace(found, workload=workload)


def job(tmp_path: Path) -> tuple[Job, source.Manifest]:
    manifest = source.scan(tmp_path)
    made = Job(
        id="one-0123abcd",
        verb="run",
        name="one",
        folder=tmp_path / "runs" / "one",
        identity=Identity("me", "here", "mine"),
        spec=spec(tmp_path),
        files=tuple((str(e.path), e.size, e.mode, e.link) for e in source.scan(tmp_path).files),
        about_code=source.describe(manifest),
        git={"commit": "abc", "dirty": True},
        progress=Progress(3, 1),
        sizes={"events.jsonl": 120},
    )
    return made, source.scan(tmp_path)


def test_a_job_comes_back_whole_and_its_secrets_are_gone(tmp_path: Path) -> None:
    code, there = tmp_path / "code", tmp_path / "there"
    code.mkdir()
    made, manifest = job(code)
    package.write(tmp_path / "job.zip", made, manifest)
    with zipfile.ZipFile(tmp_path / "job.zip") as found:
        found.extractall(there)
    assert package.read(there) == made
    assert not (there / package.SECRETS).exists()
    assert made.manifest(code) == manifest
    assert (there / "launcher/remote/entry.py").exists()
    assert (there / "launcher/accelerators.csv").exists()
    assert (there / "packages/tenacity/__init__.py").exists()


def test_secrets_are_in_one_file_of_the_package_only(tmp_path: Path) -> None:
    made, manifest = job(tmp_path)
    package.write(tmp_path / "job.zip", made, manifest)
    assert (tmp_path / "job.zip").stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(tmp_path / "job.zip") as found:
        holders = [name for name in found.namelist() if b"hunter2" in found.read(name)]
        mode = found.getinfo(package.SECRETS).external_attr >> 16
    assert holders == [package.SECRETS]
    assert mode == 0o600


def test_a_job_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / package.JOB).write_text(json.dumps({"format": 99}))
    with pytest.raises(ClusterError, match="format 99"):
        package.read(tmp_path)


TEXTS = st.text(st.characters(codec=None), max_size=8)  # lone surrogates as well
OFFERS = st.builds(
    Offer,
    accelerator=st.sampled_from(all_types()).map(lookup),
    capacity=TEXTS,
    zone=TEXTS,
    runtime_version=TEXTS,
)


@settings(max_examples=50, deadline=None)
@given(
    offers=st.lists(OFFERS, min_size=1, max_size=3).map(tuple),
    args=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    env=st.dictionaries(TEXTS, TEXTS, max_size=3),
    names=st.frozensets(TEXTS, max_size=3),
    after=st.none() | TEXTS | st.floats(0, 1e9),
    disks=st.lists(st.tuples(TEXTS, TEXTS), max_size=2).map(tuple),
)
def test_a_spec_survives_json(base: Spec, **drawn: Any) -> None:
    workload = base.workload
    assert workload is not None
    workload = replace(
        workload,
        args=drawn["args"],
        env=MappingProxyType(drawn["env"]),
        secret_env=drawn["names"],
        checkpoint_dir=None,
    )
    cluster = replace(
        base.cluster,
        offers=drawn["offers"],
        queue=replace(base.cluster.queue, valid_after=drawn["after"]),
        machine=replace(base.cluster.machine, data_disks=drawn["disks"]),
    )
    made = replace(base, workload=workload, cluster=cluster)
    assert from_json(Spec, json.loads(json.dumps(to_json(made)))) == made


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return spec(tmp_path_factory.mktemp("spec"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chips": "4"}, "Accelerator.chips: '4' is not of type int"),
        ({"zones": "a"}, "Accelerator.zones: 'a' is not of type list"),
        ({"more": 1}, "Accelerator: 'more' is none of accelerator_type"),
    ],
)
def test_json_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(Accelerator, {**to_json(lookup("v6e-4")), **change})


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["append", "write", "remove"]),
        st.sampled_from(["events.jsonl", "logs/attempt-0/s0-h0.log", "plan.json"]),
        st.binary(max_size=300) | st.just("é".encode() * 60_000 + b"\xff"),
    ),
    max_size=12,
)


def said(changes: list[tuple[str, str, bytes]], folder: Path) -> str:
    """What a job says of changes that are made to a folder as well."""
    log: list[bytes] = []
    frames = FolderFrames(Emitter(log.append), {})
    for do, name, content in changes:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if do == "remove":
            path.unlink(missing_ok=True)
            frames.remove(name)
        elif do == "write":
            path.write_bytes(content)
            frames.write(name, content)
        else:
            with path.open("ab") as file:
                file.write(content)
            frames.append(name, content)
    return b"".join(log).decode("ascii")


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".mirror.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def follow(text: str, size: int, mirror: Mirror) -> None:
    """Apply a log that arrives in pieces of that size."""
    decoder = Decoder()
    for at in range(0, len(text), size):
        for frame in decoder.feed(text[at : at + size]):
            mirror.apply(frame)


# Appends to a file that is also written whole do not happen in a run folder.
SANE = CHANGES.map(
    lambda changes: [c for c in changes if (c[0] == "append") == (c[1] != "plan.json")]
)


@settings(max_examples=25, deadline=None)
@given(changes=SANE, size=st.integers(1000, 70_000), cut=st.floats(0, 1))
def test_a_mirror_is_the_folder_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, size: int, cut: float
) -> None:
    """Also when the follower died on the way, with or without having noted how far it had come."""
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    text = said(changes, there)
    first = Mirror(here, "job")
    follow(text[: int(len(text) * cut)], size, first)
    if size % 2:
        first.save()
    follow(text, size, Mirror(here, "job"))
    assert contents(here) == contents(there)


def test_what_was_applied_is_passed_over(tmp_path: Path) -> None:
    text = said([("append", "events.jsonl", b"a\n"), ("append", "events.jsonl", b"b\n")], tmp_path)
    mirror = Mirror(tmp_path / "here", "job")
    frames = list(Decoder().feed(text))
    assert [mirror.apply(frame) for frame in frames] == [True, True]
    mirror.save()
    again = Mirror(tmp_path / "here", "job")
    assert [again.apply(frame) for frame in frames] == [False, False]
    other = Mirror(tmp_path / "here", "another job")
    assert other.next == 0


def test_a_mirror_without_room_goes_on_and_is_made_whole_later(tmp_path: Path) -> None:
    changes = [("append", "events.jsonl", f"{i}\n".encode()) for i in range(4)]
    text, here = said(changes, tmp_path / "there"), tmp_path / "here"
    frames = list(Decoder().feed(text))
    mirror = Mirror(here, "job")
    assert mirror.apply(frames[0])
    mirror.save()
    (here / "events.jsonl").rename(here / "kept")
    (here / "events.jsonl").symlink_to("/dev/full")
    assert [mirror.apply(frame) for frame in frames[1:3]] == [True, True]
    assert "No space left on device" in mirror.trouble
    (here / "kept").replace(here / "events.jsonl")
    mirror.apply(frames[3])
    mirror.save()
    follow(text, 100, Mirror(here, "job"))
    assert contents(here) == contents(tmp_path / "there")


def test_two_followers_at_once_write_the_same(tmp_path: Path) -> None:
    changes = [("append", "events.jsonl", f"{i}\n".encode()) for i in range(5)]
    text = said(changes, tmp_path / "there")
    one, two = (Mirror(tmp_path / "here", "job") for _ in range(2))
    for frame in Decoder().feed(text):
        one.apply(frame)
        two.apply(frame)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_frames_are_found_among_other_text() -> None:
    frame: Frame = {"seq": 0, "do": "wait", "text": "\x1e\n€\udcff"}
    decoder = Decoder()
    text = f"Running entrypoint\nwarning: no newline{encode(frame).decode()}\x1e{{broken\nend"
    assert list(decoder.feed(text)) == [frame]
    assert decoder.strays == ["Running entrypoint", "warning: no newline", "\x1e{broken"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_a_frame_cannot_leave_the_folder(tmp_path: Path, path: str) -> None:
    frame = {"seq": 0, "do": "write", "path": path, "text": ""}
    with pytest.raises(ClusterError, match="leaves the run folder"):
        Mirror(tmp_path, "job").apply(frame)


def test_a_run_folder_is_continued_where_the_user_has_it(tmp_path: Path) -> None:
    """The mirror holds an earlier attempt; the coordinator begins with an empty folder."""
    here, there, log = tmp_path / "here", tmp_path / "there", list[bytes]()
    with RunFolder(here) as earlier:
        earlier.event("started", attempt=0)
    sizes = {"events.jsonl": (here / "events.jsonl").stat().st_size}
    frames = FolderFrames(Emitter(log.append), sizes)
    with RunFolder(there, shown=here, since=Progress(1, 1), watcher=frames) as folder:
        folder.event("started", attempt=folder.attempt)
        folder.output(Member(0, 1), b"\xff\r\n")
        folder.write("result.json", {"status": "succeeded"})
        assert folder.log_path(Member(0, 1)) == here / "logs/attempt-1/s0-h1.log"
    follow(b"".join(log).decode(), 7, Mirror(here, "job"))
    lines = [json.loads(line) for line in (here / "events.jsonl").read_text().splitlines()]
    assert [(line["seq"], line["attempt"]) for line in lines] == [(0, 0), (1, 1)]
    assert (here / "logs/attempt-1/s0-h1.log").read_bytes() == b"\xff\r\n"
    assert (here / "result.json").read_bytes() == (there / "result.json").read_bytes()


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("logs/attempt-0/s0-h2.log", Member(0, 2)),
        ("logs/attempt-12/s3-h10-p1.log", Member(3, 10, 1, single=False)),
        ("events.jsonl", None),
    ],
)
def test_whose_log_it_is(path: str, member: Member | None) -> None:
    assert member_of(path) == member
    assert member is None or f"{str(member).replace(' ', '-')}.log" in path


def node(name: str, worker: int, pod: str = "v6e-16", alive: bool = True) -> dict[str, Any]:
    labels = {cluster.SLICE: name, cluster.WORKER: str(worker), cluster.POD: pod}
    return {"Alive": alive, "Labels": labels, "Resources": {"TPU": 4.0}}


def test_only_whole_slices_of_the_type_fit() -> None:
    nodes = [
        *(node("whole", worker) for worker in (3, 1, 0, 2)),
        *(node("part", worker) for worker in range(3)),
        *(node("dying", worker, alive=worker != 2) for worker in range(4)),
        node("small", 0, "v6e-4"),
        {"Alive": True, "Labels": {}, "Resources": {"CPU": 8.0}},
    ]
    found = borrow.find(nodes)
    assert [one.name for one in found] == ["dying", "part", "small", "whole"]
    assert [one.name for one in borrow.fitting(found, lookup("v6e-16"))] == ["whole"]
    assert [one.name for one in borrow.fitting(found, lookup("v6e-4"))] == ["small"]
    assert "part: v6e-16, hosts [0, 1, 2]; busy" in borrow.summary(found, {"part": "busy"})


FAKE_GCLOUD = """#!/bin/sh
echo "$@" > "$0.argv"
case "$*" in *refused*) echo "no permission" >&2; exit 1;; esac
while [ "$1" != -L ]; do shift; done
exec python3 -c "
import socket, sys
port = int(sys.argv[1].split(':')[0])
listener = socket.create_server(('127.0.0.1', port))
sys.stdin.read()
" "$2"
"""


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name which listens where it is told to, until its input ends."""
    program = tmp_path / "gcloud"
    program.write_text(FAKE_GCLOUD)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return program


def test_a_tunnel_is_there_for_its_block(gcloud: Path) -> None:
    ssh = tunnel.to_vm("launcher-me", "us-east5-b", "mine")
    with tunnel.opened(ssh, "10.0.0.2", 8265, lambda _: None) as url:
        port = int(url.rpartition(":")[2])
        assert tunnel.answers(port)
    assert not tunnel.answers(port)
    given = gcloud.with_name("gcloud.argv").read_text()
    assert given.startswith("compute ssh launcher-me --zone us-east5-b --project mine")
    assert f"-L {port}:10.0.0.2:8265" in given


def test_a_tunnel_that_cannot_be_says_why(gcloud: Path) -> None:
    ssh = tunnel.to_host0("refused", "us-east5-b", "mine", external_ips=False)
    with (
        pytest.raises(ClusterError, match="no permission"),
        tunnel.opened(ssh, "10.0.0.2", 8265, lambda _: None),
    ):
        pass


def test_without_gcloud_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    ssh = tunnel.to_vm("launcher-me", "us-east5-b", "mine")
    with (
        pytest.raises(ClusterError, match="gcloud is needed"),
        tunnel.opened(ssh, "10.0.0.2", 8265, lambda _: None),
    ):
        pass


@pytest.mark.parametrize(
    ("external_ips", "command"),
    [
        (True, "gcloud compute tpus tpu-vm ssh one-s0 {} --quiet"),
        (False, "gcloud alpha compute tpus tpu-vm ssh one-s0 {} --tunnel-through-iap --quiet"),
    ],
)
def test_the_way_to_worker_0_depends_on_its_addresses(external_ips: bool, command: str) -> None:
    ssh = tunnel.to_host0("one-s0", "us-east5-b", "mine", external_ips=external_ips)
    where = "--worker 0 --zone us-east5-b --project mine"
    assert " ".join(ssh) == command.format(where)


def test_the_command_for_the_user_is_one_forward() -> None:
    ssh = tunnel.to_vm("launcher-me", "us-east5-b", "mine")
    assert tunnel.command(ssh, "10.0.0.2", 8265) == (
        "gcloud compute ssh launcher-me --zone us-east5-b --project mine --tunnel-through-iap"
        " --quiet -- -N -L 8265:10.0.0.2:8265"
    )


# --- waits and answers


class Operation:
    """One that has ended at some poll; before, polls raise `trouble` if there is any."""

    def __init__(
        self, polls: float, trouble: Exception | None = None, failure: Exception | None = None
    ) -> None:
        self._left, self._trouble, self._failure = polls, trouble, failure

    def done(self, retry: Any) -> bool:
        self._left -= 1
        if self._left > 0 and self._trouble:
            raise self._trouble
        return self._left <= 0

    def exception(self) -> Exception | None:
        return self._failure


def test_an_operation_is_awaited_through_polls_that_fail() -> None:
    pauses: list[float] = []
    await_operation(Operation(4, exceptions.ServiceUnavailable("away")), 60, pauses.append)
    assert len(pauses) == 3
    assert min(pauses) > 0
    with pytest.raises(exceptions.Conflict):
        await_operation(Operation(1, None, exceptions.Conflict("it is there")), 60, pauses.append)


@pytest.mark.parametrize(
    "trouble", [exceptions.Forbidden("not you"), TransportError("no way"), ConnectionError("cut")]
)
def test_an_operation_without_an_end_is_given_up_with_what_the_polls_met(
    trouble: Exception,
) -> None:
    with pytest.raises(ProvisioningError, match=f"no end in 0 s: .*{trouble.args[0]}"):
        await_operation(Operation(float("inf"), trouble), 0, lambda _: None)


class Dashboards(BaseHTTPRequestHandler):
    """Of a cluster that wants a token, and knows no job."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer right"
        version = self.path == "/api/version"
        body = {"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": "s"}
        self.send_response(200 if version else 404 if known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body if version else {}).encode())

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def dashboard() -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboards) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_port_that_is_no_dashboards_is_told_with_where_the_address_stands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"answers at http://127\.0\.0\.1:{port}; .* `up` and"):
        Jobs(Dashboard(f"http://127.0.0.1:{port}", ""))


def test_the_state_of_a_job_that_nobody_knows_or_may_see(dashboard: str) -> None:
    assert Jobs(Dashboard(dashboard, "right")).state("one") is None
    with pytest.raises(ClusterError, match=f"{dashboard} wants a token"):
        Jobs(Dashboard(dashboard, "wrong")).state("one")


def test_a_dashboard_that_falls_silent_is_given_up(
    dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()
    found = Jobs(Dashboard(dashboard, "right"))
    monkeypatch.setattr(Dashboards, "do_GET", lambda _: silent.wait())
    monkeypatch.setattr(jobs, "CALL_SECONDS", 0.1)
    try:
        with pytest.raises(ClusterError, match=rf"{dashboard}: no answer within 0\.1 s"):
            found.state("one")
    finally:
        silent.set()


# --- what is known without a call


def vm_of(machine_type: str, zone: str, kind: str) -> Vm:
    return Vm("launcher-me", "p", zone, {"kind": kind}, machine_type, "delete")


@pytest.mark.parametrize(
    ("machine_type", "zone", "price"),
    [
        ("e2-standard-4", "us-central1-a", ", 0.13 USD/h"),
        ("e2-standard-4", "us-east4-a", ", 0.15 USD/h"),
        ("e2-standard-4", "moon1-a", ", price unknown"),
        ("c9-huge", "us-central1-a", ", price unknown"),
    ],
)
def test_a_vm_is_told_with_the_price_of_its_region(
    machine_type: str, zone: str, price: str
) -> None:
    billed, emulated = (vm_of(machine_type, zone, kind).title for kind in ("google", "local"))
    assert billed == f"VM launcher-me ({machine_type} in {zone}{price})"
    assert emulated == f"VM launcher-me ({machine_type} in {zone})"


def test_a_slice_that_took_its_supervisor_along_is_charged_until_there_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    run = spec(tmp_path)
    run = replace(run, retry=replace(run.retry, max_preemptions=1))
    remote = {"url": "http://127.0.0.1:9", "token_path": None, "submitted": False}
    record = {"name": "one", "folder": str(tmp_path), "resources": [], "remote": remote}
    registry.write_record("one", record)
    for step in (3, 5):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
        launch.charge(run, Lost("gone"))  # another launcher each time, for all it knows
    with pytest.raises(PreemptionBudgetSpent, match=r"gone: 2 preemptions, retry.max_.* is 1"):
        launch.charge(run, Lost("gone"))
    assert registry.record("one") is None


def test_what_another_command_has_ended_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cancel` deletes a slice that a launcher follows: it is not lost to a preemption."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    remote = {"url": "http://127.0.0.1:9", "token_path": None, "submitted": True, "ending": True}
    run = spec(tmp_path)
    for record in (None, {"name": "one", "folder": str(tmp_path), "remote": remote}):
        if record:
            registry.write_record("one", record)
        with pytest.raises(Interrupted, match="one was ended by another command"):
            launch.charge(run, Lost("gone"))


def test_a_second_job_of_a_name_leaves_the_folder_of_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.remote import entry

    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / ".home"))
    first, second = tmp_path / "one" / "one-1", tmp_path / "one" / "one-2"
    first.mkdir(parents=True)
    with registry.lock("run-one", "busy"):
        entry.forget_earlier(second, "one")
        assert first.exists()
    entry.forget_earlier(second, "one")
    assert not first.exists()
    assert second.exists()


@pytest.mark.parametrize("where", ["vm", "host0"])
def test_without_an_answer_of_the_api_a_coordinator_is_not_known_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As on a laptop without a network, which has neither the coordinator nor the API."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    provider = {"kind": "google", "project": "p", "options": {}}
    found = replace(vm_of("e2-standard-4", "us-east5-b", "google"), provider=provider)
    vm.note(replace(found, address="10.0.0.2", ports=(1,)))
    node = "projects/p/locations/us-east5-b/nodes/one-s0"
    host0 = {"run": "one", "provider": provider, "external_ips": False}
    site = {"vm": found.key} if where == "vm" else {"host0": host0}
    record = {
        **{"name": "one", "folder": str(tmp_path), "supervisor": None, "provider": provider},
        **{"resources": [node], "nodes": [node]},
        "remote": {**site, "job": "one-0", "submitted": True},
    }
    monkeypatch.setattr("launcher.remote.sites.REACH_SECONDS", 0.0)
    assert "does not answer" in standing.trouble(record)
    assert not standing.is_lost(record)
    assert not launch.slice_is_lost(record)


def test_gc_names_what_a_lost_coordinator_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record was on the coordinator; the labels tell."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    node = "projects/p/locations/us-east5-b/nodes/one-s0"
    labels = {"launcher-run": "one", **gc.of_this_machine()}
    made = Resource(node, ProviderState.READY, "READY", "v6e-8", labels)
    other = replace(made, name=f"{node}x", labels={**labels, "launcher-machine": "other"})
    provider = {"kind": "google", "project": "p", "options": {}}
    record = {"name": "one", "remote": {"vm": "x"}, "resources": [], "provider": provider}
    record["cost_per_hour_usd"] = 21.6
    listing, asked = Listing((made, other)), ProviderSpec("google", "p", {})
    names = gc.names_of(record, listing)
    told = gc.describe(record, names, gc.states_of(record, names, asked, listing))
    assert told == f"one: {node} (READY), its job, up to 21.60 USD/h"


def test_logs_of_a_lost_coordinator_are_those_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    log = tmp_path / "logs" / "attempt-0" / "s0-h0.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")
    remote = {"vm": "launcher-me-01234567", "job": "one-0", "submitted": True}
    record = {"name": "one", "remote": remote, "folder": str(tmp_path), "supervisor": None}
    registry.write_record("one", record)
    with pytest.raises(ClusterError, match="is not on record any more"):
        logs(take_apart("logs", ["one"]))
    assert "[s0 h0] step 1" in capsys.readouterr().out


@pytest.mark.parametrize("alive", [True, False])
def test_a_launch_under_way_is_not_for_gc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    """Before its coordinator's VM is on record."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    remote = {"vm": "launcher-me-01234567", "job": "one-0", "submitted": False}
    supervisor = registry.this_process() if alive else {"pid": 2**22 + 1, "started": 0.0}
    record = {"name": "one", "remote": remote, "resources": [], "supervisor": supervisor}
    assert gc.is_dead(record) is not alive


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ("", None),
        ('{"step": 1}', None),
        ('{"saved_step": 1}\n', None),
        ('{"step": 1}\n{"saved_step": 1}\n{"step": 2', 1),
        ('{"step": 1}\n{"step": true}\n', 1),
        ('{"step": 1}\n{"step": 7}\n' + '{"loss": 1}\n' * 99, 7),
        ('{"step": 3}\n' + '{"text": "' + "é" * 200 + '"}\n', 3),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 7, 65_536])
def test_the_last_step_is_found_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, step: int | None, block: int
) -> None:
    monkeypatch.setattr("launcher.record.BLOCK", block)
    assert last_step(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert last_step(tmp_path) == step


def subclasses(of: Any) -> set[Any]:
    return {one for direct in of.__subclasses__() for one in (direct, *subclasses(direct))}


def test_every_error_is_drawn_below_its_base_with_its_exit_code() -> None:
    for module in pkgutil.walk_packages(launcher.__path__, "launcher."):
        if not module.name.endswith(("__main__", ".entry", ".raynode")):
            importlib.import_module(module.name)
    drawn: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([\w.]+) +([0-9]+)", line):
            depth, name = len(found[1]) // 4, found[2].rpartition(".")[2]
            del above[depth:]
            drawn[name] = (above[-1] if above else "Exception", found[3])
            above.append(name)
    own = {one for one in subclasses(LauncherError) if one.__module__.startswith("launcher.")}
    assert drawn == {
        one.__name__: (one.__base__.__name__, str(one.exit_code)) for one in {LauncherError, *own}
    }
