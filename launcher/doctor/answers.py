"""What it means when Google does not answer a question as asked."""

from __future__ import annotations

import re

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from launcher.doctor.findings import Finding, problem, warning

_API = re.compile(r"/apis?/(?:api/)?([a-z]+\.googleapis\.com)")
LOG_IN = "gcloud auth application-default login"


def finding_of(error: BaseException, project: str) -> Finding:
    """For an error of a check; what may not be read is not known, and no problem in itself."""
    words = " ".join(str(getattr(error, "message", "") or error).split())
    match error:
        case exceptions.Forbidden() if is_disabled(error):
            return problem(
                words.partition(" Enable it")[0], *enabling(_API.findall(words), project)
            )
        case exceptions.Forbidden():
            return warning(f"not known: {words}", "ask whoever administers the project")
        case exceptions.ServiceUnavailable() | exceptions.DeadlineExceeded():
            return problem(f"no answer: {words}", "look again; is there a network?")
        case GoogleAuthError():
            return problem(words, LOG_IN)
    return problem(f"could not be looked at: {type(error).__name__}: {words}")


def is_disabled(error: BaseException) -> bool:
    """Whether it is for an API that is not enabled."""
    return "it is disabled" in " ".join(str(error).split())


def enabling(services: list[str], project: str) -> list[str]:
    """The command that enables APIs, if there are any."""
    return [f"gcloud services enable {' '.join(services)} --project={project}"] if services else []
