"""Signatures of last lines. The texts under `data/tails/` are real unless `FIELD` names their
source: printed by JAX 0.10.2, PyTorch 2.9 and CPython 3.11 when one of two to four CPU processes
was killed, raised, left early or never came.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.judging.signatures import MEANINGS, TABLE, TEXT_CHARS, Kind, find, last_words

TAILS = Path(__file__).parent / "data" / "tails"
# name, kind, a part of the text
REAL: list[tuple[str, Kind | None, str]] = [
    ("raise", Kind.EXCEPTION, "ValueError: bad batch at step 20"),
    ("peer-of-raise", Kind.COORDINATION, "Shutdown barrier has failed"),
    ("peer-killed", Kind.PEER_LOST, "ValueError: UNKNOWN: Gloo all-reduce failed"),
    ("peer-killed-of-three", Kind.PEER_LOST, "Connection reset by peer"),
    ("peer-crashed", Kind.PEER_LOST, "Connection reset by peer"),
    ("coordinator-killed", Kind.PEER_LOST, "Connection reset by peer"),
    ("raise-of-coordinator", Kind.EXCEPTION, "ValueError: bad batch at step 20"),
    ("raise-of-coordinator-cut", Kind.COORDINATION, "Shutdown barrier has failed"),
    ("peer-of-coordinator", Kind.COORDINATION, "Shutdown barrier has failed"),
    ("early-exit", Kind.COORDINATION, "Shutdown barrier has failed"),
    ("peer-of-early-exit", Kind.COORDINATION, "Shutdown barrier has failed"),
    ("peer-never-came", Kind.COORDINATION, "DEADLINE_EXCEEDED: Deadline Exceeded"),
    ("apart-coordinator", Kind.COORDINATION, "DEADLINE_EXCEEDED"),
    ("apart-worker", Kind.COORDINATION, "DEADLINE_EXCEEDED"),
    ("wrapped-peer-error", Kind.PEER_LOST, "RuntimeError: UNKNOWN: Gloo"),
    ("torch-assert", Kind.EXCEPTION, "AssertionError: rank 2 has found something wrong"),
    ("peer-of-torch-assert", Kind.PEER_LOST, "Connection closed by peer"),
    ("torch-peer-killed", Kind.PEER_LOST, "Connection reset by peer"),
    ("torch-never-came-first", Kind.COORDINATION, "waiting for clients. 2/3 clients joined"),
    ("torch-never-came", Kind.COORDINATION, "wait timeout after 6000ms"),
    ("import-error", Kind.IMPORT_ERROR, "No module named 'not_there_xyz'"),
    ("syntax-error", Kind.IMPORT_ERROR, "SyntaxError: invalid syntax"),
    ("no-such-file", Kind.IMPORT_ERROR, "can't open file"),
    ("no-space", Kind.NO_SPACE, "[Errno 28] No space left on device"),
    ("memory-error", Kind.HOST_MEMORY, "MemoryError"),
    ("connection-refused", Kind.NETWORK, "[Errno 111] Connection refused"),
    ("keyboard-interrupt", Kind.STOPPED, "KeyboardInterrupt"),
    ("chained", Kind.EXCEPTION, "ValueError: no such optimiser: adamm"),
    ("error-at-exit", Kind.EXCEPTION, "ValueError: bad loss"),
    ("thread-error", None, ""),
    ("exit-message", None, ""),
]
FIELD: list[tuple[str, Kind | None, str]] = [
    ("hbm-compile", Kind.HBM, "XLA:TPU compile permanent error"),  # LargeWorldModel/LWM#60
    ("hbm-reserve", Kind.HBM, "Attempting to reserve 3.95G"),  # pytorch/xla#1735
    ("tpu-busy-pid", Kind.DEVICE_BUSY, "in use by process with pid"),  # sgl-project/sglang-jax#857
    ("tpu-busy-vfio", Kind.DEVICE_BUSY, "Device or resource busy"),  # google/gvisor#11545
    ("tpu-missing", Kind.NO_DEVICE, "No accelerator found"),  # marin-community/marin#5753
    ("peer-unreachable", Kind.NETWORK, "Failed to connect to 10.130.0.7:8471"),  # libtpu
    ("metadata-server", Kind.NETWORK, "Failed to fetch URL"),  # jax-ml/jax#11668
    ("socket-closed", Kind.PEER_LOST, 'grpc_message:"Socket closed"'),  # marin-community/marin#5747
    ("oom-killer", Kind.HOST_MEMORY, "Out of memory: Killed process"),  # the Linux kernel
    ("data-loader", Kind.HOST_MEMORY, "DataLoader worker"),  # PyTorch
    ("assertion", Kind.EXCEPTION, "AssertionError: tensor(nan)"),
    ("quota-of-api", Kind.EXCEPTION, "429 RESOURCE_EXHAUSTED: Quota exceeded"),
    ("handled", Kind.COORDINATION, "Failed to send RPC to coordination service"),
]
CASES = REAL + FIELD


@pytest.mark.parametrize(("name", "kind", "text"), CASES, ids=[case[0] for case in CASES])
def test_find(name: str, kind: Kind | None, text: str) -> None:
    signature = find((TAILS / f"{name}.txt").read_text("utf-8"))
    assert (signature and signature.kind) == kind
    assert text in (signature.text if signature else "")


def test_every_text_is_judged() -> None:
    assert {path.stem for path in TAILS.glob("*.txt")} == {case[0] for case in CASES}


@pytest.mark.parametrize(
    ("name", "missed", "left"),
    [
        ("peer-killed", (1,), None),
        ("peer-killed-of-three", (1,), None),
        ("peer-of-early-exit", (), 1),
        ("peer-of-raise", (), 1),
        ("peer-of-coordinator", (), 0),
        ("peer-never-came", (), None),
        ("raise", (), None),
    ],
)
def test_the_coordination_service_names_processes(
    name: str, missed: tuple[int, ...], left: int | None
) -> None:
    signature = find((TAILS / f"{name}.txt").read_text("utf-8"))
    assert signature is not None
    assert (signature.missed, signature.left) == (missed, left)


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        ("", None),
        ("step 1\nstep 2\n", None),
        ("libtpu.so already in used by another process. Not attempting to load", Kind.DEVICE_BUSY),
        ("RuntimeError: /dev/accel0: Device or resource busy", Kind.DEVICE_BUSY),
        ("E0101 Couldn't open iommu group /dev/vfio/0", Kind.DEVICE_BUSY),
        ("RuntimeError: Resource exhausted: Total hbm usage >= 22G", Kind.HBM),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes", Kind.HBM),
        ("RESOURCE_EXHAUSTED: Attempting to allocate 2.00G. That was not possible", Kind.HBM),
        ("tar: write error: Disk quota exceeded", Kind.NO_SPACE),
        ("RuntimeError: TPU initialization failed: some backend error", Kind.NO_DEVICE),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Kind.HOST_MEMORY),
        ("UNAVAILABLE: Task 3 heartbeat timeout. This indicates that", Kind.COORDINATION),
        ("tasks are unhealthy (stopped sending heartbeats):", Kind.COORDINATION),
        ("coordination_service.cc:1] UNAVAILABLE: gone", Kind.COORDINATION),
        ("[1] DEADLINE_EXCEEDED: RPC RegisterTask", Kind.COORDINATION),
        ("while calling /tensorflow.CoordinationService/PollForError:", Kind.COORDINATION),
        ("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1ms", Kind.PEER_LOST),
        ("recvmsg: Socket closed", Kind.PEER_LOST),
        ("Failed to retrieve notice: UNAVAILABLE: Socket closed", Kind.PEER_LOST),
        ("write: Broken pipe", Kind.PEER_LOST),
        ("UNAVAILABLE: failed to connect to all addresses", Kind.NETWORK),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", Kind.NETWORK),
        ("OSError: [Errno 101] Network is unreachable", Kind.NETWORK),
        ("/usr/bin/python: No module named trainer", Kind.IMPORT_ERROR),
        ("out of memory in my little pool", None),
        ("INFO Connection refused, again in 5 s\n" + "step\n" * 80, None),
    ],
)
def test_lines_without_a_traceback(tail: str, kind: Kind | None) -> None:
    signature = find(tail)
    assert (signature and signature.kind) == kind


def traceback(
    *exceptions: str, link: str = "During handling of the above exception, another"
) -> str:
    frames = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\n    g()\n'
    return f"\n\n{link}\n\n".join(frames + text for text in exceptions)


CAUSED = "The above exception was the direct cause of the following exception:"
PEER_TEXT = "JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection closed by peer"


@pytest.mark.parametrize(
    ("tail", "kind", "text"),
    [
        # What was expected does not count, what came of it does.
        (traceback("KeyError: 'a'", PEER_TEXT), Kind.PEER_LOST, "Gloo"),
        (traceback("ImportError: no fast path", "TypeError: x"), Kind.EXCEPTION, "TypeError"),
        (traceback("KeyError: 'lr'"), Kind.EXCEPTION, "KeyError: 'lr'"),
        # The first cause counts, not what broke while it was handled.
        (traceback("ValueError: bad", PEER_TEXT), Kind.EXCEPTION, "ValueError: bad"),
        (traceback(PEER_TEXT, "RuntimeError: step", link=CAUSED), Kind.PEER_LOST, "Gloo"),
        # Of unrelated ones the last ended the program.
        (
            traceback("ValueError: no tracker") + "\nstep 1\n" + traceback(PEER_TEXT),
            Kind.PEER_LOST,
            "",
        ),
        (traceback(PEER_TEXT) + "\nstep 1\n" + traceback("ValueError: bad"), Kind.EXCEPTION, "bad"),
        # A program that goes on for long was not ended by it; the runtime's lines do not count.
        (traceback("ValueError: bad") + "\n" + "step\n" * 40, None, ""),
        (traceback("ValueError: bad") + "\n" + "E1129 21:46:07.5 x\n" * 40, Kind.EXCEPTION, "bad"),
        # A message of many lines is read as a whole.
        (traceback("RuntimeError: a\nb\nNo space left on device"), Kind.NO_SPACE, "No space"),
        (traceback("ExceptionGroup"), Kind.EXCEPTION, "ExceptionGroup"),
    ],
)
def test_tracebacks(tail: str, kind: Kind | None, text: str) -> None:
    signature = find(tail)
    assert (signature and signature.kind) == kind
    assert text in (signature.text if signature else "")


def test_every_kind_has_its_words_and_source() -> None:
    assert set(MEANINGS) == set(Kind)
    assert {pattern.kind for pattern in TABLE} | {Kind.EXCEPTION} == set(Kind)
    assert all(pattern.source for pattern in TABLE)


def test_last_words() -> None:
    assert last_words("a\nb\n\n") == "b"
    assert last_words("") == ""
    assert len(last_words("x" * 5000)) == TEXT_CHARS
    gloo = (
        "[Gloo] Rank 2 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    )
    assert last_words(f"step 1\n{gloo}\n") == "step 1"
    assert last_words(gloo) == ""


@settings(deadline=None)
@given(st.text(alphabet="ab :\n\t", max_size=200))
def test_ordinary_output_has_no_signature(tail: str) -> None:
    assert find(tail) is None


@settings(deadline=None)
@given(st.text(max_size=300), st.sampled_from(CASES))
def test_any_text_before_changes_nothing_of_a_traceback(
    before: str, case: tuple[str, Kind, str]
) -> None:
    text = (TAILS / f"{case[0]}.txt").read_text("utf-8")
    alone = find(text)
    if not text.startswith("Traceback") or re.search(
        r"Traceback|above exception|Exception", before
    ):
        return
    assert find(f"{before}\n{text}") == alone


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read(tail: str) -> None:
    signature = find(tail)
    assert signature is None or len(signature.text) <= TEXT_CHARS
