"""What is raised when something cannot be deleted."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.errors import Interrupted, ProvisioningError
from launcher.provisioning import removal


class Failing:
    """Deletes what it has no error for, and notes every name."""

    def __init__(self, **errors: Exception) -> None:
        self._errors = errors
        self.tried: list[str] = []

    def delete(self, name: str, *_: Any) -> None:
        self.tried.append(name)
        if error := self._errors.get(name):
            raise error


def delete(provider: Any) -> None:
    removal.delete_all(provider, ["a", "b", "c"], {})


def test_every_failure_is_told_after_all_have_been_tried() -> None:
    provider = Failing(a=ProvisioningError("a stays"), b=ProvisioningError("b stays"))
    with pytest.raises(ProvisioningError, match=r"^a stays; b stays$"):
        delete(provider)
    assert sorted(provider.tried) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [KeyError("ours"), Interrupted("Ctrl-C")])
def test_what_is_no_failure_to_delete_is_raised_as_it_is(error: Exception) -> None:
    provider = Failing(a=ProvisioningError("a stays"), b=error)
    with pytest.raises(type(error)):
        delete(provider)
    assert sorted(provider.tried) == ["a", "b", "c"]
