"""A supervisor is killed and another one attaches, through Ray itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.conftest import ROOT, Place

pytestmark = pytest.mark.e2e

HEAD = """
import json, ray, sys, time
context = ray.init(
    "local",
    num_cpus=1,
    include_dashboard=False,
    _temp_dir=sys.argv[1],
    _node_ip_address="127.0.0.9",
)
print(json.dumps(context.address_info["gcs_address"]), flush=True)
time.sleep(600)
"""
SUPERVISOR = """
import json, os, ray, sys
from pathlib import Path
from launcher import cluster
from launcher.attempts import fanout
from launcher.hosts.agent import Agent
from launcher.hosts.member import Member
from launcher.plan import Process

address, verb, log = sys.argv[1:]
ray.init(address, namespace="launcher", log_to_driver=False, _node_ip_address="127.0.0.9")
for module in cluster.ON_HOSTS:
    ray.cloudpickle.register_pickle_by_value(module)
options = {"name": "agent", "get_if_exists": True, "lifetime": "detached", "num_cpus": 0}
agent = ray.remote(Agent).options(**options).remote()
hosts = {(0, 0): cluster.Host(0, 0, "node", "127.0.0.9", "", "", agent)}
program = "for i in range(400): print(i, flush=True); __import__('time').sleep(0.01)"
process = Process(slice=0, host=0, index=0, rank=0, argv=(sys.executable, "-c", program), env={})
attempt = fanout.Attempt(0, "k" * 32, "c0de", [process], {}, 1.0, None, reattach=60.0)

class Sink:
    def output(self, member, chunk):
        with open(log, "ab") as file:
            file.write(chunk)
    def metrics(self, member, line): pass
    def ended(self, ending): pass
    def noticed(self, notice): pass
    def hung(self, hang): pass

common = {"sink": Sink(), "pause": lambda seconds: None}
if verb == "run":
    (Path.home() / ".launcher/code/c0de").mkdir(parents=True)
    report = fanout.run("127.0.0.9", hosts, attempt, **common)
else:
    offsets = {Member(0, 0): (os.path.getsize(log), 0)}
    report = fanout.attach("127.0.0.9", hosts, attempt, offsets=offsets, **common)
print(json.dumps([[e.code, e.collateral, e.tail[-4:]] for e in report.endings]))
ray.kill(agent)
"""
IMPATIENT = """
import ray, sys, time
from launcher import cluster
from launcher.attempts import fanout
from launcher.errors import Interrupted

ray.init(sys.argv[1], namespace="launcher", log_to_driver=False, _node_ip_address="127.0.0.9")

class Frozen:
    def hello(self):
        time.sleep(600)

hosts = {(0, 0): cluster.Host(0, 0, "node", "127.0.0.9", "", "", ray.remote(Frozen).remote())}

def pause(seconds):
    raise Interrupted("stopped by SIGINT")

try:
    fanout.ask(hosts, lambda host: host.agent.hello.remote(), pause)
except Interrupted as error:
    print(error, flush=True)
"""


@pytest.fixture
def address(place: Place) -> Iterator[str]:
    """Of a Ray head."""
    head = start(place, HEAD, str(place.temp))
    assert head.stdout
    try:
        yield json.loads(head.stdout.readline())
    finally:
        end(head)


def test_a_wish_to_stop_ends_the_wait_for_a_host_that_answers_nobody(
    place: Place, address: str
) -> None:
    asking = start(place, IMPATIENT, address)
    assert asking.stdout
    assert asking.stdout.readline() == b"stopped by SIGINT\n"
    asking.kill()
    asking.communicate()


def test_a_killed_supervisor_is_replaced_and_no_output_is_lost(place: Place, address: str) -> None:
    log = place.folder / "log"
    first = start(place, SUPERVISOR, address, "run", str(log))
    deadline = time.monotonic() + 90
    while not log.exists() or log.stat().st_size < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.communicate()
    second = start(place, SUPERVISOR, address, "attach", str(log))
    assert json.loads(second.communicate(timeout=120)[0]) == [[0, False, "399\n"]]
    assert log.read_text().split() == [str(i) for i in range(400)]


def start(place: Place, program: str, *words: str) -> subprocess.Popen[bytes]:
    env = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"HOME": str(place.home), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], env=env, stdout=subprocess.PIPE
    )


def end(head: subprocess.Popen[bytes]) -> None:
    below = psutil.Process(head.pid).children(recursive=True)
    head.send_signal(signal.SIGTERM)
    head.communicate()
    psutil.wait_procs(below, 10)
    for process in below:
        if process.is_running():
            process.kill()
    psutil.wait_procs(below, 10)  # the next head may want the same ports
