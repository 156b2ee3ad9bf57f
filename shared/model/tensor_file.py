"""Safetensors read by hand: eight bytes, a JSON header, and numbers that are mapped into memory where they lie.

The format (github.com/huggingface/safetensors, "Format"): 8 bytes, little-endian: the header's length; the header, a
JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]}; the data. Offsets count from where the data
begins. The tensors fill the data without a hole and without an overlap, so a file has no room for anything hidden.
"""

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
LONGEST_HEADER = 100_000_000  # bytes, as in the library: a header is read into memory whole


class WeightsError(ValueError):
    """Weights that cannot be loaded; the message names the file or the tensor, and says what to do."""


class UnknownDtype(WeightsError):
    """The file is whole, and its numbers are of a type that can't be read here."""


def shown(value: object, most: int = 100) -> str:
    """A name or value from a file, for a message: quoted, without control characters, and not a megabyte of it."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its dtype by the file's name for it, its shape, and its bytes, counted from the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict, and no name twice: `json` by itself keeps the last of two and says nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise WeightsError(f"the name {shown(next(n for n in names if names.count(n) > 1))} appears twice")
    return found


def parse_header(data: bytes | bytearray | mmap.mmap) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file, of which `data` holds the bytes.

    Returns the header, and where the tensors' data begins, in bytes from the start of the file. Raises WeightsError
    when the file ends before its header does, when the header is longer than LONGEST_HEADER, when it isn't a JSON
    object in UTF-8, and when a name appears in it twice.

    >>> parse_header(bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}" + b"and then the data")
    ({}, 10)
    """
    # exercise 8.1: the length from the first eight bytes, then that many bytes of JSON
    #   check the length before using it, and give json.loads `unique_names` as its object_pairs_hook
    length = int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER or len(data) < 8 + length:
        raise WeightsError(f"the header should have {length} bytes, and the whole file has {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the header can't be read: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"the header must be a JSON object, not a {type(header).__name__}")
    return header, 8 + length
    # end


def check_layout(header: Mapping[str, Any], n_bytes: int) -> dict[str, Entry]:
    """The tensors that a header describes, after making sure that it can be believed. n_bytes: how long the data is.

    Raises WeightsError, naming the tensor, for an unknown dtype, for bytes that aren't shape times size, and unless
    the tensors cover the data exactly: none outside, none on top of another, no byte left over.
    """
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(_is_text(part) for pair in metadata.items() for part in pair):
        raise WeightsError("__metadata__ must map names to texts")
    entries = {name: _entry(name, value) for name, value in header.items() if name != "__metadata__"}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > n_bytes:
            raise WeightsError(f"tensor {shown(name)} ends at byte {entry.end} of the data, which has {n_bytes}")
        if entry.begin != end:
            what = "lies on top of another" if entry.begin < end else "leaves a hole before it"
            raise WeightsError(
                f"tensor {shown(name)} {what}: it begins at byte {entry.begin}, and the last ended at {end}"
            )
        end = entry.end
    if end != n_bytes:
        raise WeightsError(f"the tensors end at byte {end} of the data, which has {n_bytes}")
    return entries


def _entry(name: str, value: Any) -> Entry:
    label = f"tensor {shown(name)}"
    if not _is_text(name):
        raise WeightsError(f"{label} is named by half a character (a lone surrogate)")
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise WeightsError(f"{label} needs a dtype, a shape and two data_offsets") from error
    if len(value) > 3:
        raise WeightsError(f"{label} needs a dtype, a shape and two data_offsets, and has {len(value)} fields")
    numbers = (*shape, begin, end)
    if not all(type(n) is int and n >= 0 for n in numbers) or begin > end or math.prod(n or 1 for n in shape) >= 2**63:
        raise WeightsError(f"{label} has shape {shown([*shape])} and offsets {shown([begin, end])}: no such tensor")
    if not isinstance(dtype, str):
        raise WeightsError(f"{label} has the dtype {shown(dtype)}, which is no name")
    if dtype not in DTYPES:
        raise UnknownDtype(f"{label} has the dtype {shown(dtype)}, and only {', '.join(DTYPES)} can be read")
    if (need := math.prod(shape) * DTYPES[dtype].itemsize) != end - begin:
        raise WeightsError(f"{label} has {end - begin} bytes, and {dtype} {shown([*shape])} takes {need}")
    return Entry(dtype, shape, begin, end)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def tensor_view(data: bytearray | mmap.mmap, data_start: int, entry: Entry) -> Tensor:
    """The tensor that `entry` describes, as a view of the file's bytes: nothing is read, and nothing is copied.

    data: the whole file; data_start: where the tensors' data begins in it, from which the entry's offsets count.
    A tensor without elements is allowed.

    >>> file = bytearray(8) + bytes([0, 0, 128, 63, 0, 0, 0, 64])  # eight bytes of something else; 1.0 and 2.0
    >>> tensor_view(file, 8, Entry("F32", (1, 2), begin=0, end=8))
    tensor([[1., 2.]])
    """
    # exercise 8.2: torch.frombuffer makes a flat tensor on top of a buffer; give it its shape
    #   it refuses a count of zero, so an empty tensor is a case of its own
    dtype = DTYPES[entry.dtype]
    count = math.prod(entry.shape)
    if count == 0:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype, count=count, offset=data_start + entry.begin)  # [count]
    return flat.view(entry.shape)
    # end


class TensorFile:
    """An open safetensors file. Opening costs a header; a tensor costs its pages, when its numbers are first used.

    The mapping is private: writing to a tensor changes this process's copy of a page and never the file. It lasts as
    long as a tensor of it does. (Nobody may cut the file short meanwhile: the system then ends the process.)
    Raises WeightsError, with the file, the tensor and what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for someone to write into it
                raise OSError("it isn't a regular file")
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable, or torch would warn
            header, self._start = parse_header(self._data)
            self.entries = check_layout(header, len(self._data) - self._start)
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnknownDtype as error:
            raise WeightsError(f"{path}: {error}") from error
        except ValueError as error:  # WeightsError is one, and so is mmap's "cannot mmap an empty file"
            raise WeightsError(f"{path} is damaged or cut short: {error}. Copy or fetch it again.") from error

    def tensor(self, name: str) -> Tensor:
        """The tensor where it lies: nothing is copied, or read before somebody looks. Raises KeyError without one."""
        return tensor_view(self._data, self._start, self.entries[name])

    def release(self, name: str) -> None:
        """Give a tensor's pages back to the system; they are read again if anybody looks. For after a conversion.

        Whatever was written to the tensor is lost. A page that holds part of a neighbour, too, stays.
        """
        if hasattr(self._data, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
            entry = self.entries[name]
            begin = -(-(self._start + entry.begin) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (self._start + entry.end) // mmap.PAGESIZE * mmap.PAGESIZE
            if begin < end:
                self._data.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def build_header(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The first bytes of a file: length and header, for tensors (dtype, shape) that follow in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)  # the numbers start at a multiple of 64, as wide instructions like it
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Wide numbers go first, so that each begins at a multiple of its own size.

    Raises WeightsError, before anything is written, for a tensor that the file can't hold.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if name == "__metadata__" or not _is_text(name):
            raise WeightsError(f"a tensor can't be called {shown(name)} in a safetensors file")
        if tensor.dtype not in names:
            raise WeightsError(f"tensor {shown(name)} is {tensor.dtype}, and only {', '.join(DTYPES)} can be written")
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    with path.open("wb") as file:
        file.write(build_header({n: (names[tensors[n].dtype], tuple(tensors[n].shape)) for n in order}))
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
