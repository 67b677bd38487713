"""Handwritten digits: MNIST's own files from a folder, or the digits that ship with scikit-learn.

MNIST (http://yann.lecun.com/exdb/mnist/): 60,000 and 10,000 images of 28 x 28, in the IDX format.
scikit-learn: 1,797 images of 8 x 8 (UCI, "Optical Recognition of Handwritten Digits"), one in five
of which are kept for testing. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

CLASSES = 10
UBYTE = 0x08  # the third byte of the magic number: the type of the values
HEAD = 4  # bytes of the magic number, and of each dimension
FILES = {
    "train_images": ("train-images", 3),
    "train_labels": ("train-labels", 1),
    "test_images": ("t10k-images", 3),
    "test_labels": ("t10k-labels", 1),
}
TEST_EVERY = 5  # of scikit-learn's
DIGITS = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn; 64 grey values, and the digit
DIGITS_SIDE = 8
DIGITS_WHITE = 16.0
AGAIN = "fetch the file again"
INSTALL = "pip install 'scikit-learn>=1.5,<2'"


@dataclass(frozen=True)
class Digits:
    """Images as float32 from 0 to 1, (number, height, width, 1), and labels as int32."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(folder: str | None) -> Digits:
    """MNIST from `folder`, else scikit-learn's. Raises ValueError, which says what to do."""
    return mnist(Path(folder)) if folder else shipped()


def mnist(folder: Path) -> Digits:
    arrays = {
        name: read_idx(find(folder, stem, dimensions), dimensions)
        for name, (stem, dimensions) in FILES.items()
    }
    sides = [arrays[f"{part}_images"].shape[1:] for part in ("train", "test")]
    if sides[0] != sides[1] or 0 in sides[0]:
        shown = " and ".join(map(_by, sides))
        raise ValueError(f"{folder}: images of {shown} to learn from and to test with")
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if len(images) != len(labels):
            raise ValueError(f"{folder}: {len(images)} {part} images, but {len(labels)} labels")
        if len(labels) == 0 or labels.max() >= CLASSES:
            raise ValueError(f"{folder}: the {part} labels are not digits")
        arrays[f"{part}_images"] = (images[..., None] / np.float32(255)).astype(np.float32)
        arrays[f"{part}_labels"] = labels.astype(np.int32)
    return Digits(**arrays)


def candidates(folder: Path, stem: str, dimensions: int) -> Iterator[Path]:
    """The names under which the file is handed on, packed or not."""
    for dash in ("-", "."):
        for packed in ("", ".gz"):
            yield folder / f"{stem}{dash}idx{dimensions}-ubyte{packed}"


def find(folder: Path, stem: str, dimensions: int) -> Path:
    if not folder.is_dir():
        hint = "give one that every host sees, or none for scikit-learn's digits"
        raise ValueError(f"--data={folder}: there is no folder {folder.absolute()} here; {hint}")
    names = list(candidates(folder, stem, dimensions))
    for path in names:
        if path.is_file():
            return path
    raise ValueError(f"--data={folder}: there is no {names[0].name} in it, nor {names[1].name}")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The bytes of one file, as an array of so many dimensions. Raises ValueError."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        # A cause would be told in its stead, and names no file.
        raise ValueError(f"{path} cannot be read or unpacked: {error}; {AGAIN}") from None
    return unpack(path, data, dimensions)


def unpack(path: Path, data: bytes, dimensions: int) -> np.ndarray:
    """The array in the bytes of an IDX file; `path` is for the message."""
    magic, expected = data[:HEAD], bytes([0, 0, UBYTE, dimensions])
    if magic != expected:
        hint = "; is it packed, and lacks the ending .gz?" if magic[:2] == b"\x1f\x8b" else ""
        raise ValueError(
            f"{path} is no IDX file of {dimensions} dimensions:"
            f" it begins with 0x{magic.hex()}, not 0x{expected.hex()}{hint or f'; {AGAIN}'}"
        )
    begin = HEAD * (1 + dimensions)
    if len(data) < begin:
        raise ValueError(f"{path} is cut off: it ends before its values begin; {AGAIN}")
    shape = [int(size) for size in np.frombuffer(data[HEAD:begin], ">u4")]
    if (size := len(data) - begin) != math.prod(shape):
        raise ValueError(
            f"{path} is cut off, or too long: {size} bytes of {_by(shape)} values; {AGAIN}"
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def shipped() -> Digits:
    """scikit-learn's, read from its file: its import would take longer than a short training."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError(f"no digits to learn: give --data=DIR with MNIST's files, or {INSTALL}")
    path = Path(package.origin).parent / DIGITS
    if not path.is_file():
        raise ValueError(f"there is no {path}: {INSTALL}, or give --data=DIR with MNIST's files")
    table = np.loadtxt(gzip.decompress(path.read_bytes()).decode().splitlines(), delimiter=",")
    images = (table[:, :-1] / DIGITS_WHITE).astype(np.float32)
    images = images.reshape(-1, DIGITS_SIDE, DIGITS_SIDE, 1)
    labels = table[:, -1].astype(np.int32)
    held = np.arange(len(table)) % TEST_EVERY == 0
    return Digits(images[~held], labels[~held], images[held], labels[held])


def order(seed: int, epoch: int, number: int) -> np.ndarray:
    """In which order an epoch goes through the images: a function of the seed and the epoch."""
    return np.random.default_rng((seed, epoch)).permutation(number).astype(np.int32)
