"""The calls of the API grow with slices, not with hosts."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from pathlib import Path

from launcher.accelerators import lookup
from launcher.emulator import client as emulator
from launcher.errors import ClusterError
from tests.contract.launching import Act, main

# Looks follow time: each of these times ends midway between two looks, on a busy machine as well.
RULES = "{fault: never-boots}, {fault: slow-create, seconds: 4s}, {fault: slow-delete, seconds: 2s}"
TIMES = (f"provider.rules=[{RULES}]", "cluster.join_timeout=6s")
FEW, MANY = "v4-8", "v4-2048"


def launch(accelerator_type: str, state_dir: Path) -> Act:
    """A run whose hosts are waited for in vain."""
    where = f"provider.state_dir={state_dir}"
    words = (f"cluster.accelerator_type={accelerator_type}", "name=calls", where, *TIMES)
    return Act("launch", words, accelerator_type, "calls", joins=False, hurried=False)


def test_a_slice_of_many_hosts_takes_no_more_calls_than_one_of_a_single_host(
    tmp_path: Path,
) -> None:
    assert (lookup(FEW).hosts, lookup(MANY).hosts) == (1, 256)
    spawn, endpoints, launchers = multiprocessing.get_context("forkserver"), [], []
    with ExitStack() as emulators:
        for each in (FEW, MANY):
            (tmp_path / each).mkdir()
            state = tmp_path / each / "emulator"
            endpoint = emulators.enter_context(emulator.connect(state)).endpoint
            act = launch(each, state)
            launchers.append(spawn.Process(target=main, args=(act, str(tmp_path), endpoint)))
            endpoints.append(endpoint)
        for launcher in launchers:
            launcher.start()
        for launcher in launchers:
            launcher.join(60)
        few, many = (emulator.control(e, {"command": "ledger"}) for e in endpoints)
    screens = [(tmp_path / each / "screens").read_text() for each in (FEW, MANY)]
    assert [launcher.exitcode for launcher in launchers] == [ClusterError.exit_code] * 2, screens
    assert few["calls"] == many["calls"], screens
    assert few["calls"]["CreateNode"] == 1
    assert few["calls"]["GetNode"] > 10
    assert few["left"] == many["left"] == []
