"""Write a file in one step, so that a kill at any moment leaves the old one or the new one."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, to_disk: bool = False) -> Iterator[Path]:
    """A path to write to; it becomes `path` in one step when the block ends well, and is removed when it doesn't.

    to_disk: wait until the bytes are on the disk before the name is, so that a power cut, too, leaves a whole file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield part
        if to_disk:
            with part.open("rb") as written:
                os.fsync(written.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, atomically; missing folders are made. Raises ValueError for NaN, infinity."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
