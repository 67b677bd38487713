"""What the metadata server says of this TPU VM. Runs on a host.

The attribute tpu-env has lines `KEY: 'value'`, recorded from real VMs
(https://cloud.google.com/tpu/docs/managing-tpus-tpu-vm): NODE_ID is the node's id, WORKER_ID the
host's number in it. A multislice request adds MEGASCALE_*. Slices that are requests of their own
say how many they are in an attribute of the launcher's, in the same form.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping

ANSWER_SECONDS = 2.0
SLICES = "launcher-slices"  # the attribute of a slice that is a request of its own
NODE, WORKER = "NODE_ID", "WORKER_ID"


def numbering(slices: int, index: int) -> str:
    """The value of SLICES: how many slices a run has, and which of them this is."""
    return f"LAUNCHER_NUM_SLICES: '{slices}'\nLAUNCHER_SLICE: '{index}'\n"


def contradictions(
    told: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """What this host was told of itself, and what its metadata, if it has the key, says instead."""
    if not told:
        return {}
    says = {**parse(attribute("tpu-env", environment)), **parse(attribute(SLICES, environment))}
    found = {key: (value, says.get(key, "")) for key, value in told.items()}
    return {key: pair for key, pair in found.items() if pair[1] not in ("", pair[0])}


def attribute(name: str, environment: Mapping[str, str]) -> str:
    """Empty where nobody answers, as on hosts that are no TPU VMs, or it is not there."""
    server = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{server}/computeMetadata/v1/instance/attributes/{name}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as reply:
            return str(reply.read().decode(errors="replace"))
    except (OSError, ValueError, http.client.HTTPException):
        return ""


def parse(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}
