"""What becomes of a probe that fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.compose import compose
from launcher.coordinator import Head
from launcher.errors import ProvisioningError
from launcher.plan import make_plan
from launcher.provisioning.probe import Probe
from launcher.provisioning.provision import Joined
from launcher.provisioning.requests import Identity


@pytest.mark.parametrize(
    ("error", "is_ours"), [(ProvisioningError("no capacity"), False), (KeyError("ours"), True)]
)
def test_the_run_goes_on_whatever_it_is_and_a_fault_of_ours_is_shown(
    error: Exception,
    is_ours: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["name=t", "cluster=v4-16", "mode.slices=[1,2]", "mode.probe_interval=1h"]
    spec = compose(words, cwd=Path.cwd())
    plan = make_plan(spec, Identity("me", "0123456789ab", "some-project"))
    told: list[str] = []
    session: Any = SimpleNamespace(spec=spec, plan=plan, tell=lambda _, text: told.append(text))

    def ask(_: Probe) -> None:
        raise error

    monkeypatch.setattr(Probe, "_ask", ask)
    head = Head("h", "127.0.0.1", (1, 0), "/nowhere")
    probe = Probe(session, Joined(head, plan.choices[1], {}))
    monkeypatch.setattr(probe, "_due", SimpleNamespace(passed=True))
    assert probe.look() == ""
    probe.end()  # once it has failed
    assert probe.look() == ""
    assert told == [f"no larger number of slices: {error}"]
    assert ("Traceback" in capsys.readouterr().err) == is_ours
