"""Run one command on each of the four hosts of a running cluster: one Ray job per host.

python jobs.py DASHBOARD_ADDRESS COMMAND [ARGUMENT …]
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

from ray.job_submission import JobStatus, JobSubmissionClient

SECONDS = 60
ENDS_WELL, ENDS_BADLY = JobStatus.SUCCEEDED, (JobStatus.FAILED, JobStatus.STOPPED)


def run(address: str, command: Sequence[str]) -> None:
    """Print what the hosts print, each line with its host, until all have ended."""
    client = JobSubmissionClient(f"http://{address}")
    entrypoint = shlex.join(command)
    running = {
        client.submit_job(entrypoint=entrypoint, entrypoint_resources={"TPU": 4}): index
        for index in range(4)
    }
    deadline = time.monotonic() + SECONDS
    while running:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(running)} jobs did not end within {SECONDS} s")
        for job, index in list(running.items()):
            status = client.get_job_status(job)
            if status in ENDS_BADLY:
                raise SystemExit(client.get_job_info(job).message)
            if status == ENDS_WELL:
                print(f"[h{index}] {client.get_job_logs(job).strip()}", flush=True)
                del running[job]
        time.sleep(0.05)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
