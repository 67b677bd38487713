"""From a command line and the user's files to a Spec, or to every problem at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher.compose import WORKLOADS, compose
from launcher.config.overrides import as_hydra, check_points
from launcher.errors import ConfigError, Problem
from launcher.spec import Spec, Workload

GLOBAL = "# @package _global_\n"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of the user's folder."""

    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    write("train.py", "print(1)\n")
    return write


def spec(cwd: Path, *overrides: str, **options: object) -> Spec:
    return compose(overrides, cwd=cwd, suffix=lambda: "1f2e", **options)


def workload(cwd: Path, *overrides: str) -> Workload:
    made = spec(cwd, *overrides).workload
    assert made is not None
    return made


def problems(cwd: Path, *overrides: str) -> dict[str, Problem]:
    """The problems by key; a configuration without any fails the test."""
    with pytest.raises(ConfigError) as caught:
        spec(cwd, *overrides)
    return {problem.key or problem.message: problem for problem in caught.value.problems}


# What comes out


def test_the_main_job(tmp_path: Path) -> None:
    made = spec(tmp_path, "cluster=v6e-16", "mode=jax", "workload=basic")
    assert made.name == "basic-v6e-16-1f2e"
    assert made.cluster.accelerator.accelerator_type == "v6e-16"
    (offer,) = made.cluster.offers
    assert offer.runtime_version == "v2-alpha-tpuv6e"
    assert (offer.capacity, offer.zone) == ("on-demand", offer.accelerator.zones[0])
    assert made.notes == ()
    assert made.mode.requirements == ("jax[tpu]",)
    assert (made.mode.framework, made.mode.slices) == ("jax", 1)
    assert made.provider.kind == "local"
    assert made.workload is not None
    assert made.workload.argv("py") == ("py", "basic_jax.py")
    assert made.workload.working_dir == WORKLOADS
    assert made.overrides == ("cluster=v6e-16", "mode=jax", "workload=basic")
    assert dict(made.choices) == {
        "cluster": "v6e-16",
        "mode": "jax",
        "provider": "local",
        "workload": "basic",
    }


def test_a_script_of_the_user(tmp_path: Path, write: Write) -> None:
    made = spec(
        tmp_path, "cluster=v4-16", "workload.script=train.py", "workload.args.code=7", "name=t2"
    )
    assert made.name == "t2"
    assert made.workload is not None
    assert (made.workload.name, made.workload.working_dir) == ("train", tmp_path)
    assert made.workload.argv("py") == ("py", "train.py", "--code=7")


def test_every_published_type_without_a_file(tmp_path: Path) -> None:
    made = spec(tmp_path, "cluster.accelerator_type=v5p-1024", "name=a")
    assert made.cluster.accelerator.hosts == 128
    assert spec(tmp_path, "cluster.accelerator_type=tpu7x-16").cluster.offers[0].runtime_version


def test_up_needs_no_workload(tmp_path: Path) -> None:
    made = spec(tmp_path, "workload.script=missing.py", require_workload=False)
    assert made.workload is None
    assert made.name == "up-v6e-16-1f2e"


def test_made_up_names_fit(tmp_path: Path, write: Write) -> None:
    write("My Very_Long Training Script (final) v2.py", "print()")
    script = "workload.script='My Very_Long Training Script (final) v2.py'"
    made = spec(tmp_path, script, "cluster=v5litepod-256")
    assert made.name == "my-very-long-training-v5litepod-256-1f2e"
    assert len(made.name) == 40


def test_seconds_zones_labels_and_folders(tmp_path: Path) -> None:
    made = spec(
        tmp_path,
        "cluster.zone=[us-east5-b]",
        "cluster.labels.team-x=007",
        "retry.backoff=1.5m",
        "workload.checkpoint_dir=out",
    )
    assert [offer.zone for offer in made.cluster.offers] == ["us-east5-b"]
    assert made.cluster.machine.labels == {"team-x": "007"}
    assert (made.retry.backoff, made.retry.grace) == (90, 30)
    assert made.workload is not None
    assert made.workload.checkpoint_dir == str(tmp_path / "out")
    assert workload(tmp_path, "workload.checkpoint_dir=gs://b/c").checkpoint_dir == "gs://b/c"


def test_basic_is_written_in_the_framework_of_the_mode(tmp_path: Path) -> None:
    made = spec(tmp_path, "cluster=v5p-16", "mode=torch_xla", "workload=basic")
    assert made.name == "basic-v5p-16-1f2e"
    assert (made.mode.framework, made.mode.processes) == ("torch_xla", "chip")
    assert made.workload is not None
    assert made.workload.argv("py") == ("py", "basic_torch_xla.py")


def test_files_of_the_user(tmp_path: Path, write: Write) -> None:
    write("conf/workload/mine.yaml", "script: train.py\nargs: {lr: 1e-5, seed: 010, tag: ~}\n")
    write("more/cluster/big.yaml", "accelerator_type: v6e-32\nzone: us-east5-b\n")
    write(
        "conf/experiment/all.yaml",
        f"{GLOBAL}defaults:\n  - override /workload: mine\n  - override /cluster: big\n"
        "retry: {max_failures: 2}\nworkload: {args: {lr: 3.10}}\n",
    )
    write("conf/local/default.yaml", f"{GLOBAL}workload: {{env: {{WHO: me}}}}\n")
    made = spec(tmp_path, "experiment=all", config_dirs=[Path("more")])
    assert made.cluster.accelerator.accelerator_type == "v6e-32"
    assert made.retry.max_failures == 2
    assert made.workload is not None
    assert made.workload.name == "mine"
    assert made.workload.argv("py") == ("py", "train.py", "--lr=3.10", "--seed=010")
    assert made.workload.env == {"WHO": "me"}
    assert dict(made.choices)["experiment"] == "all"


@pytest.mark.parametrize(
    ("overrides", "kind", "target"),
    [
        (["workload.script=train.py"], "script", ("train.py",)),
        (["workload.module=pkg.train"], "module", ("pkg.train",)),
        (["workload.command=[sh,-c,'echo $HOME *']"], "command", ("sh", "-c", "echo $HOME *")),
        (["experiment=e"], "module", ("timeit",)),
        (["experiment=e", "workload.script=train.py"], "script", ("train.py",)),
    ],
)
def test_the_last_one_to_name_a_program_wins(
    tmp_path: Path, write: Write, overrides: list[str], kind: str, target: tuple[str, ...]
) -> None:
    write("conf/experiment/e.yaml", f"{GLOBAL}workload: {{module: timeit}}\n")
    made = workload(tmp_path, *overrides)
    assert (made.kind, made.target) == (kind, target)


def test_the_config_that_is_stored_holds_no_secret_and_loses_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "canary")
    made = spec(tmp_path, "workload.env.TOKEN=${oc.env:A_TOKEN}", "workload.args.lr=1e-5")
    assert made.workload is not None
    assert made.workload.env == {"TOKEN": "canary"}
    assert made.workload.secret_env == {"TOKEN"}
    assert "canary" not in str(made.config)
    assert made.config["workload"]["args"] == {"lr": "1e-5"}


def test_a_secret_is_known_through_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "canary")
    direct = ("workload.env.TOKEN=${oc.env:A_TOKEN}", "workload.env.PLAIN=1")
    chain = ("workload.env.B=x-${workload.env.TOKEN}", "workload.env.C=${.B}")
    made = workload(tmp_path, *direct, *chain)
    assert made.env["C"] == "x-canary"
    assert made.secret_env == {"TOKEN", "B", "C"}


# The slices that are asked for


def offers(cwd: Path, *overrides: str) -> list[tuple[str, str, str]]:
    made = spec(cwd, *overrides).cluster.offers
    return [(each.accelerator.accelerator_type, each.capacity, each.zone) for each in made]


def test_every_combination_is_an_offer_in_order(tmp_path: Path) -> None:
    assert offers(
        tmp_path,
        "cluster.accelerator_type=[v6e-8,v4-8]",
        "cluster.capacity=[spot,queued-reserved]",
        "cluster.zone=[us-east5-b,us-central2-b]",
    ) == [
        (name, capacity, zone)
        for name in ("v6e-8", "v4-8")
        for capacity in ("spot", "queued-reserved")
        for zone in ("us-east5-b", "us-central2-b")
    ]


def test_any_zone_is_each_that_offers_the_type(tmp_path: Path) -> None:
    made = offers(tmp_path, "cluster.accelerator_type=[v5p-8,v4-8]", "cluster.zone=any")
    zones = ["us-central1-a", "us-east5-a", "europe-west4-b"]
    assert set(made) == {("v5p-8", "on-demand", zone) for zone in zones} | {
        ("v4-8", "on-demand", "us-central2-b")
    }
    first = offers(tmp_path, "cluster=v6e-8", "cluster.zone=[us-east5-b,any]")
    assert first[0][2] == "us-east5-b"
    assert len(first) == len(set(first)) == 7


def test_old_names_of_capacities_are_those_of_today(tmp_path: Path) -> None:
    words = "cluster.capacity=[preemptible,spot,queued-preemptible]"
    assert [capacity for _, capacity, _ in offers(tmp_path, words)] == ["spot", "queued-spot"]
    assert len(spec(tmp_path, words).notes) == 2


def test_all_that_is_asked_of_the_machines(tmp_path: Path, write: Write) -> None:
    write(
        "conf/experiment/mine.yaml",
        f"""{GLOBAL}cluster:
  accelerator_type: [v4-8, v5litepod-8]
  capacity: [queued-reserved, flex-start]
  valid_after: 2099-12-01T08:00:00Z
  valid_until: 2099-12-02T08:00:00+01:00
  queue_timeout: 9999999h
  max_run_time: 168h
  reservation: mine
  zone: [us-central2-b, us-west4-a]
  network: default
  external_ips: true
  tags: [ssh]
  service_account: 123-compute@developer.gserviceaccount.com
  scopes: ["https://www.googleapis.com/auth/cloud-platform"]
  data_disks:
    - source: projects/p1/zones/us-west4-a/disks/one
    - {{source: projects/p1/zones/us-central2-b/disks/two, mode: READ_ONLY}}
  startup: ["mkdir -p '/mnt/a b'", 'echo \\${{HOME}}']
  env: {{A: 1e-5, B: 010, C: ~}}
  coordinator: vm
  vm: {{name: head, on_down: stop}}
""",
    )
    made = spec(tmp_path, "experiment=mine", "cluster.env.D=yes").cluster
    assert made.queue.valid_after == "2099-12-01T08:00:00Z"
    assert made.queue.valid_until == "2099-12-02T08:00:00+01:00"
    assert (made.queue.max_run_time, made.queue.reservation) == (604800, "mine")
    assert (made.machine.network, made.machine.external_ips) == ("default", True)
    assert made.machine.data_disks == (
        ("projects/p1/zones/us-west4-a/disks/one", "READ_WRITE"),
        ("projects/p1/zones/us-central2-b/disks/two", "READ_ONLY"),
    )
    assert made.machine.startup == ("mkdir -p '/mnt/a b'", "echo ${HOME}")
    assert made.machine.env == {"A": "1e-5", "B": "010", "D": "yes"}
    assert (made.coordinator, made.vm.name, made.vm.on_down) == ("vm", "head", "stop")
    assert made.vm.machine_type == "e2-standard-4"


@pytest.mark.parametrize(
    "given",
    ["here", "vm", "host0", "10.0.0.2:8265", "http://head.example:8265", "https://[::1]:8265/"],
)
def test_where_the_head_may_live(tmp_path: Path, given: str) -> None:
    assert spec(tmp_path, f"cluster.coordinator='{given}'").cluster.coordinator == given


def test_durations_and_times_of_the_command_line(tmp_path: Path) -> None:
    later = ("cluster.capacity=queued-spot", "cluster.queue_timeout=3h")
    assert spec(tmp_path, *later, "cluster.valid_after=2h").cluster.queue.valid_after == 7200
    time_of_day = "2099-12-01T08:00:00Z"
    made = spec(tmp_path, *later, f"cluster.valid_until={time_of_day}")
    assert made.cluster.queue.valid_until == time_of_day


GOOGLE = ("provider=google", "provider.project=my-project")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["cluster.capacity=preemptible"], "old name of spot"),
        (["cluster.runtime_version=tpu-ubuntu2204-base"], "made for v2, v3, v4; on v6e"),
        (["cluster=v4-8", "cluster.runtime_version=v2-alpha-tpuv6e"], "made for v6e; on v4"),
        (GOOGLE, "Cloud NAT"),
        (["mode=multislice", "mode.framework=torch_xla"], "none of them is torch_xla"),
        (["mode.requirements=[]"], "none of them is jax"),
    ],
)
def test_notes(tmp_path: Path, overrides: list[str], told: str) -> None:
    (note,) = spec(tmp_path, *overrides).notes
    assert told in note


@pytest.mark.parametrize(
    "overrides",
    [
        ["cluster=v5litepod-8", "cluster.runtime_version=v2-alpha-tpuv5"],
        ["cluster=v5p-8", "cluster.runtime_version=tpu-ubuntu2204-base"],
        ["cluster=v6e-8", "cluster.runtime_version=v2-alpha-tpuv6e"],
        ["cluster=v6e-8", "cluster.runtime_version=one-of-tomorrow"],
        [*GOOGLE, "cluster.external_ips=true"],
        ["mode=torch_xla", "mode.requirements=['torch-xla[tpu]==2.9.*']"],
    ],
)
def test_nothing_to_note(tmp_path: Path, overrides: list[str]) -> None:
    assert spec(tmp_path, *overrides).notes == ()


# Values as written

TRAPS = ["1e-5", "3.10", "010", "0x1F", "12:30:45", "1_000", "yes", "on", "True", "007", "6e-16"]
TRAPS += ["2024-01-01", "0o17", "-1", "+1", ".5", "1.", "a b", "v6e-16", "1e400", ".nan", "no"]


def test_values_arrive_as_written(tmp_path: Path, write: Write) -> None:
    lines = [f"  k{i}: {text}\n" for i, text in enumerate(TRAPS)]
    write(
        "conf/workload/mine.yaml",
        "".join(["args:\n", *lines, "env:\n", *lines, "command:\n"])
        + "".join(f"  - {text}\n" for text in ["run", *TRAPS]),
    )
    typed = [f"workload.args.t{i}={text}" for i, text in enumerate(TRAPS)]
    typed += [f"+workload.env.t{i}={text}" for i, text in enumerate(TRAPS)]
    made = workload(tmp_path, "workload=mine", *typed)
    named = {f"{kind}{i}": text for kind in "kt" for i, text in enumerate(TRAPS)}
    assert made.target == ("run", *TRAPS)
    assert dict(made.args) == named
    assert made.env == named


def test_elements_of_a_typed_command_arrive_as_written(tmp_path: Path) -> None:
    words = f"workload.command=[run,{','.join(TRAPS)},'x,y',\"it's\"]"
    assert workload(tmp_path, words).target == ("run", *TRAPS, "x,y", "it's")


@pytest.mark.parametrize(
    ("written", "argument"),
    [
        ("'a b'", "a b"),
        ("\"$HOME * 'x'\"", "$HOME * 'x'"),
        ("'1e-5'", "1e-5"),
        ("'a=b#é'", "a=b#é"),
        ("", ""),
        ("--flag", "--flag"),
        ("gs://b/c:d", "gs://b/c:d"),
    ],
)
def test_texts_of_the_command_line(tmp_path: Path, written: str, argument: str) -> None:
    assert workload(tmp_path, f"workload.args.x={written}").args == (("x", argument),)


def test_keys_of_open_maps_are_one_name(tmp_path: Path) -> None:
    made = workload(tmp_path, "workload.args.model.dim-x=8", "+workload.args.a_b=1", "++name=t")
    assert made.args == (("model.dim-x", "8"), ("a_b", "1"))


def test_null_leaves_out(tmp_path: Path) -> None:
    made = workload(
        tmp_path, "workload.args.a=null", "workload.env.A=null", "workload.args.b='null'"
    )
    assert (made.args, dict(made.env)) == ((("b", "null"),), {})


SCALARS = st.one_of(
    st.from_regex(r"[-+0-9._:eExXoOb]{1,8}", fullmatch=True),
    st.sampled_from(TRAPS),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
)


@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(SCALARS, min_size=1, max_size=20))
@example(texts=["<<", "=", "!!int 3", "&a 1", "0b1", "1:2", "~", "", "190:20:30.15"])
def test_any_scalar_of_a_file_arrives_as_written_or_is_refused(
    tmp_path: Path, write: Write, texts: list[str]
) -> None:
    lines = [f"  k{i}: {text}" for i, text in enumerate(texts) if _is_one_plain_scalar(text)]
    write("conf/workload/mine.yaml", "\n".join(["script: train.py", "args:", *lines, "  end: x"]))
    match _arguments(tmp_path):
        case ConfigError(problems=found):
            assert all(each.where.startswith("conf/workload/mine.yaml:") for each in found)
        case arrived:
            expected = {f"k{i}": text.strip(" ") for i, text in enumerate(texts)}
            assert arrived.items() <= {**expected, "end": "x"}.items()


def _arguments(cwd: Path) -> dict[str, str] | ConfigError:
    try:
        return dict(workload(cwd, "workload=mine").args)
    except ConfigError as error:
        return error


def _is_one_plain_scalar(text: str) -> bool:
    try:
        node = yaml.compose(f"k: {text}\nz: z", Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    assert node is not None
    value = node.value[0][1]
    plain = isinstance(value, yaml.ScalarNode) and value.style is None
    return plain and len(node.value) == 2 and value.value == text.strip(" ")


def test_merged_and_aliased_values_keep_their_text(tmp_path: Path, write: Write) -> None:
    write(
        "conf/workload/mine.yaml",
        "script: train.py\nenv: &base {A: 1e-5, B: 010}\nargs:\n  <<: *base\n  B: 3.10\n",
    )
    assert dict(workload(tmp_path, "workload=mine").args) == {"A": "1e-5", "B": "3.10"}


# What is refused

NOON = "2099-12-01T12:00:00Z"
FLEX = ("cluster.capacity=flex-start",)
QUEUED = ("cluster.capacity=queued-spot",)
LONG = (*QUEUED, "cluster.queue_timeout=9999999h")
RESERVED = ("cluster.capacity=queued-reserved",)
DISK = "projects/p1/zones/us-central1-b/disks/one"

TABLE = [
    (["cluster=v6e_16"], "cluster", "did you mean v6e-16?"),
    (["cluster=V6E-16"], "cluster", "did you mean v6e-16?"),
    (["cluster=v5e-16"], "cluster", "did you mean v5litepod-16?"),
    (["cluster=v6e-17"], "cluster", "did you mean v6e-16, v6e-32 or v6e-8?"),
    (["cluster=v5p-64"], "cluster", "use cluster.accelerator_type=v5p-64"),
    (["cluster=v5e-32"], "cluster", "use cluster.accelerator_type=v5litepod-32"),
    (["cluster.accelerator_type=v6e_16"], "cluster.accelerator_type", "did you mean v6e-16?"),
    (["cluster=null"], "cluster.accelerator_type", "give cluster.accelerator_type=…"),
    (["workload=basik"], "workload", "did you mean basic?"),
    (["experiment=../../etc/x"], "experiment", ""),
    (["workload.scrpt=train.py"], "workload.scrpt", "did you mean script?"),
    (["+clutser.spot=true"], "clutser", "did you mean cluster?"),
    (["++retry.retires=5"], "retry.retires", "known are"),
    (["zone=us-east5-b"], "zone", "did you mean cluster.zone?"),
    (["hydra.swep.dir=x"], "hydra.swep", "did you mean sweep?"),
    (["+hydra.swep.dir=x"], "hydra.swep", "did you mean sweep?"),
    (["++hydra.run.dri=x"], "hydra.run.dri", "did you mean dir?"),
    (["~retry.nope"], "retry.nope", ""),
    (["~retry.grace"], "retry.grace", ""),
    (["name=a=b"], "name", "'name=\"a=b\"'"),
    (["name=#"], "name", "quote it"),
    (["name=é"], "name", "quote it"),
    (["workload.args.x=a=b"], "workload.args.x", "'workload.args.x=\"a=b\"'"),
    (["workload.args.lr=1,2"], "workload.args.lr", "-m"),
    (["workload.args.x=[1,2]"], "workload.args.x", "quote"),
    (["workload.args.x={a:1}"], "workload.args.x", "quote"),
    (["workload.args={a:1e-5}"], "workload.args.a", "quote it"),
    (["workload.args.x=int(3)"], "workload.args.x", "quote it"),
    (["workload.args.-x=1"], "workload.args.-x", "letters"),
    (["workload.args.x=${retry.max_failures}"], "workload.args.x", "quote it"),
    (["workload.args.x=${oc.env:HOME}"], "workload.args.x", "workload.env"),
    (["workload.env.A-B=1"], "workload.env.A-B", ""),
    (["workload.env.'X;touch y'=1"], "workload.env.'X;touch y'", ""),
    (["workload.env.LAUNCHER_RUN=1"], "workload.env.LAUNCHER_RUN", ""),
    (["workload.env.RAY_ADDRESS=1"], "workload.env.RAY_ADDRESS", ""),
    (["workload.env.A='a\0b'"], "workload.env.A", ""),
    (["workload.env.JAX_PLATFORMS='cpu,tpu'"], "workload.env.JAX_PLATFORMS", "google"),
    (["workload.env.PJRT_DEVICE=TPU"], "workload.env.PJRT_DEVICE", "google"),
    (["name=My_Run"], "name", "name=my-run"),
    (["name=''"], "name", "name=run"),
    (["name=010"], "name", "name=run-010"),
    (["name=5"], "name", """quote it: 'name="5"'"""),
    (["name=x\0"], "name", ""),
    (["retry.grace=90"], "retry.grace", ""),
    (["retry.grace='90s\n'"], "retry.grace", ""),
    (["retry.grace=null"], "retry.grace", ""),
    (["retry.max_failures=-1"], "retry.max_failures", ""),
    (["mode.slices=two"], "mode.slices", ""),
    (["mode.slices='\\\\${x}'"], "mode.slices", ""),
    (["mode.slices=???"], "mode.slices", "give mode.slices=…"),
    (["retry=5"], "retry", ""),
    (["keep.foo=1"], "keep", ""),
    (["retry.backoff=${nope}"], "retry.backoff", ""),
    (["retry.backoff=${retry.grace}", "retry.grace=${retry.backoff}"], "retry.grace", ""),
    (["name=${oc.env:NOT_SET_X}"], "name", "export NOT_SET_X"),
    (["cluster.capacity=cheap"], "cluster.capacity", ""),
    (["cluster.zone='a b'"], "cluster.zone", ""),
    (["cluster.zone=[]"], "cluster.zone", ""),
    (["cluster.network='a b'"], "cluster.network", ""),
    (["cluster.subnetwork=projects/p/subnetworks/s"], "cluster.subnetwork", ""),
    (["cluster.env={PATH: /opt/bin}"], "cluster.env", ""),
    (["cluster.zone=us-east5"], "cluster.zone", "did you mean us-east5-"),
    (["cluster.zone=us-east-5b"], "cluster.zone", "did you mean us-east5-b?"),
    (["cluster.zone=us-eest5-b"], "cluster.zone", "did you mean us-east5-b? it is in us-"),
    (["cluster.capacity=spott"], "cluster.capacity", "did you mean spot?"),
    (["cluster.capacity=[spot,on_demand]"], "cluster.capacity", "did you mean on-demand?"),
    (["provider.kind=gogle"], "provider.kind", "did you mean google?"),
    (["mode.framework=jxa"], "mode.framework", "did you mean jax?"),
    (["mode.slices=2.0"], "mode.slices", ""),
    (["mode.slices=[1,2.0]"], "mode.slices", ""),
    (["retry.max_failures=1.0"], "retry.max_failures", ""),
    (["mode.probe_interval=0s", "mode.slices=[1,2]"], "mode.probe_interval", ""),
    (["retry.hang_timeout=0s"], "retry.hang_timeout", ""),
    (["sweep.budget.time=0s"], "sweep.budget.time", ""),
    (["cluster.join_timeout=0ms"], "cluster.join_timeout", ""),
    (["cluster.provision_timeout=0.0m"], "cluster.provision_timeout", ""),
    (["cluster.queue_timeout=0h"], "cluster.queue_timeout", ""),
    ([*QUEUED, "cluster.valid_until=0s"], "cluster.valid_until", ""),
    ([*QUEUED, "cluster.valid_until=2024-02-29T08:00:00Z"], "cluster.valid_until", ""),
    (
        ["retry.stop_exit_codes=[3,42]", "retry.restart_exit_codes=[42]"],
        "retry.stop_exit_codes",
        "retry.restart_exit_codes",
    ),
    (["cluster=v4-8", "cluster.zone=us-east5-b"], "cluster.zone", "it is in us-central2-b"),
    (["provider.rules=[{fault: premept}]"], "provider.rules.0.fault", "did you mean preempt?"),
    (["provider.rules=[{fault: preempt},{fault: kill-host}]"], "provider.rules.1.worker", ""),
    (["retry.hang_time=1h"], "retry.hang_time", ""),
    (["cluster.zone=[us-central2-b,us-west1-c]"], "cluster.zone", "it is in us-central1-b"),
    (["cluster.accelerator_type=[v6e-8,v6e-8]"], "cluster.accelerator_type", ""),
    (["cluster.capacity=[]"], "cluster.capacity", ""),
    (["cluster.capacity=flex-start"], "cluster.max_run_time", "at most 168h"),
    ([*FLEX, "cluster.max_run_time=169h"], "cluster.max_run_time", ""),
    ([*FLEX, "cluster.max_run_time=0s"], "cluster.max_run_time", ""),
    (["cluster.valid_until=10m", "cluster.capacity=spot"], "cluster.valid_until", "flex-start"),
    ([*QUEUED, "cluster.valid_after=2h"], "cluster.valid_after", "cluster.queue_timeout"),
    ([*QUEUED, f"cluster.valid_after={NOON}"], "cluster.valid_after", "cluster.queue_timeout"),
    (
        ["cluster.capacity=[queued-spot,queued-on-demand,spot]", "cluster.valid_after=30m"],
        "cluster.valid_after",
        "cluster.queue_timeout",
    ),
    (
        ["cluster.labels={" + ",".join(f"l{i}:x" for i in range(61)) + "}"],
        "cluster.labels",
        "leave 60",
    ),
    (
        ["cluster=v6e-8", f"cluster.data_disks=[{{source: {DISK}}},{{source: {DISK}}}]"],
        "cluster.data_disks.1.source",
        "",
    ),
    ([*QUEUED, "cluster.valid_until=2026-12-01"], "cluster.valid_until", ""),
    ([*QUEUED, "cluster.valid_until=2099-12-01T08:00:00"], "cluster.valid_until", ""),
    ([*QUEUED, "cluster.valid_until=2026-13-01T08:00:00Z"], "cluster.valid_until", ""),
    ([*QUEUED, "cluster.valid_after=10m", "cluster.valid_until=9m"], "cluster.valid_until", ""),
    (
        [*LONG, f"cluster.valid_after={NOON}", f"cluster.valid_until={NOON}"],
        "cluster.valid_until",
        "",
    ),
    (
        ["cluster.reservation=mine", "cluster.capacity=reserved"],
        "cluster.reservation",
        "a node that is created at once cannot name one",
    ),
    (
        ["cluster.reservation=projects/p/locations/z/reservations/mine", *RESERVED],
        "cluster.reservation",
        "such as mine",
    ),
    (["cluster.labels.Team=x"], "cluster.labels.Team", ""),
    (
        [f"cluster.data_disks=[{{source:{DISK}}}]", "cluster=v6e-16"],
        "cluster.data_disks.0.mode",
        "READ_ONLY",
    ),
    (
        [f"cluster.data_disks=[{{source:{DISK}}}]", "cluster=v6e-8", "mode.slices=2"],
        "cluster.data_disks.0.mode",
        "READ_ONLY",
    ),
    (
        [f"cluster.data_disks=[{{source:{DISK}}}]", "cluster=v4-8"],
        "cluster.data_disks.0.source",
        "set cluster.zone",
    ),
    ([f"cluster.startup=[{'x' * 270_000}]"], "cluster.startup", "a bucket of yours"),
    (["cluster.env.A='a\0b'"], "cluster.env.A", ""),
    (["cluster.coordinator=head"], "cluster.coordinator", ""),
    (["cluster.coordinator='http://u:p@h:8265'"], "cluster.coordinator", ""),
    (["mode.processes=chip"], "mode.processes", "mode=torch_xla"),
    (["mode.framework=tf"], "mode.framework", ""),
    (["cluster.coordinator=host0", "mode.slices=2"], "cluster.coordinator", "vm"),
    (["~cluster.vm.zone"], "cluster.vm.zone", ""),
    (["cluster.vm=null"], "cluster.vm", ""),
    (["workload.requirements=['jax==${oc.env:A_VERSION}']"], "workload.requirements.0", ""),
    (["provider=google"], "provider.project", "GOOGLE_CLOUD_PROJECT"),
    (
        ["provider=google", "provider.project=p1", "cluster.accelerator_type=tpu7x-16"],
        "cluster.accelerator_type",
        "cluster.runtime_version",
    ),
    (
        ["provider=google", "provider.project=p1", "provider.state_dir=x"],
        "provider.state_dir",
        "",
    ),
    (["workload=null"], "workload", "workload.script=…"),
    (["workload.script=train.py", "workload.module=x"], "workload.module", ""),
    (["workload.script=missing.py"], "workload.script", ""),
    (["workload.script=folder"], "workload.script", ""),
    (["workload.script=empty.py"], "workload.script", ""),
    (["workload.script=../other.py"], "workload.script", "workload.working_dir"),
    (["workload.working_dir=missing"], "workload.working_dir", ""),
    (["workload.module=a-b"], "workload.module", ""),
    (["workload.command=[]"], "workload.command", ""),
    (["workload.command=['']"], "workload.command", ""),
    (["workload.command='python x.py'"], "workload.command", ""),
    (["workload.command=[./train.py]"], "workload.command", "chmod +x"),
    (["workload.command=[./missing]"], "workload.command", ""),
    (["workload.command=[a,[b]]"], "workload.command.1", ""),
    (["workload.requirements=['ray==2.9.0']"], "workload.requirements.0", ""),
    (["mode.requirements=['jax[']"], "mode.requirements.0", ""),
    (["workload.requirements=['not a package!']"], "workload.requirements.0", ""),
]


@pytest.mark.parametrize(
    ("overrides", "key", "hint"), TABLE, ids=[str(row[0])[:80] for row in TABLE]
)
def test_one_wrong_thing_is_one_problem(
    tmp_path: Path,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    key: str,
    hint: str,
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setenv("A_VERSION", "0.10.2")
    write("empty.py", "")
    write("folder/x.py", "")
    write("../other.py", "print()")
    found = problems(tmp_path, *overrides)
    assert set(found) <= {key, *(["retry.backoff"] if "retry.backoff" in overrides[0] else [])}
    assert hint in found[key].hint
    assert found[key].where


# Many wrong things of one configuration, by what finds them: each is told, with its key and mend.
FORMS = {
    "cluster.accelerator_type=[v4-8,v6e_8]": {"cluster.accelerator_type.1": "did you mean v6e-8?"},
    "cluster.zone=[us-east5-b,us-east-5b]": {"cluster.zone.1": ""},
    "cluster.max_run_time=1h": {"cluster.max_run_time": ""},
    "cluster.valid_after=10m": {"cluster.valid_after": "queued-on-demand"},
    "cluster.reservation=mine": {"cluster.reservation": "queued-reserved"},
    "cluster.tags=[ssh,Team_A]": {"cluster.tags.1": "a-z"},
    "cluster.labels.launcher-run=x": {"cluster.labels.launcher-run": "does not begin"},
    "cluster.service_account=me": {"cluster.service_account": "iam.gserviceaccount.com"},
    "cluster.scopes=[cloud-platform]": {
        "cluster.scopes.0": "https://www.googleapis.com/auth/cloud-platform"
    },
    "cluster.data_disks=[{source:d,mode:READ_ONLY}]": {"cluster.data_disks.0.source": "ZONE"},
    "cluster.startup=[a,\"b\nc\",'d\0','${oc.env:HOME}']": {
        "cluster.startup.1": "one line each",
        "cluster.startup.2": "one line each",
        "cluster.startup.3": "workload.env",
    },
    "cluster.env.A-B=1": {"cluster.env.A-B": ""},
    "cluster.env.A='${oc.env:HOME}'": {"cluster.env.A": "workload.env"},
    "cluster.env.TPU_WORKER_ID=1": {"cluster.env.TPU_WORKER_ID": "workload.env"},
    "cluster.env.RAY_ADDRESS=1": {"cluster.env.RAY_ADDRESS": ""},
    "cluster.env.MEGASCALE_PORT=1": {"cluster.env.MEGASCALE_PORT": ""},
    "cluster.coordinator='10.0.0.2:99999'": {"cluster.coordinator": "65535"},
    "cluster.vm.name=Head": {"cluster.vm.name": "a-z"},
    "cluster.vm.zone=us-east5": {"cluster.vm.zone": ""},
    "cluster.vm.machine_type=big": {"cluster.vm.machine_type": "e2-standard-4"},
    "cluster.vm.image=ubuntu": {"cluster.vm.image": "projects/ubuntu-os-cloud"},
    "cluster.vm.service_account=me": {"cluster.vm.service_account": "gserviceaccount"},
}
KINDS = {
    "cluster.accelerator_type=[]": {"cluster.accelerator_type": ""},
    "cluster.capacity=[spot,cheap]": {"cluster.capacity": ""},
    "cluster.zone=[us-east5-b,us-east5-b]": {"cluster.zone": ""},
    "cluster.queue_timeout=null": {"cluster.queue_timeout": ""},
    "cluster.valid_until=tomorrow": {"cluster.valid_until": ""},
    "cluster.tags=[a,a]": {"cluster.tags": ""},
    "cluster.external_ips=maybe": {"cluster.external_ips": ""},
    f"cluster.data_disks=[d,{{mode:RW}},{{source:{DISK},mod:x}}]": {
        "cluster.data_disks.0": "",
        "cluster.data_disks.1.source": "",
        "cluster.data_disks.1.mode": "",
        "cluster.data_disks.2.mod": "did you mean mode?",
    },
    "cluster.startup=echo": {"cluster.startup": ""},
    "cluster.coordinator=there": {"cluster.coordinator": ""},
    "cluster.vm.disk=50": {"cluster.vm.disk": "did you mean disk_gb?"},
    "cluster.vm.disk_gb=9": {"cluster.vm.disk_gb": ""},
    "cluster.vm.on_down=keep": {"cluster.vm.on_down": ""},
}


@pytest.mark.parametrize("table", [FORMS, KINDS], ids=["forms", "kinds"])
def test_all_that_is_wrong_with_the_cluster_is_told(
    tmp_path: Path, table: dict[str, dict[str, str]]
) -> None:
    found = problems(tmp_path, *table)
    expected = {key: hint for keys in table.values() for key, hint in keys.items()}
    assert set(found) == set(expected)
    assert [key for key, hint in expected.items() if hint not in found[key].hint] == []
    wheres = {key: override for override, keys in table.items() for key in keys}
    assert {key: each.where for key, each in found.items()} == wheres


def test_why_a_ray_client_address_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "cluster.coordinator='ray://10.0.0.2:10001'").values()
    assert "submitted as a Ray job" in found.message


@pytest.mark.parametrize("word", ["foo", "-x", "=3", "", "实验"])
def test_what_is_no_override(tmp_path: Path, word: str) -> None:
    assert problems(tmp_path, word)["not an override"].where == word


FILES = [
    ("workload:\n  scrpt: x\n", "workload.scrpt", 3, "did you mean script?"),
    ("clutser: {spot: true}\n", "clutser", 2, "did you mean cluster?"),
    ("retry:\n\n  grace: 12:30\n", "retry.grace", 4, ""),
    ("name: 3.10\n", "name", 2, 'quote it: "3.10"'),
    ("name: ???\n", "name", 2, "give name=…"),
    ("name: ${nope.x}\n", "name", 2, ""),
    ("name: ${hydra:job.num}\n", "name", 2, ""),
    ("workload:\n  env:\n    on: 1\n", "workload.env.True", 3, "quote the key"),
    ("workload:\n  env:\n    A: [1]\n", "workload.env.A", 4, "quote"),
    ("workload:\n  script: gone.py\n", "workload.script", 3, ""),
    ("workload: [1]\n", "", None, ""),
    ("hydra: {swep: x}\n", "hydra.swep", 2, "did you mean sweep?"),
    ("defaults:\n  - optioal cluster@c2: v6e-16\n", "defaults", 3, "did you mean optional?"),
    ("defaults:\n  - override /cluster: v6e_32\n", "cluster", 3, "did you mean v6e-32?"),
    ("defaults:\n  - override /mode: jax\n  - /cluster: v4-8\n", "", None, "end of"),
    ("a: [\n", "", 3, ""),
    ("a: 1\na: 2\n", "", 3, ""),
]


@pytest.mark.parametrize(("text", "key", "line", "hint"), FILES, ids=[row[0] for row in FILES])
def test_a_wrong_file_is_told_with_its_line(
    tmp_path: Path, write: Write, text: str, key: str, line: int | None, hint: str
) -> None:
    write("conf/experiment/mine.yaml", GLOBAL + text)
    (found,) = problems(tmp_path, "experiment=mine").values()
    assert (found.key, hint in found.hint) == (key, True)
    assert found.where == "conf/experiment/mine.yaml" + (f":{line}" if line else "")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# mine\n# @package _global_\nkeep: true\n", 2),
        ("# yaml-language-server: $schema=x\n\n# @package _global_\nkeep: true\n", 3),
        ("keep: true\n", 1),
        ("# @package workload\nkeep: true\n", 1),
    ],
)
def test_the_header_of_an_experiment_comes_first(
    tmp_path: Path, write: Write, text: str, line: int
) -> None:
    write("conf/experiment/mine.yaml", text)
    found = problems(tmp_path, "experiment=mine")
    assert any(each.where == f"conf/experiment/mine.yaml:{line}" for each in found.values())
    assert len(found) == 1


def test_a_file_that_ours_hides_is_told(tmp_path: Path, write: Write) -> None:
    write("conf/cluster/v6e-16.yaml", "accelerator_type: v6e-16\nzone: us-east5-b\n")
    (found,) = problems(tmp_path, "cluster=v6e-16").values()
    assert found.where == "conf/cluster/v6e-16.yaml"


def test_not_utf8(tmp_path: Path, write: Write) -> None:
    write("conf/experiment/mine.yaml", "").write_bytes(b"# @package _global_\nname: \xff\n")
    (found,) = problems(tmp_path, "experiment=mine").values()
    assert found.where == "conf/experiment/mine.yaml"


def test_the_form_that_hydra_takes() -> None:
    typed = ["+cluster=v4-8", "workload.args.lr=1e-5,x", "+mode.slices=2", "~name", "hydra.a=1"]
    typed += ["workload.env.A=choice(3.10,true,yes,'a, b')", "workload.command=[run,3.10,null]"]
    assert as_hydra(typed) == [
        "cluster=v4-8",
        "++workload.args.lr='1e-5',x",
        "++mode.slices=2",
        "~name",
        "hydra.a=1",
        "++workload.env.A=choice('3.10','true',yes,'a, b')",
        "++workload.command=[run,'3.10',null]",
    ]


def test_each_value_of_a_sweep_is_in_a_trial_that_is_checked() -> None:
    typed = ["cluster=v4-8,v6e-8", "name=a", "workload.args.x=1e-5,2", "mode.slices=range(1,3)"]
    typed += ["workload.args.y=interval(0,1)", "workload=glob(*)"]
    first = ["cluster=v4-8", "name=a", "workload.args.x='1e-5'", "mode.slices=1"]
    assert check_points(typed) == [
        first,
        ["cluster=v6e-8", *first[1:]],
        [*first[:2], "workload.args.x='2'", "mode.slices=1"],
        [*first[:3], "mode.slices=2"],
    ]


def test_google_may_offer_a_zone_that_the_table_does_not_know(tmp_path: Path) -> None:
    google = ("provider=google", "provider.project=p1", "cluster=v4-8")
    made = spec(tmp_path, *google, "cluster.zone=us-east9-ai1b")
    assert made.cluster.offers[0].zone == "us-east9-ai1b"


def test_a_wrong_rule_of_a_file_is_told_with_its_line(tmp_path: Path, write: Write) -> None:
    text = "provider:\n  rules:\n    - fault: preempt\n    - fault: kill-host\n"
    write("conf/experiment/mine.yaml", GLOBAL + text)
    (found,) = problems(tmp_path, "experiment=mine").values()
    assert (found.key, found.where) == ("provider.rules.1.worker", "conf/experiment/mine.yaml:5")


def test_groups_of_hydra_are_for_hydra_to_judge(tmp_path: Path) -> None:
    assert spec(tmp_path, "hydra/launcher=basic")
    assert "no config hydra/launcher/nope" in problems(tmp_path, "hydra/launcher=nope")


def test_missing_config_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config folder"):
        spec(tmp_path, config_dirs=[Path("nope")])


def test_all_problems_at_once_and_soon(tmp_path: Path, write: Write) -> None:
    write(
        "conf/experiment/mine.yaml",
        f"{GLOBAL}workload:\n  scrpt: x\n  checkpoint_dir: ${{nope}}\n"
        "  env:\n    X: ${oc.env:NOT_SET_X}\n",
    )
    spec(tmp_path)  # imports
    started = time.process_time()
    found = problems(
        tmp_path,
        "experiment=mine",
        "cluster=v6e_16",
        "+clutser.spot=true",
        "mode.slices=???",
        "name=My_Run",
        "retry.grace=90",
        "x=a=b",
        "workload.script=gone.py",
        "oops",
    )
    assert time.process_time() - started < 1
    assert set(found) == {
        *("cluster", "clutser", "mode.slices", "name", "retry.grace", "x", "not an override"),
        *("workload.scrpt", "workload.checkpoint_dir", "workload.env.X", "workload.script"),
    }


@pytest.mark.parametrize(
    "override",
    [
        "name=${oc.env:A_TOKEN}",
        "cluster.accelerator_type=${oc.env:A_TOKEN}",
        "retry.grace=${oc.env:A_TOKEN}",
        "mode.slices=${oc.env:A_TOKEN}",
        "mode.slices=${oc.decode:${oc.env:A_TOKEN}}",
        "workload.script=${oc.env:A_TOKEN}",
        "workload.working_dir=${oc.env:A_TOKEN}",
        "workload.command=['${oc.env:A_TOKEN}']",
        "workload.args.x=${oc.env:A_TOKEN}",
        "cluster.labels.x=${oc.env:A_TOKEN}",
        "workload.requirements=['${oc.env:A_TOKEN}']",
        "cluster.zone=${oc.env:A_TOKEN}",
        "cluster.zone=[us-east5-b,'${oc.env:A_TOKEN}']",
        "cluster.accelerator_type=[v4-8,'${oc.env:A_TOKEN}']",
        "cluster.capacity=${oc.env:A_TOKEN}",
        "cluster.max_run_time=${oc.env:A_TOKEN}",
        "cluster.valid_until=${oc.env:A_TOKEN}",
        "cluster.tags=['${oc.env:A_TOKEN}']",
        "cluster.scopes=['${oc.env:A_TOKEN}']",
        "cluster.service_account=${oc.env:A_TOKEN}",
        "cluster.data_disks=[{source:'${oc.env:A_TOKEN}'}]",
        "cluster.startup=['${oc.env:A_TOKEN}']",
        "cluster.env.A=${oc.env:A_TOKEN}",
        "cluster.coordinator=${oc.env:A_TOKEN}",
        "cluster.vm.name=${oc.env:A_TOKEN}",
        "cluster.vm.image=${oc.env:A_TOKEN}",
        "provider.rules=[{fault:'${oc.env:A_TOKEN}'}]",
        "provider.rules=[{fault:kill-host,worker:'${oc.env:A_TOKEN}'}]",
    ],
)
def test_no_problem_shows_what_a_variable_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setenv("A_TOKEN", "CANARY ${")
    found = problems(tmp_path, override)
    assert "canary" not in " ".join(map(str, found.values())).lower()


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[a-z.+~]{1,12}=[^\n]{0,12}")))
def test_no_override_ends_in_a_traceback(tmp_path: Path, override: str) -> None:
    with suppress(ConfigError):
        spec(tmp_path, override)


def test_the_config_is_the_one_that_hydra_composes(tmp_path: Path, write: Write) -> None:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from launcher.compose import CONF

    write("conf/workload/part.yaml", "env: {A: '1', B: '2'}\ninclude: [a]\n")
    write("conf/workload/whole.yaml", "defaults: [part]\nmodule: x\nenv: {B: '3'}\ninclude: [b]\n")
    write(
        "conf/experiment/e.yaml",
        f"{GLOBAL}defaults:\n  - /workload@workload: part\n  - _self_\n"
        "  - override /workload: whole\n  - override /cluster: v4-8\n"
        "workload: {env: {C: '4'}}\nretry: {grace: 5s}\n",
    )
    words = [f"hydra.searchpath=['file://{tmp_path}/conf']", "experiment=e", "mode.slices=2"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        made = spec(tmp_path, *words[1:])  # as in a trial of a multirun
        expected = OmegaConf.to_container(hydra_compose("config", words))
    assert made.config == expected
