"""The finished components, by layer. A reader's own part, chosen with `python -m chapters use 9`, stands in for ours.

The choice is kept in `.progress.json` beside this folder: a finished module's name and the reader's file. The finder
below then loads the reader's file under the finished module's name. Exercises that are still to do in that file are
filled in from the reference, and `reader_parts` says so. BOOK_REFERENCE=1 switches the finder off.
"""

import importlib.util
import json
import linecache
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def parts_in_use() -> dict[str, Path]:
    """Finished module's name -> the reader's file that stands in for it."""
    if os.environ.get("BOOK_REFERENCE"):
        return {}
    try:
        chosen = json.loads((ROOT / ".progress.json").read_text(encoding="utf-8")).get("use", {})
        return {name: ROOT / file for name, file in chosen.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise ImportError(
            f".progress.json can't be read ({error}), so it is unknown which parts are yours; move it away "
            "to run on the reference"
        ) from None


def merged_source(name: str, file: Path) -> tuple[str, list[str]]:
    """The reader's source with what is still to do filled in from the reference, and the ids that were filled in.

    Raises ImportError when the reader's file is missing or can't be read as Python.
    """
    from chapters.regions import BookError, fill, find_regions

    shown = file.relative_to(ROOT).as_posix()
    reference = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    try:
        text = file.read_text(encoding="utf-8-sig")
        bodies = {r.id: r.body for r in find_regions(reference.read_text(encoding="utf-8"), reference.name)}
        open_ids = [region.id for region in find_regions(text, shown) if region.is_todo and region.id in bodies]
        compile(text, shown, "exec")
        return fill(text, {i: bodies[i] for i in open_ids}, shown), open_ids
    except (OSError, BookError, SyntaxError) as error:
        raise ImportError(
            f"your part {shown}, in use for {name}, can't be loaded: {error}; mend it, or go back to the "
            f"reference: python -m chapters use --reference {int(file.parent.name[2:4])}"
        ) from error


class ReaderLoader(Loader):
    """Loads the reader's file under the finished module's name."""

    def __init__(self, file: Path):
        self.file = file

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source, filled = merged_source(module.__name__, self.file)
        filename = str(self.file)
        if filled:  # the lines no longer match the file's, so tracebacks quote the text that really runs
            filename = f"<{self.file.relative_to(ROOT).as_posix()} with {', '.join(filled)} from the reference>"
            linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), module.__dict__)


class ReaderFinder(MetaPathFinder):
    """Finds the modules that the reader has chosen to run on parts of their own."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = parts_in_use().get(name) if name.startswith("shared.") else None
        if file is None:
            return None
        return importlib.util.spec_from_file_location(name, file, loader=ReaderLoader(file))


def reader_parts() -> list[str]:
    """A line for each part of the running program that is the reader's own."""
    lines = []
    for name, file in sorted(parts_in_use().items()):
        _, filled = merged_source(name, file)
        rest = f" ({', '.join(filled)} still from the reference)" if filled else ""
        lines.append(f"{name}: yours, {file.relative_to(ROOT).as_posix()}{rest}")
    return lines


sys.meta_path.insert(0, ReaderFinder())
