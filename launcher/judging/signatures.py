"""What a process's last lines say of its death: known texts, and what each of them means. Pure.

A gang dies together, so that the exit codes say little: when one JAX process raises, it waits at
exit for its peers and then aborts in the same instant as they do, all with SIGABRT (measured with
JAX 0.10.2). Only the texts tell the one that failed from those that it took along.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

TEXT_CHARS = 300
# Lines of the program after a traceback that say that it lived on.
HANDLED_LINES = 30
LAST_LINES = 60  # without a traceback, only these count: what was said long before did no harm


class Kind(enum.StrEnum):
    """What a text means. The first two speak of others (`PEER`), the rest of the process itself."""

    PEER_LOST = "peer lost"
    COORDINATION = "coordination service"
    NETWORK = "network"
    HOST_MEMORY = "out of memory (host)"
    HBM = "out of memory (HBM)"
    NO_SPACE = "no space"
    DEVICE_BUSY = "TPU busy"
    NO_DEVICE = "no TPU"
    IMPORT_ERROR = "import error"
    EXCEPTION = "exception"
    STOPPED = "stopped"


PEER = frozenset({Kind.PEER_LOST, Kind.COORDINATION})


@dataclass(frozen=True, slots=True)
class Signature:
    """A known text: what it means, the line itself, and where it is known from.

    `missed` are the process ids that the coordination service names as dead or late, `left` the one
    that was at its exit while the others still ran.
    """

    kind: Kind
    text: str
    source: str
    missed: tuple[int, ...] = ()
    left: int | None = None

    @property
    def of_peer(self) -> bool:
        """Whether it says that another process is the cause."""
        return self.kind in PEER


@dataclass(frozen=True, slots=True)
class Pattern:
    kind: Kind
    regex: re.Pattern[str]
    source: str


def _patterns(rows: Sequence[tuple[Kind, str, str]]) -> tuple[Pattern, ...]:
    return tuple(Pattern(kind, re.compile(regex), source) for kind, regex, source in rows)


# The first that fits decides, so that the more specific ones come first. "JAX 0.10.2", "CPython"
# and "PyTorch" are texts that the installed software prints or holds.
TABLE = _patterns(
    [
        (Kind.HBM, r"Ran out of memory in memory space (hbm|vmem)", "huggingface/diffusers#856"),
        (Kind.HBM, r"Attempting to (reserve|allocate) [\d.]+[KMG]", "pytorch/xla#1735"),
        (Kind.HBM, r"RESOURCE_EXHAUSTED: Out of memory", "JAX 0.10.2"),
        (Kind.HBM, r"Resource exhausted: .*hbm", "google/trax#270"),
        (Kind.NO_SPACE, r"No space left on device|\[Errno 28\]|Disk quota exceeded", "errno(3)"),
        (Kind.DEVICE_BUSY, r"TPU is already in use by (another )?process", "jax-ml/jax#13260"),
        (Kind.DEVICE_BUSY, r"libtpu\.so (is )?already in used? by another", "pytorch/xla#3214"),
        (Kind.DEVICE_BUSY, r"/dev/(vfio|accel)\S*: Device or resource busy", "google/gvisor#11545"),
        (Kind.DEVICE_BUSY, r"Couldn't open iommu group", "google/gvisor#11545"),
        (Kind.NETWORK, r"TPU initialization failed: Failed to connect to", "libtpu"),
        (Kind.NO_DEVICE, r"No accelerator found", "marin-community/marin#5753"),
        (Kind.NO_DEVICE, r"TPU initialization failed|Failed to initialize TPU", "pytorch/xla#7227"),
        (Kind.HOST_MEMORY, r"Out of memory: Killed process|oom-kill:|Memory cgroup out", "Linux"),
        (Kind.HOST_MEMORY, r"^MemoryError\b|Cannot allocate memory|std::bad_alloc", "CPython"),
        (Kind.HOST_MEMORY, r"DataLoader worker .*(signal: Killed|Bus error)", "PyTorch"),
        (Kind.COORDINATION, r"JAX distributed service detected fatal errors", "JAX 0.10.2"),
        (Kind.COORDINATION, r"Failed to send RPC to coordination service", "jax-ml/jax#19596"),
        (Kind.COORDINATION, r"heartbeat timeout\. This indicates that", "JAX 0.10.2"),
        (Kind.COORDINATION, r"unhealthy \(stopped sending heartbeats\)", "JAX 0.10.2"),
        (Kind.COORDINATION, r"(Shutdown b|B)arrier (has failed|failed because|timed out)", "JAX"),
        (Kind.COORDINATION, r"[Cc]oordination[ _]?[Ss]ervice.*(UNAVAILABLE|DEADLINE)", "JAX"),
        (Kind.COORDINATION, r"DEADLINE_EXCEEDED.*RegisterTask", "JAX 0.10.2"),
        (Kind.COORDINATION, r"CoordinationService/(PollForError|RegisterTask|Shutdown)", "JAX"),
        (Kind.COORDINATION, r"DEADLINE_EXCEEDED.*GetKeyValue\(\) timed out", "JAX 0.10.2"),
        (Kind.PEER_LOST, r"Gloo [\w-]+ failed: .*(Connection|Timed out|peer)", "JAX 0.10.2"),
        (Kind.PEER_LOST, r"\bgloo/transport/tcp\b.*(Connection|Timed out|closed)", "PyTorch"),
        (Kind.PEER_LOST, r"Connection was likely closed\. Did the remote server", "PyTorch"),
        (Kind.COORDINATION, r"DistStoreError: (Timed out|wait timeout) after", "PyTorch 2.9"),
        (Kind.COORDINATION, r"The client socket has timed out after .* to connect to", "PyTorch"),
        (Kind.PEER_LOST, r"grpc_message:\"Socket closed\"", "marin-community/marin#5747"),
        (Kind.PEER_LOST, r"\bSocket closed\b", "marin-community/marin#5753"),
        (Kind.PEER_LOST, r"Connection (closed|reset) by peer|Broken pipe", "errno(3)"),
        (Kind.NETWORK, r"Failed to fetch URL after \d+ tries", "jax-ml/jax#11668"),
        (Kind.NETWORK, r"failed to connect to all addresses|Connection refused", "gRPC"),
        (Kind.NETWORK, r"Temporary failure in name resolution|No route to host", "getaddrinfo(3)"),
        (Kind.NETWORK, r"Network is unreachable|Name or service not known", "errno(3)"),
        (Kind.IMPORT_ERROR, r"^(ModuleNotFoundError|ImportError|SyntaxError)\b", "CPython"),
        (Kind.IMPORT_ERROR, r"can't open file '.*': \[Errno 2\]|No module named", "CPython"),
        (Kind.STOPPED, r"^(KeyboardInterrupt|SystemExit)\b", "CPython"),
    ]
)

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_AT_EXIT = re.compile(r"Exception ignored in|Error in atexit|Exception in thread")
# The runtime's own log lines (glog, absl, TSL), which follow a fatal traceback.
_RUNTIME_LINE = re.compile(
    r"\[?[IWEF]\d{4} \d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IWEF] |\*\*\* |WARNING: All log"
)
# What PyTorch sets before the lines of an uncaught exception, once processes are a group.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# Gloo's greeting, of JAX and PyTorch alike, at a time when nothing is wrong.
_GREETING = re.compile(r"\[Gloo\] Rank \d+ is connected to ")
_FATAL_LINE = re.compile(r"F\d{4} \d\d:\d\d")
# What stands before the error itself: glog's prefix, and JAX's advice at an abort.
_PREFIX = re.compile(r"[IWEF]\d{4} \S+ +\d+ \S+\] (.*absl::Status: )?")
# Exceptions that a program expects; when another follows "during handling", that one matters.
_EXPECTED = re.compile(r"(KeyError|AttributeError|ImportError|ModuleNotFoundError|LookupError)\b")
_LATE = re.compile(r"timed out task names:\n((?:\S*\d+\n)+)|sending heartbeats\):\n((?:\S*\d+\n)+)")
_DEAD = re.compile(r"\b[Tt]ask:? (\d+)\b heartbeat timeout")
_FIRST_AT_EXIT = re.compile(r"Id: Shutdown::(?:.|\n)*?first task at the barrier: \S*?(\d+)\.")


def find(tail: str) -> Signature | None:
    """What the last lines of a process's output mean; None when they say nothing known.

    The exception that ended the program counts before what the runtime logs afterwards, and the
    first cause of a chain of exceptions before the later ones.
    """
    lines = [_RANK.sub("", line) for line in tail.splitlines()]
    for chain in reversed(list(_chains(lines))):
        return _name_tasks(_of_exceptions(chain), tail)
    recent = lines[-LAST_LINES:][::-1]
    for line in [*filter(_FATAL_LINE.match, recent), *recent]:
        if pattern := _match(line):
            return _name_tasks(_signature(pattern, line), tail)
    return None


def _chains(lines: Sequence[str]) -> Iterator[list[str]]:
    """Each chain of exceptions that nothing of the program's followed: their texts, in order."""
    chain: list[str] = []
    for start in (i for i, line in enumerate(lines) if _TRACEBACK in line):
        before = [line for line in lines[max(0, start - 4) : start] if line.strip()]
        if chain and not any(mark in line for line in before for mark in _CHAINED):
            yield chain
            chain = []
        end = _exception_index(lines, start)
        at_exit = bool(before) and _AT_EXIT.search(before[-1])
        if end is None or at_exit or _was_handled(lines[end + 1 :]):
            continue
        chain.append(_exception_text(lines[end:]))
    if chain:
        yield chain


def _exception_index(lines: Sequence[str], start: int) -> int | None:
    """Where the exception itself stands, below its indented frames."""
    for index in range(start + 1, len(lines)):
        if lines[index].strip() and not lines[index][0].isspace():
            return index
    return None


def _exception_text(lines: Sequence[str]) -> str:
    """The exception and the lines of its message, without what the runtime says after it."""
    kept = [lines[0]]
    for line in lines[1:12]:
        if _RUNTIME_LINE.match(line) or _TRACEBACK in line or _CHAINED[0] in line:
            break
        kept.append(line)
    return "\n".join(kept)


def _was_handled(following: Sequence[str]) -> bool:
    """Whether the program went on to write so much that the traceback did not end it."""
    count = 0
    for line in following:
        if _RUNTIME_LINE.match(line) or _TRACEBACK in line:
            break
        count += bool(line.strip())
    return count > HANDLED_LINES


def _of_exceptions(chain: Sequence[str]) -> Signature:
    """The first of a chain that tells something; exceptions that are expected tell nothing."""
    for text in chain:
        pattern = _match(text)
        if pattern and pattern.kind is not Kind.IMPORT_ERROR:
            return _signature(pattern, text)
        if not _EXPECTED.match(text):
            break
    else:
        text = chain[-1]
    if pattern := _match(text):
        return _signature(pattern, text)
    return Signature(Kind.EXCEPTION, _first_line(text), "CPython")


def _match(text: str) -> Pattern | None:
    return next((p for p in TABLE if p.regex.search(text)), None)


def _signature(pattern: Pattern, text: str) -> Signature:
    found = pattern.regex.search(text)
    line = text if found is None else _line_at(text, found.start())
    return Signature(pattern.kind, _first_line(line), pattern.source)


def _line_at(text: str, position: int) -> str:
    return text[text.rfind("\n", 0, position) + 1 :]


def _first_line(text: str) -> str:
    line = _PREFIX.sub("", text.partition("\n")[0].strip())
    return line if len(line) <= TEXT_CHARS else line[: TEXT_CHARS - 1] + "…"


def last_words(tail: str) -> str:
    """The last line that says something, cut to a readable length."""
    lines = [line for line in tail.splitlines() if line.strip() and not _GREETING.match(line)]
    return _first_line(lines[-1]) if lines else ""


def _name_tasks(signature: Signature, tail: str) -> Signature:
    """Add the process ids that JAX's coordination service names."""
    if signature.kind not in PEER:
        return signature
    left = _FIRST_AT_EXIT.search(tail)
    missed = {int(n) for n in _DEAD.findall(tail)}
    for groups in _LATE.findall(tail):
        missed |= {int(n) for n in re.findall(r"(\d+)\n", "".join(groups))}
    return Signature(
        signature.kind,
        signature.text,
        signature.source,
        () if left else tuple(sorted(missed)),
        int(left[1]) if left else None,
    )


MEANINGS: Mapping[Kind, str] = {
    Kind.PEER_LOST: "lost the connection to a peer",
    Kind.COORDINATION: "was ended since another process was lost",
    Kind.NETWORK: "could not reach another machine",
    Kind.HOST_MEMORY: "ran out of host memory",
    Kind.HBM: "ran out of device memory (HBM)",
    Kind.NO_SPACE: "found no space left on a disk",
    Kind.DEVICE_BUSY: "found its TPU in use by another process",
    Kind.NO_DEVICE: "could not open its TPU",
    Kind.IMPORT_ERROR: "could not import or read its code",
    Kind.EXCEPTION: "raised an exception",
    Kind.STOPPED: "was stopped",
}
