"""What makes one program of several slices: the MEGASCALE_* variables, made anew for each attempt.

libtpu and JAX read them from the environment, and from the metadata where the environment has none.
Nothing found on a host is used: metadata can be of another job, or of a slice that was replaced
(ray-project/ray#62893). Of what is read, one thing is checked: slices that were asked for together,
as one queued resource, say how many they are and which is which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.cluster import Host
from launcher.hosts.member import Place

COUNT, INDEX = "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"
COORDINATOR, PORT = "MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT"
KEYS = (COORDINATOR, COUNT, INDEX, PORT)


def contradictions(
    hosts: Mapping[Place, Host], says: Mapping[Place, Mapping[str, str]]
) -> Sequence[str]:
    """Where a host's own metadata says otherwise than the launcher; `says` may lack any key."""
    count = len({slice_ for slice_, _ in hosts})
    return [
        f"s{place[0]} h{place[1]} ({hosts[place].node}): its metadata says {key}={found},"
        f" the launcher {wanted}"
        for place in sorted(hosts)
        for key, wanted in ((COUNT, str(count)), (INDEX, str(place[0])))
        if (found := says[place].get(key, "")) not in ("", wanted)
    ]
