"""What a deduplication of a file has done so far: in memory under a kilobyte a document, on disk for the next start."""

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shared.data.reader import parse_record
from shared.data.shingles import Array, shingles
from shared.measure.files import write_json

SHINGLES_AT_HAND = 30_000  # of the texts read last: about 4 MB


def document_type(num_perm: int) -> np.dtype:
    """What is kept of a document: where its line starts, which line it is (from 1), its SHA-256, its signature."""
    return np.dtype([("offset", "<u8"), ("line", "<u8"), ("digest", "<u8", 4), ("signature", "<u4", num_perm)])


class Job:
    """The state of one run, in a folder beside the output; the same run started again finds it and goes on.

    settings: all that decides the result.  What other settings, or another state of the input, have left there
    is removed: Job.resumed tells whether anything was taken over.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], num_perm: int):
        self.folder, self.type = folder, document_type(num_perm)
        self.state: dict[str, Any] = {"settings": settings, "offset": 0, "line": 0, "documents": 0, "bad": 0,
                                      "signed": False, "bands": 0, "compared": 0}  # fmt: skip
        try:
            found = json.loads(self._path("state.json").read_text(encoding="utf-8"))
            self.resumed = found["settings"] == settings and found.keys() == self.state.keys()
        except (OSError, ValueError, KeyError, TypeError):
            self.resumed = False
        if self.resumed:
            self.state = found
            with self._path("documents.bin").open("r+b") as file:
                file.truncate(found["documents"] * self.type.itemsize)  # what came after the last save
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            self._path("documents.bin").touch()

    def append(self, documents: Array) -> None:
        """Add documents (of `document_type`). They count once `save` has been called."""
        with self._path("documents.bin").open("ab") as file:
            documents.tofile(file)
        self.state["documents"] += len(documents)

    def documents(self) -> Array:
        """All documents, in memory."""
        return np.fromfile(self._path("documents.bin"), self.type)

    def parent(self) -> Array | None:
        """The clusters after the bands that are done; None before the first."""
        return np.load(self._path(f"parent-{self.state['bands']}.npy")) if self.state["bands"] else None

    def save(self, parent: Array | None = None) -> None:
        """From here the next start goes on. With parent: after one more band, with these clusters."""
        if parent is not None:
            self.state["bands"] += 1
            np.save(self._path(f"parent-{self.state['bands']}.npy"), parent)
        write_json(self._path("state.json"), self.state)
        self._path(f"parent-{self.state['bands'] - 1}.npy").unlink(missing_ok=True)

    def close(self) -> None:
        """The job is done: remove what it kept, and the folder, unless something else lies in it."""
        self._clear()
        with suppress(OSError):
            self.folder.rmdir()

    def _clear(self) -> None:
        for pattern in ("state.json", "documents.bin", "parent-*.npy"):
            for path in self.folder.glob(pattern):
                path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / name


def sized_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines from here on, each with its size, b"\\n" included.  Of one with more than max_bytes comes None."""
    while raw := file.readline(max_bytes + 1):
        size, ended = len(raw), raw.endswith(b"\n")
        whole = ended or size <= max_bytes
        while not whole and not ended and (more := file.readline(1 << 16)):
            size, ended = size + len(more), more.endswith(b"\n")
        yield size, raw if whole else None


class ShingleSets:
    """The sets of shingles of a file's texts, read from disk when asked for; those used last are kept at hand."""

    def __init__(self, file: Any, offsets: Array, ngram: int):
        self.file, self.offsets, self.ngram = file, offsets, ngram
        self.at_hand: OrderedDict[int, set[str]] = OrderedDict()
        self.size = 0

    def __call__(self, i: int) -> set[str]:
        """The shingles of document i."""
        if i in self.at_hand:
            self.at_hand.move_to_end(i)
            return self.at_hand[i]
        self.file.seek(int(self.offsets[i]))
        found = self.at_hand[i] = shingles(parse_record(self.file.readline())["text"], self.ngram)
        self.size += len(found)
        while self.size > SHINGLES_AT_HAND and len(self.at_hand) > 1:
            self.size -= len(self.at_hand.popitem(last=False)[1])
        return found
