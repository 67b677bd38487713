"""What the metadata server says of this TPU VM. Runs on a host.

The attribute tpu-env has lines `KEY: 'value'`, recorded from real VMs
(https://cloud.google.com/tpu/docs/managing-tpus-tpu-vm); a multislice request adds MEGASCALE_*.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping

ANSWER_SECONDS = 2.0


def read_tpu_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Every key of tpu-env; nothing where nobody answers, as on hosts that are no TPU VMs."""
    server = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{server}/computeMetadata/v1/instance/attributes/tpu-env"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as reply:
            text = reply.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return parse(text)


def parse(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}
