"""The checks of `doctor` that no emulator is needed for: this machine, and answers of Google's."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from launcher import raynode, registry
from launcher.accelerators import lookup
from launcher.compose import compose
from launcher.doctor import machine, network, packages, project, quota
from launcher.doctor.answers import finding_of
from launcher.doctor.context import (
    CONFIG,
    MACHINE,
    PROVIDER,
    Check,
    Cloud,
    Context,
    Look,
    bucket_of,
)
from launcher.doctor.examine import examine, exit_code
from launcher.doctor.findings import Finding, Outcome, Skip, by_place, ok, problem, warning
from launcher.doctor.storage import is_near
from launcher.errors import ConfigError
from launcher.iam import policies
from launcher.iam.service_account import email_of
from launcher.plan import make_plan
from launcher.providers.rest import anonymous_session, error_of
from launcher.providers.services import Services
from launcher.provisioning.requests import Identity
from launcher.session import LazyProvider
from launcher.spec import Offer, ProviderSpec

NOWHERE = Context(Path("/"), "me", None, ConfigError("wrong"))


def context(folder: Path, *overrides: str) -> Context:
    spec = compose(["name=t", *overrides], cwd=folder)
    plan = make_plan(spec, Identity("me", "m", spec.provider.project or "emulated"))
    return Context(folder, "me", (spec, plan, Cloud(spec.provider)))


def only(look: Look, where: Context = NOWHERE) -> Finding:
    (found,) = look(where)
    return found


# --- all checks together


def get_together(lazy: LazyProvider, start: threading.Barrier) -> object:
    start.wait()
    return lazy.get()


def test_a_provider_is_opened_once_for_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would be nobody's, and close what the first has opened."""
    opened: list[object] = []

    def open_one(*_: object) -> object:
        opened.append(object())
        return opened[-1]

    monkeypatch.setattr("launcher.session.open_provider", open_one)
    for _ in range(50):
        opened.clear()
        lazy, start = LazyProvider(ProviderSpec("local", None, {})), threading.Barrier(12)
        with ThreadPoolExecutor(12) as pool:
            got = [pool.submit(get_together, lazy, start) for _ in range(12)]
        assert {id(each.result()) for each in got} == {id(opened[0])}
        assert len(opened) == 1


def test_no_check_stops_another(tmp_path: Path) -> None:
    never = threading.Event()

    def raises(_: Context) -> Iterator[Finding]:
        yield ok("lost")
        raise ZeroDivisionError("of a sort")

    def leaves(_: Context) -> Iterator[Finding]:
        raise SystemExit("no")

    def skips(where: Context) -> Iterator[Finding]:
        yield ok(where.spec.name)

    def hangs(_: Context) -> Iterator[Finding]:
        never.wait()
        yield ok("late")

    looks = (raises, leaves, skips, lambda _: [ok("fine")], hangs)
    checks = [Check(f"{number}", MACHINE, look) for number, look in enumerate(looks)]
    found = [each.findings[0] for each in examine(checks, NOWHERE, deadline=0.5)]
    never.set()
    assert [f"{f.outcome}: {f.text}" for f in found] == [
        "problem: could not be looked at: ZeroDivisionError: of a sort",
        "problem: could not be looked at: SystemExit: no",
        "skipped: the configuration is wrong, see above",
        "ok: fine",
        "problem: no answer within 0.5 s",
    ]


@pytest.mark.parametrize(
    ("areas", "code"),
    [((), 0), ((PROVIDER,), 3), ((PROVIDER, MACHINE), 4), ((PROVIDER, MACHINE, CONFIG), 2)],
)
def test_the_exit_code_is_that_of_what_a_run_would_meet_first(areas: Any, code: int) -> None:
    checks = [Check("fine", CONFIG, lambda _: [warning("odd")])]
    checks += [Check("bad", area, lambda _: [problem("bad")]) for area in areas]
    assert exit_code(examine(checks, NOWHERE)) == code


def test_places_of_which_the_same_is_told() -> None:
    found = by_place(
        [("a", ok("fine")), ("b", problem("bad")), ("c", ok("fine")), ("a", ok("fine"))]
    )
    assert list(found) == [ok("fine in a, c"), problem("bad in b")]


@pytest.mark.parametrize(
    ("status", "word", "message", "outcome", "text"),
    [
        (403, "PERMISSION_DENIED", "you may not", Outcome.WARNING, "not known: you may not"),
        (503, "UNAVAILABLE", "away", Outcome.PROBLEM, "no answer: away"),
        (504, "DEADLINE_EXCEEDED", "slow", Outcome.PROBLEM, "no answer: slow"),
        (400, "INVALID_ARGUMENT", "odd", Outcome.PROBLEM, "could not be looked at: InvalidArg"),
    ],
)
def test_what_an_answer_means(
    status: int, word: str, message: str, outcome: Outcome, text: str
) -> None:
    body = {"error": {"message": message, "status": word}}
    found = finding_of(error_of(status, "", body), "p")
    assert found.outcome is outcome
    assert found.text.startswith(text)


# --- this machine


def test_a_machine_that_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    where = Context(tmp_path, "me", None)
    for look in (machine.system, machine.temp_path, machine.ports, machine.leftovers):
        assert only(look, where).outcome is Outcome.OK
    for look in (machine.records, machine.run_folders, packages.python):
        assert only(look, where).outcome is Outcome.OK
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.parametrize(
    ("soft", "outcome"),
    [(256, "problem"), (4096, "warning"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")],
)
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, outcome: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert only(machine.open_files).outcome == outcome


@pytest.mark.parametrize(
    ("free", "used", "outcome"),
    [(0.5, 1, "problem"), (3, 20, "warning"), (10, 20, "ok"), (10, 990, "warning")],
)
def test_disk(free: float, used: float, outcome: str) -> None:
    usage = namedtuple("usage", "total used free")
    gib = machine.GIB
    found = machine.space("x", Path("/x"), usage(0, int(used * gib), int(free * gib)))
    assert found.outcome == outcome


def test_a_temp_path_that_is_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 40)
    assert only(machine.temp_path).text.startswith("Ray's sockets in /tmp, since /tmp/xxx")


def test_no_place_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    found = only(machine.temp_path)
    assert found.outcome is Outcome.PROBLEM
    assert "export TMPDIR=/tmp" in found.mend[0]


def test_the_shared_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 400_000_000))
    assert only(machine.shared_memory).outcome is Outcome.OK  # the head's alone
    found = only(machine.shared_memory, context(tmp_path, "cluster=v6e-16"))
    assert found.text.startswith("400 MB free in /dev/shm, 600 MB for object stores")
    assert "docker run --shm-size=4g" in found.mend[0]


def test_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raynode, "is_free", lambda _: False)
    found = only(machine.ports)
    assert (found.outcome, found.text) == (
        Outcome.PROBLEM,
        "no 8 ports in a row are free between 28192 and 32767",
    )


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("LAUNCHER_HOME", str(file / "home"))
    assert only(machine.records).outcome is Outcome.PROBLEM
    assert only(machine.run_folders, Context(file, "me", None)).outcome is Outcome.PROBLEM


def test_programs_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert only(machine.git).outcome is Outcome.WARNING
    google = ("provider=google", "provider.project=my-project", "cluster.coordinator=vm")
    assert only(machine.gcloud, context(tmp_path, *google)).outcome is Outcome.PROBLEM
    with pytest.raises(Skip):
        only(machine.gcloud, context(tmp_path))


def test_a_dead_run_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    dead = {"pid": os.getpid(), "started": 0.0}
    registry.write_record(
        "r", {"name": "r", "stays": False, "supervisor": dead, "resources": ["n"]}
    )
    registry.write_record(  # it goes on at its coordinator
        "far",
        {
            "name": "far",
            "stays": False,
            "supervisor": None,
            "resources": [],
            "remote": {"job": "j"},
        },
    )
    found = only(machine.leftovers)
    assert found == warning("r, a dead run, left n", "python -m launcher gc --yes")


def test_packages_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["ray[default]==1.0.*", "no-such-package>=2", "packaging>=1", "x; python_version<'3'"]
    monkeypatch.setattr(packages, "requirements", lambda: wanted)
    monkeypatch.setattr(packages, "constraints", lambda: {"packaging": "1.0"})
    ray, absent, other = packages.packages(NOWHERE)
    assert ray.mend == ("python -m pip install 'ray[default]==1.0.*'",)
    assert absent.text.endswith(": not installed")
    assert other.outcome is Outcome.WARNING
    assert other.text.endswith("(tested: 1.0)")


def test_every_package_that_is_needed_has_been_tested() -> None:
    tested = packages.constraints()
    names = [line.split(";")[0] for line in packages.requirements()]
    needed = {packages.normal(Requirement(name).name) for name in names}
    assert needed <= set(tested)


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "requires_python", lambda: ">=99")
    assert only(packages.python).outcome is Outcome.PROBLEM


# --- quota


@pytest.mark.parametrize(
    ("metric", "name", "kind"),
    [
        ("tpu.googleapis.com/tpu-v6e-preemptible", "v6e", "preemptible"),
        ("tpu.googleapis.com/tpu-v5s-litepod", "v5slitepod", ""),
        ("TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", "v5slitepod", "preemptible"),
        ("tpu.googleapis.com/tpu-v5s-litepod-serving-reserved", "v5slitepodserving", "reserved"),
        ("TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", "v4spod", "preemptible"),
    ],
)
def test_names_of_quotas(metric: str, name: str, kind: str) -> None:
    assert quota.key(metric) == (name, kind)


def metric(name: str, unit: str, *buckets: tuple[str, int]) -> Mapping[str, Any]:
    rows = [
        {"effectiveLimit": str(limit), **({"dimensions": {unit: place}} if place else {})}
        for place, limit in buckets
    ]
    limit = {"unit": f"1/{{project}}/{{{unit}}}", "quotaBuckets": rows}
    return {"metric": f"tpu.googleapis.com/{name}", "consumerQuotaLimits": [limit]}


def tightest(accelerator: str, zone: str, *metrics: Mapping[str, Any]) -> int | None:
    found = quota.tightest(Offer(lookup(accelerator), "spot", zone, ""), list(quota.read(metrics)))
    return found.limit if found else None


def test_the_limit_that_binds() -> None:
    zonal = metric("tpu-v6e-preemptible", "zone", ("us-east5-b", 64), ("", 8))
    regional = metric("tpu-v6e-preemptible", "region", ("us-east5", 32), ("us-east1", -1))
    on_demand = metric("tpu-v6e", "zone", ("", 0))
    assert tightest("v6e-16", "us-east5-b", zonal, on_demand) == 64
    assert tightest("v6e-16", "us-east5-a", zonal, on_demand) == 8
    assert tightest("v6e-16", "us-east5-b", zonal, regional) == 32
    assert tightest("v6e-16", "us-east1-d", zonal, regional) == 8
    assert tightest("v6e-16", "us-east1-d", regional) == quota.UNLIMITED
    assert tightest("v6e-16", "us-east5-b", on_demand) is None
    assert (
        tightest("v5litepod-4", "us-west4-a", metric("tpu-v5s-litepod-preemptible", "zone")) is None
    )


def test_chips_or_tensorcores(tmp_path: Path) -> None:
    choice = context(tmp_path, "cluster=v5p-16").plan.first  # 8 chips, 16 TensorCores
    judged = {
        limit: quota.judge(choice, list(quota.read([metric("tpu-v5p", "zone", ("", limit))])), "p")
        for limit in (7, 8, 16, -1)
    }
    assert [found.outcome.value for found in judged.values()] == ["problem", "warning", "ok", "ok"]
    assert (
        "8 chips, 16 TensorCores asked for, 7 allowed (tpu.googleapis.com/tpu-v5p)"
        in judged[7].text
    )


# --- buckets, coordinators, accounts


@pytest.mark.parametrize(
    ("bucket", "region", "near"),
    [
        ({"location": "US-EAST5"}, "us-east5", True),
        ({"location": "US-EAST5"}, "us-east1", False),
        ({"location": "US"}, "us-east1", True),
        ({"location": "EU"}, "us-east1", False),
        ({"location": "EU"}, "europe-west4", True),
        (
            {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST5"]}},
            "us-east5",
            True,
        ),
    ],
)
def test_near(bucket: Mapping[str, Any], region: str, near: bool) -> None:
    assert is_near(bucket, region) is near


def test_the_bucket_of_checkpoints(tmp_path: Path) -> None:
    assert bucket_of(context(tmp_path, "workload.checkpoint_dir=gs://b/a/c").spec) == "b"
    assert bucket_of(context(tmp_path, "workload.checkpoint_dir=/data").spec) is None
    assert bucket_of(context(tmp_path).spec) is None


def test_addresses_of_accounts() -> None:
    assert email_of("tpu-admin", "my-project") == "tpu-admin@my-project.iam.gserviceaccount.com"
    assert email_of("tpu-admin", "a.com:p") == "tpu-admin@p.a.com.iam.gserviceaccount.com"


def test_a_head_here_for_google_is_questioned_off_google(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "PRODUCT", tmp_path / "product")
    where = context(tmp_path, "provider=google", "provider.project=my-project")
    assert only(network.coordinator, where).outcome is Outcome.WARNING
    (tmp_path / "product").write_text("Google Compute Engine\n")
    assert only(network.coordinator, where).outcome is Outcome.OK


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_a_cluster_that_answers(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = form.format(f"127.0.0.1:{listener.getsockname()[1]}")
        assert network.connect(address).outcome is Outcome.OK
    assert network.connect(address).outcome is Outcome.PROBLEM


ROLES = st.sampled_from(["roles/a", "roles/b", "roles/c"])
MEMBERS = st.lists(st.sampled_from(["user:x", "user:y"]), unique=True)
BINDINGS = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "members": MEMBERS}, optional={"condition": st.just({"expression": "x"})}
    )
)


@given(BINDINGS, st.lists(ROLES, unique=True))
def test_roles_are_added_and_nothing_is_taken(bindings: list[Any], roles: list[str]) -> None:
    before = {"etag": "e", "version": 1, "bindings": bindings}
    after = policies.with_roles(before, roles, "user:x")
    assert policies.lacking(after, roles, "user:x") == []
    assert policies.with_roles(after, roles, "user:x") == after
    assert after["etag"] == "e"
    conditional = [binding for binding in bindings if "condition" in binding]
    assert [binding for binding in after["bindings"] if "condition" in binding] == conditional
    assert after["version"] == (3 if conditional else 1)
    for binding in bindings:
        kept = [b for b in after["bindings"] if b["role"] == binding["role"]]
        assert any(set(binding["members"]) <= set(b["members"]) for b in kept)


# --- answers of a server: what the emulator does not have


class Server:
    """Answers JSON by method and path, without the query; `date` is its idea of the time."""

    def __init__(self, answers: Mapping[str, Any], date: float | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(size)
                body = answers.get(self.path.partition("?")[0])
                self.send_response(404 if body is None else 200)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(json.dumps(body or {}).encode())

            do_GET = do_POST = do_HEAD = answer

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time.time() if date is None else date, usegmt=True)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.services = Services(anonymous_session, self.url)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


REGION = "/compute/v1/projects/p/regions/us-east5"
NETWORKS = "https://www.googleapis.com/compute/v1/projects/p/global/networks"


def subnet(network: str, private: bool) -> Mapping[str, Any]:
    own = {"name": f"{network}-sub", "network": f"{NETWORKS}/{network}"}
    return {**own, "privateIpGoogleAccess": private}


def test_private_google_access_and_nat() -> None:
    answers = {
        f"{REGION}/subnetworks": {"items": [subnet("other", True), subnet("default", False)]},
        f"{REGION}/routers": {
            "items": [
                {"name": "with", "network": f"{NETWORKS}/other", "nats": [{"name": "n"}]},
                {"name": "without", "network": f"{NETWORKS}/default"},
            ]
        },
    }
    with Server(answers) as server:

        def look(network_: str | None, subnetwork: str | None = None) -> list[Finding]:
            arguments = (server.services, "p", "us-east5", network_, subnetwork)
            return list(network.look_at_region(*arguments))

        closed, no_way_out = look(None)
        assert closed.outcome is Outcome.PROBLEM
        assert closed.mend[0].endswith("--enable-private-ip-google-access")
        assert no_way_out.outcome is Outcome.WARNING
        assert "nats create launcher --router=launcher-us-east5" in no_way_out.mend[1]
        for name in ("other", f"{NETWORKS}/other"):
            assert [found.outcome.value for found in look(name)] == ["ok", "ok"]
        full = "projects/p/regions/us-east5/subnetworks/other-sub"
        assert [found.outcome.value for found in look(None, full)] == ["ok", "ok"]
        (absent,) = look("absent")
        assert absent.text == "no subnetwork of absent in us-east5"


@pytest.mark.parametrize(("ahead", "outcome"), [(0, "ok"), (3600, "problem"), (-3600, "problem")])
def test_the_clock(ahead: float, outcome: str) -> None:
    with Server({}, time.time() - ahead) as server:
        assert project.compare_clocks(server.services).outcome == outcome


def test_a_key_that_google_gives_a_token_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    token = {"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}
    where = context(tmp_path, "provider=google", "provider.project=my-project")
    with Server({"/token": token}) as server:
        info = {
            "type": "service_account",
            "client_email": "me@p.iam.gserviceaccount.com",
            "private_key": pem.decode(),
            "project_id": "p",
        }
        file = tmp_path / "key.json"
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        file.write_text(json.dumps({**info, "token_uri": f"{server.url}/token"}))
        assert only(project.credentials, where) == ok("me@p.iam.gserviceaccount.com")
        file.write_text(json.dumps({**info, "token_uri": f"{server.url}/none"}))
        refused = only(
            project.credentials,
            context(tmp_path, "provider=google", "provider.project=my-project"),
        )
    assert refused.outcome is Outcome.PROBLEM
    assert refused.mend == ("gcloud auth application-default login",)
