"""Verbs, flags, exit codes, and Hydra's own flags, as a user meets them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton

from launcher.__main__ import USAGE, main
from launcher.compose import compose
from launcher.errors import ClusterError, ConfigError
from launcher.passthrough import through_hydra
from launcher.sweep import hydra_options
from launcher.verbs import VERBS, Arguments, find, take_apart

LAUNCHER = (sys.executable, "-m", "launcher")
BASIC = "hydra/launcher=basic"  # each trial is a run of its own


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's, with its own `LAUNCHER_HOME`; what Hydra leaves behind is undone."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["launcher"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.chdir(folder)
    state = deepcopy(Singleton.get_state())
    yield folder
    Singleton.set_state(state)


@pytest.fixture
def leave(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command line."""

    def leave(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(line.split())
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return leave


Leave = Callable[[str], tuple[int, str, str]]


@pytest.mark.usefixtures("here")
def test_a_hydra_that_has_looked_for_plugins_before_knows_ours() -> None:
    Plugins.instance().class_name_to_class.clear()
    hydra_options.register()
    known = Plugins.instance().class_name_to_class.keys()
    assert {node["_target_"] for node in hydra_options.OPTIONS.values()} <= known


def test_every_verb_is_there() -> None:
    assert all(callable(find(verb)) for verb in VERBS)
    assert all(verb in USAGE for verb in VERBS)


def test_its_version_is_that_of_the_package(leave: Leave) -> None:
    assert leave("--version") == (0, f"launcher {version('launcher')}\n", "")


def test_a_command_line_taken_apart() -> None:
    words = ["a=1", "--cfg", "job", "-m", "--config-dir=x", "b=2", "-cd", "y", "--info", "plugins"]
    assert take_apart("run", words) == Arguments(
        overrides=["a=1", "b=2"],
        config_dirs=[Path("x"), Path("y")],
        hydra=["--multirun", "--cfg=job", "--info=plugins"],
    )
    assert take_apart("logs", ["t1", "-f"]).flags == {"--follow"}
    assert take_apart("status", ["t1", "t2", "--json"]).names == ["t1", "t2"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan --yes --all", "plan does not take --yes --all"),
        ("plan --cfg job", "plan does not take --cfg"),
        ("plan --cfg=job -m", "the flags --json, --show-files"),
        ("plan -m a=1,2", "`launcher -m --cfg job …` prints each trial's configuration"),
        ("run --json", "run does not take --json"),
        ("up --yes", "up does not take --yes"),
        ("status --all", "status does not take --all"),
        ("-x", "run does not take -x"),
        ("--cfg nope", "invalid choice: 'nope'"),
        ("--config-dir", "expected one argument"),
        ("--config-dir nope", "no config folder"),
        ("down ../runs/x", "not the name of a run"),
        ("cancel T1", "not the name of a run"),
        ("status name=t1", "not the name of a run"),
        ("logs .", "not the name of a run"),
        ("plna cluster=v4-8", "did you mean plan?"),
        ("cluster=v4-8 plan", "the verb comes first"),
        ("run foo", "not an override (foo)"),
        ("nonsense", "`python -m launcher --help` lists the verbs"),
        ("--cfg job foo.bar=1", "foo: no such key (foo.bar=1)"),
        ("--cfg job cluster=v6e_16", "did you mean v6e-16?"),
        ("--info cluster=v4-8", "invalid choice"),
        ("--info config mode.slices=x", "mode.slices: must be a whole number"),
        ("-m cluster=v4-8,nope mode.slices=1,b", "no option 'nope'"),
        ("-m cluster=v4-8,nope mode.slices=1,b", "not 'b' (mode.slices=b)"),
        ("-m hydra/launcher=basic name=a workload.args.x=1,2", "several trials have the name a"),
        ("-m --cfg all workload.args.x=1,2", "-m does not go with --cfg=all"),
        ("-m name=a,b", "name: it says how trials are run"),
        ("-m sweep.per_trial={chips:3} workload.args.x=1,2", "cannot be shared out by 3 chips"),
        ("-m cluster.coordinator=vm workload.args.x=1,2", "hydra/launcher=basic"),
        ("-m sweep.metric=width workload.args.x=1,2", "sweep.mode=min, or max"),
        ("-m sweep.name=A workload.args.x=1,2", "for instance sweep.name=a"),
        ("-m workload.args.x=interval(0,1)", "workload.args.x: an interval has no grid"),
        ("-m sweep.params={x:interval(0,1)}", "quote each within it"),
        ("-m hydra/sweeper=tune sweep.params={x:interval(0,1)}", "quote each within it"),
        ("-m hydra/sweeper=tune mode.slices=[choice(1,2)]", "mode.slices: values of a sweep in"),
        ("sweep.params={x:glob(a*)}", "sweep.params: values of a sweep in a map or list"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(
    leave: Leave, here: Path, line: str, told: str
) -> None:
    code, out, err = leave(line)
    assert code == 2
    assert told in err
    assert out == ""
    assert "Traceback" not in err
    assert {path.name for path in here.iterdir()} == {"train.py"}


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("--help", "usage: python -m launcher"),
        ("plan cluster=v4-8 -h", "usage: python -m launcher"),
        ("--cfg job cluster=v4-8 --package cluster", "accelerator_type: v4-8"),
        ("--cfg job workload.script=not_yet.py", "not_yet.py"),
        ("--info defaults-tree", "workload: basic"),
        ("--config-dir=. --cfg job +workload.args.x=1e-5", "x: '1e-5'"),
    ],
)
def test_what_is_printed(here: Path, line: str, printed: str) -> None:
    ended = subprocess.run(
        [*LAUNCHER, *line.split()], capture_output=True, text=True, check=True, timeout=60
    )
    assert printed in ended.stdout
    assert ended.stderr == ""
    assert [path.name for path in here.iterdir()] == ["train.py"]


def test_trials_are_those_of_single_runs(here: Path) -> None:
    (here / "more" / "experiment").mkdir(parents=True)
    experiment = here / "more" / "experiment" / "foo.yaml"
    experiment.write_text("# @package _global_\nretry: {grace: 7s}\n")
    words = ["-m", BASIC, "--config-dir", "more", "experiment=foo"]
    words += ["workload.args.lr=1e-5,3.10,'a b'"]
    trials = []

    def run(arguments: Arguments) -> int:
        spec = compose(arguments.overrides, config_dirs=arguments.config_dirs, cwd=here)
        assert spec.workload is not None
        trials.append((dict(spec.workload.args), spec.retry.grace))
        return 0

    assert through_hydra(take_apart("run", words), run) == 0
    assert trials == [({"lr": lr}, 7) for lr in ("1e-5", "3.10", "a b")]
    assert {path.name for path in here.iterdir()} == {"more", "train.py"}


def test_the_configs_of_trials_are_shown(leave: Leave, here: Path) -> None:
    (here / "conf" / "experiment").mkdir(parents=True)
    (here / "conf" / "experiment" / "foo.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n"
        "  sweeper:\n    params:\n      mode.slices: 1,2\n"
    )
    code, out, _err = leave("--cfg job -m experiment=foo workload.args.x=1e-5,3.10")
    shown = list(yaml.safe_load_all(out))
    assert code == 0
    found = [(each["mode"]["slices"], each["workload"]["args"]["x"]) for each in shown]
    assert found == [(1, "1e-5"), (1, "3.10"), (2, "1e-5"), (2, "3.10")]
    assert {path.name for path in here.iterdir()} == {"train.py", "conf"}


@pytest.mark.parametrize("more", [[], ["hydra.sweeper.max_batch_size=1"]])
def test_a_failed_trial_stops_no_other(
    here: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    seen = []

    def run(arguments: Arguments) -> int:
        seen.append(arguments.overrides[0])
        match len(seen):
            case 2:
                raise ClusterError("no host joined")
            case 3:
                return 5
        return 0

    words = ["-m", BASIC, "workload.args.x=1,2,3,4", *more]
    assert through_hydra(take_apart("run", words), run) == ClusterError.exit_code
    assert seen == [f"++workload.args.x='{x}'" for x in (1, 2, 3, 4)]
    err = capsys.readouterr().err
    assert "no host joined" in err
    assert "2 of 4 trials failed" in err


def test_an_interrupted_trial_ends_the_multirun(here: Path) -> None:
    seen = []

    def run(arguments: Arguments) -> int:
        seen.append(arguments)
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="130"):
        through_hydra(take_apart("run", ["-m", BASIC, "workload.args.x=1,2"]), run)
    assert len(seen) == 1


def test_settings_of_a_sweeper_leave_the_checks_to_the_trials(here: Path) -> None:
    (here / "conf" / "experiment").mkdir(parents=True)
    (here / "conf" / "experiment" / "foo.yaml").write_text(
        "# @package _global_\nmode:\n  slices: ???\n"
        "hydra:\n  sweeper:\n    params:\n      mode.slices: 1,x\n"
    )
    slices = []

    def run(arguments: Arguments) -> int:
        slices.append(compose(arguments.overrides, cwd=here).mode.slices)
        return 0

    arguments = take_apart("run", ["-m", BASIC, "experiment=foo"])
    assert through_hydra(arguments, run) == ConfigError.exit_code
    assert slices == [1]


def test_without_room_for_the_run_folder_nothing_is_begun(here: Path) -> None:
    command = f"ulimit -f 0; exec {shlex.join([*LAUNCHER, 'workload.command=[ls]', 'name=none'])}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.returncode == ConfigError.exit_code
    told = f"the run folder {here / 'runs' / 'none'} cannot be written: File too large"
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        "launcher plan --json",
        "launcher --cfg job",
        "launcher --help",
        "launcher.emulator ledger",
    ],
)
def test_a_reader_that_leaves_is_no_error(here: Path, command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", *command.split()]
    ended = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")
