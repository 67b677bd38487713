"""The workload `mnist`: its files, its arguments, and that it learns."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.compose import WORKLOADS

sys.path.insert(0, str(WORKLOADS))

import mnist
import mnist_data


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim])
    return head + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write(folder: Path, ending: str = "", side: int = 8, **changed: np.ndarray) -> Path:
    """A folder as MNIST's; a digit is a bright row, so that there is something to learn."""
    folder.mkdir(exist_ok=True)
    for part, number in (("train", 120), ("test", 30)):
        labels = np.arange(number) % 8
        images = np.zeros((number, side, side), np.uint8)
        images[np.arange(number), labels] = 255
        arrays = {f"{part}_images": images, f"{part}_labels": labels} | changed
        for name in (f"{part}_images", f"{part}_labels"):
            stem, dimensions = mnist_data.FILES[name]
            data = idx(arrays[name])
            path = folder / f"{stem}-idx{dimensions}-ubyte{ending}"
            path.write_bytes(gzip.compress(data, mtime=0) if ending else data)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnists_own_files_are_read(tmp_path: Path, ending: str) -> None:
    digits = mnist_data.load(str(write(tmp_path, ending)))
    assert digits.train_images.shape == (120, 8, 8, 1)
    assert digits.test_labels.tolist() == [number % 8 for number in range(30)]
    assert (digits.train_images.dtype, digits.train_labels.dtype) == (np.float32, np.int32)
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)


def test_the_digits_that_ship_need_no_download() -> None:
    digits = mnist_data.load(None)
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.max() == 1.0
    assert set(digits.train_labels.tolist()) == set(range(10))


IMAGES = idx(np.zeros((3, 4, 4), np.uint8))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x", IMAGES[:-1], r"is cut off.* 47 bytes of 3 x 4 x 4 values"),
        ("x", IMAGES + b"\0", r"49 bytes of 3 x 4 x 4 values"),
        ("x", IMAGES[:9], r"is cut off"),
        ("x", b"", r"is no IDX file of 3 dimensions: it begins with 0x, not 0x00000803"),
        ("x", idx(np.zeros(3)), r"begins with 0x00000801, not 0x00000803"),
        ("x", b"\0\0\x0d\x03" + IMAGES[4:], r"begins with 0x00000d03"),
        ("x", gzip.compress(IMAGES, mtime=0), r"is it packed, and lacks the ending .gz\?"),
        (
            "x.gz",
            gzip.compress(IMAGES, mtime=0)[:-12],
            r"x.gz cannot be read .*; fetch the file again",
        ),
        ("x.gz", IMAGES, r"x.gz cannot be read .*; fetch the file again"),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=said) as told:
        mnist_data.read_idx(tmp_path / name, 3)
    assert told.value.__suppress_context__ or not told.value.__context__  # it is the first error


@given(st.binary(max_size=40), st.sampled_from([1, 3]))
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes, dimensions: int) -> None:
    try:
        array = mnist_data.unpack(Path("digits"), data, dimensions)
    except ValueError:
        return
    assert array.tobytes() == data[4 + 4 * dimensions :]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"test_labels": np.zeros(29)}, "30 test images, but 29 labels"),
        ({"test_images": np.zeros((30, 4, 4))}, "images of 8 x 8 and 4 x 4 to learn"),
        ({"train_images": np.zeros((120, 0, 8)), "test_images": np.zeros((30, 0, 8))}, "of 0 x 8"),
        ({"train_labels": np.full(120, 10)}, "the train labels are not digits"),
    ],
)
def test_files_that_do_not_fit_each_other(
    tmp_path: Path, changed: dict[str, np.ndarray], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        mnist_data.load(str(write(tmp_path, **changed)))


def test_a_missing_file_and_a_missing_package_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=r"no t10k-labels-idx1-ubyte in it, nor t10k-labels-.*gz"):
        mnist_data.load(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"--data=x y: there is no folder {tmp_path}/x y here"):
        mnist_data.load("x y")
    monkeypatch.setattr(mnist_data, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--data=DIR with MNIST's files, or pip install"):
        mnist_data.load(None)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    first = mnist_data.order(1, 2, 50)
    assert sorted(first.tolist()) == list(range(50))
    assert first.tolist() == mnist_data.order(1, 2, 50).tolist()
    others = {tuple(mnist_data.order(*key, 50).tolist()) for key in ((1, 2), (1, 3), (2, 2))}
    assert len(others) == 3


@pytest.mark.parametrize("words", [["--batch_size=0"], ["--epochs=-1"], ["--lr=x"], ["--model=x"]])
def test_wrong_arguments_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mnist.parse(words)
    assert ended.value.code == 2
