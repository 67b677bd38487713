"""Ray jobs through the dashboard of a cluster: submit, look, follow, stop.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/sdk.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tenacity

from launcher.errors import ClusterError

ENTRYPOINT = 'exec "${LAUNCHER_PYTHON:-python3}" -m launcher.remote.entry'
SUBMIT_SECONDS = 120.0  # the head's agent, which takes jobs, comes up after the dashboard
CALL_SECONDS = 60.0  # for an answer
TRANSFER_SECONDS = 600.0  # for a package, or a whole log
SILENT_SECONDS = 30.0  # without news a look shows whether the job is still there
ENDED = ("STOPPED", "SUCCEEDED", "FAILED")

CHATTER = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")

Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Where a cluster takes jobs: a URL that this machine can reach, and the cluster's token."""

    url: str
    token: str | None


@dataclass(frozen=True, slots=True)
class State:
    """Ray's word for where a job stands, and what it has to say about it."""

    status: str
    message: str

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@contextlib.contextmanager
def without_ray_variables() -> Iterator[None]:
    """Inherited ones would lead Ray's client to another cluster, or log in there."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    for name in kept:
        del os.environ[name]
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of the client: it is given the header itself
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_MODE"]
        os.environ.update(kept)


def answered(call: Callable[[], Any], seconds: float) -> Any:
    """What a call of Ray's client gives; it has no time-out of its own. Raises TimeoutError."""
    answer: Future[Any] = Future()

    def wait() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    done, _ = futures.wait([answer], seconds)
    if not done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


class Jobs:
    """The jobs of one cluster. Raises ClusterError when it does not answer."""

    def __init__(self, dashboard: Dashboard) -> None:
        from ray.job_submission import JobSubmissionClient

        for name in ("ray", *CHATTER):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._url = dashboard.url
        headers = {"Authorization": f"Bearer {dashboard.token}"} if dashboard.token else {}
        with self._told(), without_ray_variables():
            self._client: Any = answered(
                lambda: JobSubmissionClient(dashboard.url, headers=headers), CALL_SECONDS
            )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            hint = "give it the cluster's token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            raise ClusterError(f"the Ray dashboard at {self._url} wants a token: {hint}") from error
        except ConnectionError as error:
            hint = "its address is the one that `up` and `status NAME` tell"
            raise ClusterError(f"no Ray dashboard answers at {self._url}; {hint}") from error
        except (RuntimeError, OSError, requests.RequestException) as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise ClusterError(f"the Ray dashboard at {self._url}: {text[0][:500]}") from error

    def submit(self, job: str, package: Path, env: Mapping[str, str], pause: Pause) -> None:
        """Idempotent by the job's id: a lost answer does no harm."""
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ClusterError),
            wait=tenacity.wait_exponential(multiplier=0.5, max=5),
            stop=tenacity.stop_after_delay(SUBMIT_SECONDS),
            sleep=pause,
            reraise=True,
        )
        attempts(self._submit, job, package, env)

    def _submit(self, job: str, package: Path, env: Mapping[str, str]) -> None:
        if self.state(job) is not None:
            return
        with self._told():
            answered(
                lambda: self._client.submit_job(
                    entrypoint=ENTRYPOINT,
                    submission_id=job,
                    runtime_env={"working_dir": str(package), "env_vars": dict(env)},
                    metadata={"launcher": job},
                ),
                TRANSFER_SECONDS,
            )

    def state(self, job: str) -> State | None:
        """None when the cluster knows of no such job."""
        with self._told():
            try:
                info = answered(lambda: self._client.get_job_info(job), CALL_SECONDS)
            except RuntimeError as error:
                if "status code 404" in str(error):
                    return None
                raise
        return State(str(info.status.value), info.message or "")

    def stop(self, job: str) -> None:
        """Ask the job to leave; it gets SIGTERM."""
        with self._told():
            answered(lambda: self._client.stop_job(job), CALL_SECONDS)

    def log(self, job: str) -> str:
        """All that it has said so far."""
        with self._told():
            return str(answered(lambda: self._client.get_job_logs(job), TRANSFER_SECONDS))

    def tail(self, job: str, pause: Pause) -> Iterator[str]:
        """What it says from the beginning on, in pieces, until the connection ends for any reason.

        `pause` is called all the while, and may raise to end it.
        """
        heard: queue.Queue[str | None] = queue.Queue(1000)
        listener = threading.Thread(target=self._listen, args=(job, heard), daemon=True)
        listener.start()
        last = time.monotonic()
        while True:
            try:
                text = heard.get(timeout=0.05)
            except queue.Empty:
                pause(0)
                if time.monotonic() - last > SILENT_SECONDS:
                    last = time.monotonic()
                    if (state := self.state(job)) is None or state.ended:
                        return
                continue
            if text is None:
                return
            last = time.monotonic()
            yield text

    def _listen(self, job: str, heard: queue.Queue[str | None]) -> None:
        async def listen() -> None:
            async for text in self._client.tail_job_logs(job):
                heard.put(text)

        with contextlib.suppress(Exception):  # whatever it is, a look at the job tells more
            asyncio.run(listen())
        heard.put(None)
