"""The folders of the book's own model: which are whole, which are ours to replace, and who may work in them now."""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
NAME = "docs-llama-v1"
FACTS = "training.json"  # in a finished model's folder
ORIGIN = "made_from.json"  # in a working folder


def is_whole(path: Path) -> bool:
    """True when all files that training.json lists are there, in their sizes."""
    try:
        return all((path / name).stat().st_size == size for name, size in read_facts(path / FACTS)["files"].items())
    except (OSError, KeyError, AttributeError, TypeError):
        return False


def work_folder(path: Path) -> Path:
    """Where the unfinished model lies: beside the finished one."""
    return path.with_name(f"{path.name}.training")


def check_ours(path: Path) -> None:
    """Make sure that a model's folder and its working folder are empty, missing, or were made here.

    Raises ValueError otherwise: both get replaced.
    """
    for folder, file, key in ((path, FACTS, "files"), (work_folder(path), ORIGIN, "documents")):
        if not folder.exists() and not folder.is_symlink():
            continue
        half = f".{file}."  # what a kill at the very beginning leaves
        foreign = not folder.is_dir() or any(not found.name.startswith(half) for found in folder.iterdir())
        if foreign and key not in read_facts(folder / file):
            raise ValueError(f"{folder} holds something that wasn't made here. Move it away, or choose another place.")


def discard(folder: Path) -> None:
    """Remove a folder of ours. It loses its name first: a kill halfway leaves nothing that seems another's."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)


def read_facts(path: Path) -> dict[str, Any]:
    """A JSON file's object; {} when there is no such file, or something else is in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Held while the model at `path` is trained. The system lets go of it when the process ends, however it ends.

    wait: for another process that holds it; otherwise that is a ValueError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise ValueError(f"another process is training {path}; wait, or choose another place") from None
            print(f"Another process is training {path}; waiting for it.", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
