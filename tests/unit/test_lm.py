"""The parts of the workload `lm`: its text, its arguments, its mesh, and the sizes that ship."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.compose import CONF, WORKLOADS

sys.path.insert(0, str(WORKLOADS))

import checkpoints
import device_mesh
import lm
import lm_model
import lm_text
import resumable

TEXT = np.frombuffer(bytes(range(256)) * 8, np.uint8)
V5P_BYTES = 95 * 2**30  # https://cloud.google.com/tpu/docs/v5p: HBM of a chip


def test_the_text_is_the_standard_library_and_always_the_same() -> None:
    corpus, again = lm_text.load(), lm_text.load()
    assert corpus.digest == again.digest
    assert len(corpus.train) > 5 * len(corpus.validation) > 100_000
    assert b"class ArgumentParser" in corpus.train.tobytes() + corpus.validation.tobytes()


def test_the_text_does_not_depend_on_what_is_installed_or_built(tmp_path: Path) -> None:
    for index in range(25):
        (tmp_path / f"m{index:02}.py").write_text(f"x = {index}\n")
    before = lm_text.load(tmp_path)
    for name in ("site-packages/a.py", "test/b.py", "_sysconfigdata_x.py", "json/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("y = 1\n")
    assert lm_text.load(tmp_path).digest == before.digest
    (tmp_path / "m07.py").write_text("x = 8\n")
    assert lm_text.load(tmp_path).digest != before.digest


@given(st.integers(0, 9), st.integers(0, 2**31), st.sets(st.integers(0, 7), min_size=1))
def test_a_process_makes_its_rows_of_the_one_batch(seed: int, step: int, wanted: set[int]) -> None:
    whole = lm_text.rows(TEXT, (seed, step), 8, 16, range(8))
    mine = lm_text.rows(TEXT, (seed, step), 8, 16, sorted(wanted))
    assert whole.shape == (8, 17)
    assert np.array_equal(whole[sorted(wanted)], mine)
    assert all(np.array_equal(np.diff(row), np.ones(16)) for row in whole)


def test_batches_differ_by_step_and_seed_and_reach_both_ends() -> None:
    batches = [lm_text.rows(TEXT, key, 64, 16, range(64)).tobytes() for key in ((0, 1), (0, 2))]
    assert len({*batches, lm_text.rows(TEXT, (1, 1), 64, 16, range(64)).tobytes()}) == 3
    rows = lm_text.rows(np.arange(20, dtype=np.uint8), (0, 0), 64, 16, range(64))
    assert (rows.min(), rows.max()) == (0, 19)
    with pytest.raises(ValueError, match="too short for --sequence=19"):
        lm_text.rows(np.arange(20, dtype=np.uint8), (0, 0), 4, 19, range(4))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--heads=5"], "--width=64 must be even for each of 5 heads"),
        (["--model_parallel=8"], "--heads=4 do not divide by 8 chips"),
        (["--keep=0"], "--keep must be at least 1, not 0"),
        (["--save_interval=-1"], "--save_interval must be at least 0, not -1"),
    ],
)
def test_wrong_arguments_are_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        lm.parse(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@dataclass(frozen=True)
class Chip:
    slice_index: int
    process_index: int
    id: int


def chips(slices: int, hosts: int, each: int) -> list[Chip]:
    """In an order of no use: by chip, then host, then slice."""
    return [
        Chip(s, s * hosts + h, (s * hosts + h) * each + i)
        for i in range(each)
        for h in range(hosts)
        for s in range(slices)
    ]


@pytest.mark.parametrize("model", [1, 2, 4, 8])
def test_a_layer_is_shared_inside_a_host_or_else_inside_a_slice(model: int) -> None:
    rows = device_mesh.arrange(chips(2, 2, 4), model)
    assert [chip.id for row in rows for chip in row] == list(range(16))
    for row in rows:
        assert len({chip.slice_index for chip in row}) == 1
        assert len({chip.process_index for chip in row}) == max(1, model // 4)


@pytest.mark.parametrize(
    ("model", "said"), [(3, "does not fit hosts of 4 chips"), (16, "the chips of a slice")]
)
def test_a_layer_that_cannot_be_shared_so(model: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        device_mesh.arrange(chips(2, 2, 4), model)


@pytest.mark.parametrize(
    ("seen", "agreed"),
    [
        ([[30, 20, 10], [30, 20, 10]], [30, 20, 10]),
        ([[30, 20, -1], [20, 10, -1]], [20]),
        ([[10, -1], [-1, -1]], []),
    ],
)
def test_processes_agree_on_what_all_of_them_see(seen: list[list[int]], agreed: list[int]) -> None:
    assert checkpoints.common(np.array(seen)) == agreed


@pytest.mark.parametrize(
    ("name", "parameters", "model"),
    [("lm", 115_008, 1), ("lm_125m", 127_627_008, 1), ("lm_1b", 1_007_241_216, 4)],
)
def test_the_sizes_that_ship_fit_eight_chips_of_v5p(name: str, parameters: int, model: int) -> None:
    """Traced and lowered for TPUs; nothing of that size is computed here."""
    import jax

    arguments = lm.parse([f"--{key}={value}" for key, value in shipped(name).items()])
    mesh: Any = jax.sharding.AbstractMesh((8 // model, model), ("data", "model"))
    optimizer = lm_model.adamw(arguments.steps, arguments.lr, arguments.warmup)
    trainer = lm_model.Trainer(lm.sizes(arguments), optimizer, mesh)
    state = trainer.abstract_state()
    assert sum(leaf.size for leaf in jax.tree.leaves(state["params"])) == parameters
    # Of float32: the parameter and two moments. What the model axis splits is most of them.
    held = lm_model.bytes_per_chip(state)
    assert 12 * parameters / model <= held <= 12.1 * parameters / model + 2**20
    assert held < V5P_BYTES / 4
    batch = trainer.abstract_batch(arguments.batch, arguments.sequence)
    lowered = jax.jit(trainer.step).trace(state, batch).lower(lowering_platforms=("tpu",))
    rows = arguments.batch // (8 // model)
    assert f"tensor<{rows}x{arguments.sequence + 1}xui8>" in lowered.as_text()


def shipped(name: str) -> dict[str, Any]:
    content = yaml.safe_load((CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(content["args"])


@pytest.mark.parametrize(
    ("processes", "platform", "keeps"), [(1, "cpu", True), (2, "cpu", False), (2, "tpu", True)]
)
def test_what_is_compiled_is_kept_where_all_processes_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, platform: str, keeps: bool
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        resumable.keep_compiled(str(tmp_path))
        kept = jax.config.values["jax_compilation_cache_dir"] == f"{tmp_path}/compiled"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    assert kept is keeps
