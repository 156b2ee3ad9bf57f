"""Digits from scikit-learn and from IDX files; damaged files are named, with what was expected and what was found."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from shared.data.digits import MNIST_FILES, load_digits, load_mnist, load_small_digits, read_idx


def idx(array: np.ndarray) -> bytes:
    """The format, written from its description."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x_train": rng.integers(0, 256, (5, 28, 28)), "y_train": np.array([0, 9, 3, 3, 1]),
            "x_test": rng.integers(0, 256, (2, 28, 28)), "y_test": np.array([7, 2])}


def write_mnist(folder: Path, arrays: dict[str, np.ndarray], ending: str = "") -> None:
    for part, array in arrays.items():
        raw = idx(array)
        (folder / (MNIST_FILES[part] + ending)).write_bytes(gzip.compress(raw) if ending == ".gz" else raw)


def test_scikit_learns_digits():
    data = load_small_digits()
    assert (data.x_train.shape, data.x_test.shape, data.side) == ((1437, 64), (360, 64), 8)
    assert data.x_train.dtype == np.float32
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.y_train[:10].tolist() == list(range(10))
    mixed = load_small_digits(shuffle_seed=0)
    assert sorted(map(bytes, np.concatenate([mixed.x_train, mixed.x_test]))) == sorted(
        map(bytes, np.concatenate([data.x_train, data.x_test])))
    assert mixed.y_train[:10].tolist() != list(range(10))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_files_are_used_when_they_are_there(tmp_path: Path, arrays: dict, ending: str):
    assert load_digits(tmp_path).side == 8
    write_mnist(tmp_path, arrays, ending)
    data = load_digits(tmp_path)
    assert (data.name, data.side) == ("MNIST", 28)
    assert data.x_train == pytest.approx(arrays["x_train"].reshape(5, 784) / 255)
    assert data.x_train.dtype == np.float32
    assert data.y_test.tolist() == [7, 2]


def test_the_other_spelling_of_the_names(tmp_path: Path, arrays: dict):
    write_mnist(tmp_path, arrays)
    for name in MNIST_FILES.values():
        (tmp_path / name).rename(tmp_path / name.replace("-idx", ".idx"))
    assert load_digits(tmp_path).side == 28


def test_a_missing_file_is_named(tmp_path: Path, arrays: dict):
    write_mnist(tmp_path, arrays)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte"):
        load_digits(tmp_path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"", "found nothing"),
     (b"<!DOCTYPE html>", "expected it to start with 00 00 08, found 3c 21 44 4f"),
     (bytes([0, 0, 13, 1, 0, 0, 0, 1, 0]), "found 00 00 0d 01"),
     (bytes([0, 0, 8, 3, 0, 0]), "expected 16 bytes, found 6"),
     (idx(np.zeros((3, 2, 2)))[:-1], "3 x 2 x 2: expected 28 bytes, found 27"),
     (idx(np.zeros((3, 2, 2))) + b"!", "expected 28 bytes, found 29")],
)
def test_damage_is_described(tmp_path: Path, raw: bytes, message: str):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("raw", [gzip.compress(bytes(1000))[:-9], b"not gzip at all"])
def test_a_broken_gzip_file_is_described(tmp_path: Path, raw: bytes):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"not a whole gzip file.*found {len(raw)} bytes"):
        read_idx(path)


def test_images_and_labels_must_fit(tmp_path: Path, arrays: dict):
    write_mnist(tmp_path, arrays | {"y_train": arrays["y_train"][:4]})
    with pytest.raises(ValueError, match=r"\(5, 28, 28\).*\(4,\)"):
        load_mnist(tmp_path)
    write_mnist(tmp_path, arrays | {"y_test": np.array([7, 12])})
    with pytest.raises(ValueError, match="label of 12"):
        load_mnist(tmp_path)
    write_mnist(tmp_path, arrays | {"x_test": np.zeros((2, 8, 8))})
    with pytest.raises(ValueError, match="differ in size"):
        load_mnist(tmp_path)
