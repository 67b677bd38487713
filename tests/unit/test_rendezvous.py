"""How processes find each other: what a plan and an attempt tell each of them, together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher import accelerators
from launcher.compose import compose
from launcher.config.notes import PER_PROCESS
from launcher.hosts.ahead import is_later
from launcher.hosts.member import Place
from launcher.plan import Process, plan_processes
from launcher.ranks import megascale
from launcher.ranks.rendezvous import Meeting, ports_of_host

SMALL = [name for name in accelerators.all_types() if accelerators.lookup(name).hosts <= 64]


def planned(tmp_path: Path, *words: str) -> list[Process]:
    spec = compose([*words, "name=t"], cwd=tmp_path)
    return plan_processes(spec, spec.cluster.offers[0], spec.mode.slices)


def meeting(processes: Sequence[Process], first: int = 12_000, network: int = 10) -> Meeting:
    """Hosts with addresses and ports of their own, in an order of no use."""
    places: list[Place] = sorted({process.place for process in processes}, reverse=True)
    count = ports_of_host(max(process.index for process in processes) + 1)
    fresh = itertools.count(first)
    ports = {place: list(itertools.islice(fresh, count)) for place in places}
    addresses = {place: f"{network}.0.{place[0]}.{place[1] + 1}" for place in places}
    return Meeting(addresses, ports, {place: f"n-s{place[0]}" for place in places})


def told(processes: Sequence[Process]) -> list[dict[str, str]]:
    meet = meeting(processes)
    return [{**meet.env(process), **process.env} for process in processes]


@pytest.mark.parametrize("mode", ["jax", "torch_xla", "multislice"])
def test_what_is_new_in_an_attempt_keeps_no_standby_away(tmp_path: Path, mode: str) -> None:
    """Another attempt, and another trial in its place."""
    processes = planned(tmp_path, "cluster=v4-16", f"mode={mode}")
    one, other = meeting(processes), meeting(processes, 13_000, 11)
    for process in processes:
        before, after = one.env(process), other.env(process)
        assert before.keys() == after.keys()
        assert all(is_later(name) for name in before if before[name] != after[name])


@pytest.mark.parametrize("name", SMALL)
def test_ranks_follow_slice_host_and_chip_on_every_type(tmp_path: Path, name: str) -> None:
    words = (f"cluster.accelerator_type={name}", "mode=torch_xla")
    processes = planned(tmp_path, *words)
    envs = told(processes)
    assert [(p.slice, p.host, p.index) for p in processes] == sorted(
        (p.slice, p.host, p.index) for p in processes
    )
    for rank, env in enumerate(envs):
        assert env["RANK"] == env["LAUNCHER_PROCESS_ID"] == env["CLOUD_TPU_TASK_ID"] == str(rank)
        assert env["WORLD_SIZE"] == env["LAUNCHER_NUM_PROCESSES"] == str(len(envs))
        listed = env["TPU_PROCESS_ADDRESSES"].split(",")
        assert len(listed) == len(set(listed)) == len(envs)
        assert listed[rank].rpartition(":")[2] == env["TPU_PROCESS_PORT"]
    assert len({env["MASTER_ADDR"] + env["MASTER_PORT"] for env in envs}) == 1


def test_v5p_16_is_two_hosts_of_four_chips(tmp_path: Path) -> None:
    envs = told(planned(tmp_path, "cluster=v5p-16", "mode=torch_xla"))
    assert [(env["LAUNCHER_HOST"], env["TPU_VISIBLE_CHIPS"]) for env in envs] == [
        (host, chip) for host in "01" for chip in "0123"
    ]
    assert {env["TPU_PROCESS_BOUNDS"] for env in envs} == {"2,2,2"}
    last = envs[-1]
    hosts = [address.partition(":")[0] for address in last["TPU_PROCESS_ADDRESSES"].split(",")]
    assert hosts == ["10.0.0.1"] * 4 + ["10.0.0.2"] * 4
    assert (last["LOCAL_RANK"], last["LOCAL_WORLD_SIZE"]) == ("3", "4")
    assert (last["PJRT_LOCAL_PROCESS_RANK"], last["PJRT_LOCAL_PROCESS_COUNT"]) == ("3", "4")
    assert last["MEGASCALE_COORDINATOR_ADDRESS"] == ""


def test_slices_meet_at_the_first_process_and_each_process_has_a_port(tmp_path: Path) -> None:
    processes = planned(tmp_path, "cluster=v5p-8", "mode=torch_xla", "mode.slices=2")
    envs = told(processes)
    (coordinator,) = {env["MEGASCALE_COORDINATOR_ADDRESS"] for env in envs}
    assert coordinator == f"10.0.0.1:{envs[0]['MEGASCALE_PORT']}"
    assert [env["MEGASCALE_SLICE_ID"] for env in envs] == ["0"] * 4 + ["1"] * 4
    assert [env["CLOUD_TPU_TASK_ID"] for env in envs] == list("0123") * 2
    assert [env["RANK"] for env in envs] == list("01234567")
    ports = [env[name] for env in envs for name in ("MEGASCALE_PORT", "TPU_PROCESS_PORT")]
    assert len({*ports, envs[0]["MASTER_PORT"], envs[0]["JAX_COORDINATOR_PORT"]}) == 18


def test_hosts_of_two_slices_meet_as_chips_do(tmp_path: Path) -> None:
    envs = told(planned(tmp_path, "cluster=v5p-16", "mode=multislice"))
    (coordinator,) = {env["MEGASCALE_COORDINATOR_ADDRESS"] for env in envs}
    assert coordinator == f"10.0.0.1:{envs[0]['MEGASCALE_PORT']}"
    assert [env["MEGASCALE_SLICE_ID"] for env in envs] == list("0011")
    assert [env["LAUNCHER_SLICE_NAME"] for env in envs] == ["n-s0", "n-s0", "n-s1", "n-s1"]
    assert {env["MEGASCALE_NUM_SLICES"] for env in envs} == {"2"}
    assert len({env["MEGASCALE_PORT"] for env in envs}) == 4
    assert envs[2]["TPU_WORKER_HOSTNAMES"] == "10.0.1.1,10.0.1.2"


def test_one_slice_has_every_key_empty(tmp_path: Path) -> None:
    """JAX asks a metadata server for what is absent, and that may be stale."""
    for env in told(planned(tmp_path, "cluster=v5p-16", "mode=jax")):
        assert {env[key] for key in megascale.KEYS} == {""}


@pytest.mark.parametrize("mode", ["mode=jax", "mode.processes=host"])
def test_a_process_with_all_chips_of_its_host_is_told_nothing_of_chips(
    tmp_path: Path, mode: str
) -> None:
    words = ["cluster=v5p-16", "mode=torch_xla", mode]
    envs = told(planned(tmp_path, *words))
    assert len(envs) == 2
    foreign = ("TPU_PROCESS", "TPU_VISIBLE", "TPU_CHIPS", "CLOUD_TPU", "PJRT_", "TORCHELASTIC")
    assert not [name for env in envs for name in env if name.startswith(foreign)]
    assert "RANK" not in envs[0]
    assert {env["TPU_WORKER_HOSTNAMES"] for env in envs} == {"10.0.0.1,10.0.0.2"}
    assert {env["MASTER_ADDR"] for env in envs} == {"10.0.0.1"}


def test_a_variable_of_the_user_counts_more(tmp_path: Path) -> None:
    words = ["cluster=v6e-1", "mode=torch_xla", "workload.env.TPU_PROCESS_PORT=1"]
    (env,) = told(planned(tmp_path, *words))
    assert env["TPU_PROCESS_PORT"] == "1"


def test_a_value_for_all_in_place_of_each_process_own_is_noted(tmp_path: Path) -> None:
    first, second, *_ = told(planned(tmp_path, "cluster=v5p-8", "mode=torch_xla"))
    differ = {name for name in first if first[name] != second[name]}
    assert {name for name in differ if not name.startswith(("LAUNCHER_", "MEGASCALE_"))} == {
        *PER_PROCESS
    }
    words = ["cluster=v5p-8", *(f"workload.env.{name}=0" for name in PER_PROCESS)]
    noted = compose([*words, "mode=torch_xla"], cwd=tmp_path).notes
    assert [note.partition(":")[0] for note in noted] == [f"workload.env.{n}" for n in PER_PROCESS]
    assert not compose([*words, "mode=jax"], cwd=tmp_path).notes


@pytest.mark.parametrize(
    ("word", "noted"),
    [
        ("mode.processes=chip", True),
        ("mode.processes=host", False),
        ("cluster=v6e-1", False),
        ("provider=google", False),
        ("workload.script=plain.py", False),
    ],
)
def test_what_joins_by_xla_on_emulated_chips_is_noted(
    tmp_path: Path, word: str, noted: bool
) -> None:
    (tmp_path / "train.py").write_text('dist.init_process_group("xla", init_method="xla://")\n')
    (tmp_path / "plain.py").write_text("import xla_group\n")
    words = ["cluster=v5p-8", "mode=torch_xla", "workload.script=train.py", word]
    words += ["provider.project=my-project"] * word.startswith("provider")
    notes = compose(words, cwd=tmp_path).notes
    assert any("train.py" in note and "xla_group" in note for note in notes) is noted
