"""`doctor` and `coordinator create-service-account`, on the emulator through the real clients."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions

from launcher.__main__ import main
from launcher.compose import compose
from launcher.doctor import network, offers, permissions, project, quota, storage
from launcher.doctor.answers import finding_of
from launcher.doctor.context import Cloud, Context, Look
from launcher.doctor.findings import Finding, Outcome, Skip
from launcher.emulator import client as emulator
from launcher.emulator.faults import FAULTS, Target
from launcher.errors import ProvisioningError
from launcher.iam import policies, service_account
from launcher.plan import make_plan
from launcher.providers.rest import anonymous_session
from launcher.providers.services import IAM, STORAGE, Services
from launcher.provisioning.requests import Identity


class Desk:
    """One project on an emulator, and checks of configurations that name it."""

    def __init__(self, folder: Path, attachment: emulator.Attachment, project: str) -> None:
        self.folder = folder
        self.endpoint = attachment.endpoint
        self.project = project
        self.account = f"tpu-admin@{project}.iam.gserviceaccount.com"
        self.services = Services(anonymous_session, attachment.rest)
        self.faults = contextlib.ExitStack()
        self._before = self._calls()

    def fault(self, fault: str, method: str = "", **rule: Any) -> None:
        """Armed until the end of the test."""
        named = {"method": method} if method else {}
        whom = {} if FAULTS[fault].target is Target.PROJECT else {"node": "*"}
        given = {"fault": fault, **named, **whom, **rule}
        self.faults.enter_context(emulator.arm(self.endpoint, [given], ()))

    def bucket(self, name: str, location: str) -> None:
        emulator.control(self.endpoint, {"command": "bucket", "name": name, "location": location})

    @property
    def own(self) -> tuple[str, str]:
        return f"provider.state_dir={self.folder}", f"provider.project={self.project}"

    def look(self, look: Look, *overrides: str) -> list[Finding]:
        """What one check finds; an error of it is told as `doctor` would."""
        spec = compose(["name=t", *self.own, *overrides], cwd=self.folder)
        plan = make_plan(spec, Identity("me", "m", spec.provider.project or ""))
        with contextlib.closing(Cloud(spec.provider)) as cloud:
            try:
                return list(look(Context(self.folder, "me", (spec, plan, cloud))))
            except exceptions.GoogleAPICallError as error:
                return [finding_of(error, cloud.project)]

    def outcomes(self, look: Look, *overrides: str) -> list[str]:
        return [finding.outcome.value for finding in self.look(look, *overrides)]

    def run(self, *words: str) -> int:
        """The exit code of a command line."""
        return leave(*words, *self.own)

    def policy(self, resource: policies.Resource) -> dict[str, list[str]]:
        bindings = resource.read(self.services).get("bindings", [])
        return {binding["role"]: binding["members"] for binding in bindings}

    def calls(self) -> set[str]:
        """The methods that were called in this test."""
        return set(self._calls() - self._before)

    def _calls(self) -> Counter[str]:
        return Counter(emulator.control(self.endpoint, {"command": "ledger"})["calls"])


def leave(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, emulator.Attachment]]:
    folder = tmp_path_factory.mktemp("emulator")
    with emulator.connect(folder) as attachment:
        yield folder, attachment


@pytest.fixture
def desk(
    running: tuple[Path, emulator.Attachment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = Desk(*running, f"project-{next(_numbers)}")
    with made.faults:
        yield made


_numbers = itertools.count()


def test_all_is_well_on_a_fresh_emulator(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """What the machine of the tests lacks is no matter here."""
    code = desk.run("doctor", "--json")
    told = json.loads(capsys.readouterr().out)
    assert code == told["exit_code"] != 3
    outcomes = {row["check"]: row["outcome"] for row in told["findings"] if row["exit_code"] == 3}
    asleep = {"credentials", "bucket", "objects", "network"}
    assert outcomes == {check: "skipped" if check in asleep else "ok" for check in outcomes}
    assert {"provider", "project", "APIs", "permissions", "types", "quota"} < set(outcomes)
    assert desk.run("doctor") == code
    lines = capsys.readouterr().out.splitlines()
    assert "ok       runtime          v2-alpha-tpuv6e is offered in us-central1-b" in lines
    assert lines[-1].endswith("5 skipped: ready to run" if code == 0 else "a run would fail")


def test_a_problem_of_the_provider_is_exit_code_3_and_stops_no_other_check(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.fault("api-disabled", "tpu.googleapis.com")
    desk.fault("permission-missing", "tpu.nodes.create")
    desk.fault("quota", limit=15)
    assert desk.run("doctor") == 3
    told = capsys.readouterr().out
    assert f"gcloud services enable tpu.googleapis.com --project={desk.project}" in told
    assert f"not given on {desk.project}: tpu.nodes.create" in told
    assert (
        f"projects add-iam-policy-binding {desk.project} --member=user:YOU --role=roles/tpu.admin"
        in told
    )
    assert "16 chips asked for, 15 allowed" in told
    assert "ok       project" in told
    assert "Traceback" not in told


def test_a_wrong_configuration_is_told_and_the_machine_is_looked_at_all_the_same(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run("doctor", "cluster=v6e_16") == 2
    told = capsys.readouterr().out
    assert "did you mean v6e-16?" in told
    assert "ok       python" in told
    assert "skipped  quota            the configuration is wrong, see above" in told


def test_without_credentials_the_provider_is_the_problem(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(desk.folder / "none.json"))
    assert leave("doctor", "provider=google", "provider.project=my-project") == 3
    told = capsys.readouterr().out
    assert "none.json" in told
    assert "gcloud auth application-default login" in told
    assert "skipped  quota            the provider cannot be asked, see above" in told


def test_apis_are_those_of_the_configuration(desk: Desk) -> None:
    desk.fault("api-disabled", "compute.googleapis.com")
    assert desk.outcomes(project.apis) == ["ok"]
    (found,) = desk.look(project.apis, "cluster.coordinator=vm")
    assert (found.outcome, found.mend) == (
        Outcome.PROBLEM,
        (f"gcloud services enable compute.googleapis.com --project={desk.project}",),
    )
    desk.services.post(
        "serviceusage.googleapis.com",
        f"/v1/projects/{desk.project}/services/compute.googleapis.com:enable",
        {},
    )
    assert desk.outcomes(project.apis, "cluster.coordinator=vm") == ["ok"]


def test_a_disabled_api_that_a_check_asks_is_told_with_its_command(desk: Desk) -> None:
    desk.fault("api-disabled", "cloudresourcemanager.googleapis.com")
    (found,) = desk.look(permissions.on_project)
    assert found.outcome is Outcome.PROBLEM
    assert found.mend == (
        f"gcloud services enable cloudresourcemanager.googleapis.com --project={desk.project}",
    )


@pytest.mark.parametrize("look", [offers.types, offers.runtime_versions])
def test_a_disabled_api_is_not_a_zone_without_tpus(desk: Desk, look: Look) -> None:
    desk.fault("api-disabled", "tpu.googleapis.com")
    (found,) = desk.look(look)
    assert "No TPUs for you" not in found.text
    assert found.mend == (f"gcloud services enable tpu.googleapis.com --project={desk.project}",)


def test_a_question_that_is_not_allowed_is_not_known_and_no_problem(desk: Desk) -> None:
    desk.fault(
        "call-error", "services.consumerQuotaMetrics.list", code="PERMISSION_DENIED", message="no"
    )
    (found,) = desk.look(quota.quotas)
    assert (found.outcome, found.text) == (Outcome.WARNING, "not known: no")


def test_a_project_that_cannot_be_seen(desk: Desk) -> None:
    assert desk.outcomes(project.exists) == ["ok"]
    desk.fault("call-error", "projects.get", code="PERMISSION_DENIED", message="no such project")
    (found,) = desk.look(project.exists, "provider.project=other-project")
    assert found.outcome is Outcome.PROBLEM
    assert "other-project does not exist, or you may not see it" in found.text


def test_permissions_are_those_of_the_configuration(desk: Desk) -> None:
    desk.fault("permission-missing", "compute.firewalls.*")
    assert desk.outcomes(permissions.on_project) == ["ok"]
    (found,) = desk.look(permissions.on_project, "cluster.coordinator=vm")
    assert (
        found.text
        == f"not given on {desk.project}: compute.firewalls.get, compute.firewalls.create"
    )
    assert "--role=roles/compute.securityAdmin" in found.mend[0]


def test_the_account_of_the_tpu_vms(desk: Desk) -> None:
    named = f"cluster.service_account={desk.account}"
    (absent,) = desk.look(permissions.on_accounts, named)
    assert absent.mend == (
        f"gcloud iam service-accounts create tpu-admin --project={desk.project}",
    )
    service_account.create(desk.services, desk.project, "tpu-admin")
    assert desk.outcomes(permissions.on_accounts, named) == ["ok"]
    assert desk.outcomes(permissions.on_accounts) == ["ok"]
    desk.fault("permission-missing", permissions.ACT_AS)
    (found,) = desk.look(permissions.on_accounts, named)
    assert found.text == f"not allowed to act as {desk.account}"
    assert "--role=roles/iam.serviceAccountUser" in found.mend[0]
    assert desk.outcomes(permissions.on_accounts) == ["warning"]


def test_types_and_versions_of_every_zone(desk: Desk) -> None:
    both = "cluster.zone=[us-east5-b,us-central2-b]"
    first, second = desk.look(offers.types, "cluster=v6e-16", both)
    assert (first.outcome, first.text) == (Outcome.OK, "v6e-16 is offered in us-east5-b")
    assert (second.outcome, second.text) == (
        Outcome.WARNING,  # since the other zone has it
        "v6e-16 is not offered in us-central2-b",
    )
    version = "cluster.runtime_version=v2-alpha-tpuv9"
    (found,) = desk.look(offers.runtime_versions, "cluster=v6e-16", version, both)
    assert found.outcome is Outcome.PROBLEM
    assert found.text.endswith("is not offered in us-east5-b, us-central2-b")
    assert found.mend[0].startswith("did you mean v2-alpha-tpuv6")
    assert desk.outcomes(offers.runtime_versions, "cluster=v6e-16") == ["ok"]


def test_a_zone_that_refuses(desk: Desk) -> None:
    refusal = "Permission denied on 'locations/us-east5-b' (or it may not exist)."
    desk.fault(
        "call-error",
        "ListAcceleratorTypes",
        code="PERMISSION_DENIED",
        message=refusal,
        zone="us-east5-b",
    )
    (found,) = desk.look(offers.types, "cluster=v6e-16", "cluster.zone=us-east5-b")
    assert found.outcome is Outcome.PROBLEM
    assert refusal in found.text


def test_quota_by_zone_and_capacity(desk: Desk) -> None:
    desk.fault("quota", limit=16, zone="us-east5-b")
    zones = "cluster.zone=[us-east5-b,us-east5-a]"
    found = desk.look(quota.quotas, "cluster=v6e-16", zones, "cluster.capacity=spot")
    assert [finding.outcome for finding in found] == [Outcome.OK, Outcome.OK]
    assert "16 allowed (tpu.googleapis.com/tpu-v6e-preemptible)" in found[0].text
    short, enough = desk.look(quota.quotas, "cluster=v6e-32", zones)
    assert (short.outcome, enough.outcome) == (Outcome.PROBLEM, Outcome.OK)
    assert short.mend[0].startswith("ask for more: https://console.cloud.google.com/")
    slices = desk.outcomes(quota.quotas, "cluster=v6e-16", zones, "mode.slices=2")
    assert slices == ["problem", "ok"]
    assert desk.outcomes(quota.quotas, "cluster=v6e-16", "cluster.capacity=reserved") == ["warning"]


@pytest.mark.parametrize(
    ("accelerator", "metric"),
    [
        ("v2-8", "tpu-v2"),
        ("v3-32", "tpu-v3-pod"),
        ("v4-8", "tpu-v4s-pod"),
        ("v5litepod-4", "tpu-v5s-litepod-serving"),
        ("v5litepod-16", "tpu-v5s-litepod"),
        ("v5p-8", "tpu-v5p"),
    ],
)
def test_the_quota_of_each_generation(desk: Desk, accelerator: str, metric: str) -> None:
    named = (f"cluster.accelerator_type={accelerator}", "cluster.zone=any", "cluster.capacity=spot")
    (found,) = desk.look(quota.quotas, *named)
    assert found.outcome is Outcome.OK
    assert f"allowed (tpu.googleapis.com/{metric}-preemptible) in " in found.text


def test_the_bucket_and_its_region(desk: Desk) -> None:
    desk.bucket("near", "us-east5")
    desk.bucket("many", "US")
    desk.bucket("far", "europe-west4")
    zone = "cluster.zone=us-east5-b"

    def found(name: str) -> Finding:
        (one,) = desk.look(storage.bucket, zone, f"workload.checkpoint_dir=gs://{name}/run")
        return one

    assert (found("near").outcome, found("many").outcome) == (Outcome.OK, Outcome.OK)
    assert found("far").outcome is Outcome.WARNING
    assert "gs://far is in EUROPE-WEST4, slices may be in us-east5" in found("far").text
    absent = found("absent")
    assert absent.outcome is Outcome.PROBLEM
    assert absent.mend == (
        "while an emulator runs: python -m launcher.emulator bucket absent us-east5",
    )
    with pytest.raises(Skip):
        desk.look(storage.bucket, zone)


def test_a_bucket_of_google_is_made_with_gcloud(tmp_path: Path) -> None:
    spec = compose(["name=t", "provider=google", "provider.project=p-1"], cwd=tmp_path)
    plan = make_plan(spec, Identity("me", "m", "p-1"))
    with contextlib.closing(Cloud(spec.provider)) as cloud:
        made = storage.creation("b", "us-east5", Context(tmp_path, "me", (spec, plan, cloud)))
    assert made == "gcloud storage buckets create gs://b --project=p-1 --location=us-east5"


def test_objects_of_the_bucket(desk: Desk) -> None:
    desk.bucket("mine", "us-east5")
    there = "workload.checkpoint_dir=gs://mine/run"
    assert desk.outcomes(permissions.on_bucket, there) == ["ok"]
    desk.fault("permission-missing", "storage.objects.delete")
    (found,) = desk.look(permissions.on_bucket, there)
    assert found.outcome is Outcome.WARNING
    assert "you may not, in gs://mine: storage.objects.delete;" in found.text
    with pytest.raises(Skip, match="there is no gs://absent"):
        desk.look(permissions.on_bucket, "workload.checkpoint_dir=gs://absent")


def test_the_coordinator(desk: Desk) -> None:
    assert desk.outcomes(network.coordinator) == ["ok"]
    (vm,) = desk.look(network.coordinator, "cluster.coordinator=vm")
    assert vm.text == "VM launcher-me in us-central1-b will be made, type e2-standard-4"
    answering, silent = desk.endpoint, "127.0.0.1:9"
    assert desk.outcomes(network.coordinator, f"cluster.coordinator={answering}") == ["ok"]
    assert desk.outcomes(network.coordinator, f"cluster.coordinator={silent}") == ["problem"]


def test_the_account_is_made_once_with_roles_no_wider_than_needed(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.bucket("ckpt", "us-east5")
    service_account.create(desk.services, desk.project, "trainer")
    trainer = f"trainer@{desk.project}.iam.gserviceaccount.com"
    words = (
        "coordinator",
        "create-service-account",
        "workload.checkpoint_dir=gs://ckpt/run",
        f"cluster.service_account={trainer}",
    )
    assert desk.run(*words) == 0
    told = capsys.readouterr().out
    assert f"{desk.account}: created" in told
    assert f"cluster.coordinator=vm cluster.vm.service_account={desk.account}" in told
    member = [f"serviceAccount:{desk.account}"]
    on_project = {"roles/tpu.admin": member, "roles/logging.logWriter": member}
    on_trainer = {"roles/iam.serviceAccountUser": member}
    on_bucket = {"roles/storage.objectAdmin": member}

    def given() -> list[dict[str, list[str]]]:
        resources = (
            policies.of_project(desk.project),
            policies.of_account(desk.project, trainer),
            policies.of_bucket("ckpt"),
        )
        return [desk.policy(resource) for resource in resources]

    assert given() == [on_project, on_trainer, on_bucket]
    assert desk.run(*words) == 0
    assert f"{desk.account}: there already" in capsys.readouterr().out
    assert given() == [on_project, on_trainer, on_bucket]


def test_a_dry_run_changes_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("coordinator", "create-service-account", "--dry-run", "--name=tpu-other") == 0
    told = capsys.readouterr().out
    assert f"tpu-other@{desk.project}.iam.gserviceaccount.com: would be created" in told
    assert f"roles/tpu.admin on project {desk.project}: would be given" in told
    assert "may act as any account of the project" in told
    assert desk.services.get(IAM, f"/v1/projects/{desk.project}/serviceAccounts") == {}
    assert desk.policy(policies.of_project(desk.project)) == {}
    assert not [call for call in desk.calls() if "set" in call or "create" in call.lower()]


@pytest.mark.parametrize("name", ["tpuAdmin", "tpu", "tpu-", "1-tpu-admin", "t" * 31, "tpu_admin"])
def test_a_name_that_google_would_refuse_is_refused_before_any_call(
    desk: Desk, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert desk.run("coordinator", "create-service-account", f"--name={name}") == 2
    assert "6 to 30 characters" in capsys.readouterr().err
    assert not [call for call in desk.calls() if "serviceAccounts" in call]


def test_what_is_no_action_of_coordinator(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("coordinator", "make") == 2
    assert "coordinator takes create-service-account, not 'make'" in capsys.readouterr().err


def bump(desk: Desk, resource: policies.Resource, role: str) -> None:
    """Somebody else's change."""
    policy = resource.read(desk.services)
    resource.write(desk.services, policies.with_roles(policy, [role], "user:other@example.com"))


@pytest.mark.parametrize("where", ["project", "bucket"])
def test_a_change_of_somebody_else_in_between_is_kept(desk: Desk, where: str) -> None:
    """The first write meets an etag of old: 409, and for buckets 412."""
    resource = policies.of_project(desk.project)
    if where == "bucket":
        desk.bucket("raced", "us-east5")
        resource = policies.of_bucket("raced")
    writes = []

    def write(services: Services, policy: policies.Policy) -> policies.Policy:
        if not writes:
            bump(desk, resource, "roles/viewer")
        writes.append(policy["etag"])
        return resource.write(services, policy)

    raced = policies.Resource(resource.title, resource.gcloud, resource.read, write)
    member = "user:me@example.com"
    given = policies.grant(desk.services, raced, ["roles/editor"], member, sleep=lambda _: None)
    assert (given, len(set(writes))) == (["roles/editor"], 2)
    assert desk.policy(resource) == {
        "roles/viewer": ["user:other@example.com"],
        "roles/editor": [member],
    }


def test_many_at_once_lose_nothing(desk: Desk) -> None:
    resource = policies.of_project(desk.project)
    members = [f"user:u{number}@example.com" for number in range(6)]
    with ThreadPoolExecutor(len(members)) as pool:
        done = pool.map(
            lambda member: policies.grant(desk.services, resource, ["roles/viewer"], member),
            members,
        )
        assert list(done) == [["roles/viewer"]] * len(members)
    assert sorted(desk.policy(resource)["roles/viewer"]) == members


def test_an_account_that_is_not_known_everywhere_yet_is_waited_for(desk: Desk) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        service_account.create(desk.services, desk.project, "tpu-admin")

    member = f"serviceAccount:{desk.account}"
    resource = policies.of_project(desk.project)
    assert policies.grant(desk.services, resource, ["roles/tpu.admin"], member, sleep)
    assert len(waits) == 1


def test_a_refused_change_names_the_command_for_an_administrator(desk: Desk) -> None:
    desk.fault("call-error", "*setIamPolicy", code="PERMISSION_DENIED", message="no")
    resource = policies.of_project(desk.project)
    with pytest.raises(ProvisioningError) as caught:
        policies.grant(desk.services, resource, ["roles/tpu.admin"], "user:a@b.com")
    command = f"gcloud projects add-iam-policy-binding {desk.project} --member=user:a@b.com"
    assert f"{command} --role=roles/tpu.admin" in str(caught.value)


def test_the_policy_of_a_bucket_that_is_not_there(desk: Desk) -> None:
    with pytest.raises(exceptions.NotFound):
        desk.services.get(STORAGE, "/storage/v1/b/absent/iam")
