"""Whether a model's files are still those that were loaded: a stream must not change models in the middle."""

import os
from hashlib import blake2b
from pathlib import Path

PIECE, PIECES = 4096, 1024  # of a file of weights so many pieces of so many bytes are read, spread over its length
PATTERNS = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer.json")  # int8's scales need the last


class FilesChanged(RuntimeError):
    """They aren't what was loaded."""


class ModelFiles:
    """A model's files as they are now. Raises OSError when they can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files = {file.name: file for pattern in PATTERNS for file in path.glob(pattern)}
        self._stats = {name: _stat(file) for name, file in files.items()}
        self._digests = {name: digest(file) for name, file in files.items()}

    def check(self) -> None:
        """Raise FilesChanged when they are not the same any more, and OSError when nobody can tell now.

        Files that merely look new, touched or copied anew, are read again.
        """
        found = {file.name for pattern in PATTERNS for file in self.path.glob(pattern)}
        stats = {name: _stat(self.path / name) for name in self._stats}  # of one that is missing: can't tell
        changed = found - stats.keys()
        for name in [name for name, stat in stats.items() if stat != self._stats[name]]:
            if digest(self.path / name) == self._digests[name]:
                self._stats[name] = stats[name]
            else:
                changed.add(name)
        if changed:
            names = ", ".join(sorted(changed))
            raise FilesChanged(
                f"files in {self.path} have changed since they were loaded ({names}); put them back as they were, or "
                "load the new ones as a new version"
            )


def _stat(file: Path) -> tuple[int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def digest(file: Path) -> tuple[int, bytes]:
    """The size, and a hash of the content; of a large file, of its beginning and pieces of it. So it's known in no time
    for weights of any size, and new weights are told from old ones, for training changes all of them."""
    hashed = blake2b(digest_size=16)
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        apart = max(size // PIECES, PIECE)
        for start in range(0, size, apart):
            opened.seek(start)
            hashed.update(opened.read(PIECE))
    return size, hashed.digest()
