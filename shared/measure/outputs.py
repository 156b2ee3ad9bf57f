"""Whether a command may write where it is told to: asked before the work, so that none is lost over it."""

import os
from collections.abc import Mapping
from pathlib import Path


def check_output(path: Path, taken: Mapping[str, Path]) -> None:
    """Make sure that a file can be written, or replaced, at `path`; folders that are missing are made.

    taken: files that it must not overwrite, each with what it is: {"the input": path_in}.
    Raises ValueError that names the path and says what is wrong with it.
    """
    for what, other in taken.items():
        if path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other)):
            raise ValueError(f"{path} would overwrite {what}; give it another name")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no ordinary file, and can't be replaced by one")
    trial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from error
