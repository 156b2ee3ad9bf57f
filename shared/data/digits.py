"""Handwritten digits: scikit-learn's by default, MNIST when its files lie in data/mnist/."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MNIST_DIR = Path(__file__).resolve().parents[2] / "data" / "mnist"
MNIST_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Digits:
    """Images as rows of numbers from 0 to 1 (float32), labels from 0 to 9 (int64)."""

    name: str
    side: int  # pixels: an image is side * side numbers
    x_train: np.ndarray  # [n_train, side * side]
    y_train: np.ndarray  # [n_train]
    x_test: np.ndarray  # [n_test, side * side]
    y_test: np.ndarray  # [n_test]


def load_digits(mnist_dir: Path = MNIST_DIR) -> Digits:
    """MNIST when its four files are in `mnist_dir`, scikit-learn's 8 x 8 digits when none is.

    Raises FileNotFoundError when only some are there, ValueError when one is damaged; the message names the file.
    """
    if any(_find(mnist_dir, name) for name in MNIST_FILES.values()):
        return load_mnist(mnist_dir)
    return load_small_digits()


def load_small_digits(shuffle_seed: int | None = None) -> Digits:
    """scikit-learn's 1,797 digits, 8 x 8.  The last fifth is the test set.

    13 people wrote them, and the rows seem to lie person by person (chapter 1's notebook shows why), so most of the
    test's handwriting is new to the net.  With shuffle_seed the rows are mixed first, and every hand is on both sides.
    """
    from sklearn.datasets import load_digits as load

    x, y = load(return_X_y=True)
    x = (x / 16).astype(np.float32)  # pixels are counts from 0 to 16
    y = y.astype(np.int64)
    order = np.arange(len(x)) if shuffle_seed is None else np.random.default_rng(shuffle_seed).permutation(len(x))
    train, test = np.split(order, [len(x) * 4 // 5])
    return Digits("scikit-learn's digits", 8, x[train], y[train], x[test], y[test])


def load_mnist(folder: Path = MNIST_DIR) -> Digits:
    """MNIST from its four IDX files, plain or gzipped, under their usual names."""
    arrays = {}
    for part, name in MNIST_FILES.items():
        path = _find(folder, name)
        if path is None:
            raise FileNotFoundError(f"{folder / name} (or .gz) is missing; MNIST needs all four of "
                                    f"{', '.join(MNIST_FILES.values())}")
        arrays[part] = read_idx(path)
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or images.shape[1] != images.shape[2]:
            raise ValueError(f"{folder}: the {part} images have shape {images.shape} and their labels {labels.shape}; "
                             "expected [n, side, side] and [n]")
        if labels.size and labels.max() > 9:
            raise ValueError(f"{_find(folder, MNIST_FILES[f'y_{part}'])}: a label of {labels.max()}; digits end at 9")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise ValueError(f"{folder}: train and test images differ in size: {arrays['x_train'].shape[1:]} and "
                         f"{arrays['x_test'].shape[1:]}")
    flat = {part: a.reshape(len(a), -1).astype(np.float32) / 255 if part[0] == "x" else a.astype(np.int64)
            for part, a in arrays.items()}
    return Digits("MNIST", arrays["x_train"].shape[1], **flat)


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes: 00 00 08, number of dimensions, each size in 4 bytes (big-endian), the data.

    A name that ends in .gz is unpacked.  Raises ValueError with the file, what was expected and what was found.
    """
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error}); found {len(raw)} bytes; get it again") from None
    if raw[:3] != b"\x00\x00\x08" or len(raw) < 4:
        raise ValueError(f"{path}: not an IDX file of bytes: expected it to start with 00 00 08, found "
                         f"{raw[:4].hex(' ') or 'nothing'}")
    header = 4 + 4 * raw[3]
    if len(raw) < header:
        raise ValueError(f"{path}: cut off in its header: expected {header} bytes, found {len(raw)}")
    shape = tuple(int(n) for n in np.frombuffer(raw[4:header], dtype=">u4"))
    expected = header + math.prod(shape)
    if len(raw) != expected:
        raise ValueError(f"{path}: its header says {' x '.join(map(str, shape))}: expected {expected} bytes, "
                         f"found {len(raw)}; get it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _find(folder: Path, name: str) -> Path | None:
    """The file by its usual name, with .gz, or with a dot before `idx` as some mirrors have it."""
    names = (name, name + ".gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz")
    return next((folder / n for n in names if (folder / n).is_file()), None)
