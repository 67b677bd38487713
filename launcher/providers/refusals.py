"""Why a create call came to nothing, in the server's words and with what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from launcher.errors import ProvisioningError, Reason, Refused
from launcher.providers.calls import TryAgain, code_of, not_logged_in
from launcher.providers.reasons import classify
from launcher.provisioning.requests import LABEL_OWNER, LABEL_RUN

if TYPE_CHECKING:
    from launcher.providers import Resource
    from launcher.provisioning.requests import Request


@contextlib.contextmanager
def told(request: Request) -> Iterator[None]:
    """Every error of the API as Refused, with its reason and the server's words."""
    try:
        yield
    except Refused:
        raise
    except TryAgain as error:
        away = isinstance(error.__cause__, exceptions.GoogleAPICallError)
        reason = Reason.INTERNAL if away else Reason.DEADLINE
        raise Refused(reason, f"{request.id}: gave up: {error}") from error
    except exceptions.GoogleAPICallError as error:
        raise refusal(request, error) from error
    except ProvisioningError as error:
        if not isinstance(error.__cause__, exceptions.GoogleAPICallError):
            raise
        raise refusal(request, error.__cause__) from error  # a look was refused
    except GoogleAuthError as error:
        raise ProvisioningError(not_logged_in(error)) from error


def refusal(
    request: Request, error: exceptions.GoogleAPICallError, *, outright: bool = False
) -> Refused:
    reason = classify(code_of(error), error.message)
    return Refused(reason, explain(request, error.message), outright=outright)


def explain(request: Request, message: str) -> str:
    """The server's words, after what was asked for and where."""
    wanted = f"{accelerator_type(request)} in {request.parent.split('/')[-1]}"
    return f"{request.id} ({wanted}): {message}"


def accelerator_type(request: Request) -> str:
    node = request.node
    return str(node.get("accelerator_type") or node.get("acceleratorType"))


def foreign(found: Resource, wanted: Mapping[str, str]) -> str:
    """Whose it is that has our name, and what to do."""
    owner = found.labels.get(LABEL_OWNER, "somebody who does not use launcher")
    run = found.labels.get(LABEL_RUN, "unknown")
    if same(found.labels, wanted, (LABEL_OWNER, LABEL_RUN)):
        return (
            f"{found.name} exists and belongs to the same run of yours on another machine, or with"
            " another $LAUNCHER_HOME: take it down there, or choose another name="
        )
    return f"{found.name} exists and belongs to {owner} (run {run}); choose another name="


def same(found: Mapping[str, str], wanted: Mapping[str, str], labels: Sequence[str]) -> bool:
    return all(found.get(label) == wanted.get(label) for label in labels)
