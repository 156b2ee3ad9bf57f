"""Converted models under data/peers: made once for each source, and there in one step or not at all."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "data" / "peers"


def work_folder(model_dir: Path, root: Path = ROOT) -> Path:
    """Where this model's conversions lie. The name changes when the weights or the configuration do."""
    stamp = hashlib.sha256()
    for file in sorted((model_dir / "config.json", *model_dir.glob("*.safetensors"))):
        facts = file.stat()
        stamp.update(f"{file.name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return root / f"{model_dir.resolve().name}-{stamp.hexdigest()[:8]}"


def converted(target: Path, make: Callable[[Path], None], say: Callable[[str], None]) -> Path:
    """The file or folder `target`; when it isn't there, `make(path)` writes it under another name first."""
    if target.exists():
        return target
    say(f"converting the model to {target.name}, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".*.part-{target.name}"):
        if not alive(int(left.name.split(".")[1])):  # its maker was killed
            remove(left)
    part = target.with_name(f".{os.getpid()}.part-{target.name}")
    try:
        make(part)
        os.replace(part, target)
    finally:
        remove(part)
    return target


def remove(path: Path) -> None:
    """A file, a folder, or nothing."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process of this number runs, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
