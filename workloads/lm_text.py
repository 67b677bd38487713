"""Text to learn from: the sources of Python's own standard library, byte by byte.

It is on every machine that can run the program, needs no download, and is the same for the same
Python. What step n reads is a pure function of the seed and n: a run that starts again at step n
reads what it would have read, and there is no position to save.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOCABULARY = 256  # a token is a byte
VALIDATION_EVERY = 20  # one file in so many is kept for validation
# Not the library itself, or not the same on every machine of one Python version.
LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3")
MACHINE_FILE = "_sysconfigdata"  # a prefix: build paths and flags of this machine's Python


@dataclass(frozen=True)
class Corpus:
    """Two texts, as arrays of bytes, and the SHA-256 of both together."""

    train: np.ndarray
    validation: np.ndarray
    digest: str


def load(folder: Path | None = None) -> Corpus:
    """Read every Python source below `folder`, the standard library if None, in order of name."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    texts = [file.read_bytes() for file in sources(folder)]
    held = b"".join(texts[::VALIDATION_EVERY])
    train = b"".join(text for i, text in enumerate(texts) if i % VALIDATION_EVERY)
    digest = hashlib.sha256(b"%d:" % len(train) + train + held).hexdigest()
    return Corpus(np.frombuffer(train, np.uint8), np.frombuffer(held, np.uint8), digest)


def sources(folder: Path) -> list[Path]:
    """Sorted by their path's parts, so that the order depends on no locale and no file system."""
    found = (file.relative_to(folder) for file in folder.rglob("*.py"))
    chosen = [
        file
        for file in found
        if not set(LEFT_OUT) & set(file.parts) and not file.name.startswith(MACHINE_FILE)
    ]
    return [folder / file for file in sorted(chosen, key=lambda file: file.parts)]


def rows(
    text: np.ndarray, key: tuple[int, int], batch: int, sequence: int, wanted: Sequence[int]
) -> np.ndarray:
    """Rows `wanted` of the global batch that belongs to `key`, (seed, step).

    A row is `sequence` + 1 successive bytes: each but the last is an input, each but the first a
    target. Every process draws all starts and cuts out its own rows. The shape is
    (len(wanted), sequence + 1), the type uint8.
    """
    if len(text) <= sequence + 1:
        raise ValueError(f"a text of {len(text)} bytes is too short for --sequence={sequence}")
    starts = np.random.default_rng(key).integers(len(text) - sequence, size=batch)
    return np.stack([text[start : start + sequence + 1] for start in starts[list(wanted)]])
