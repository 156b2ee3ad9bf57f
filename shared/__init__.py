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
import traceback
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
YOURS = "your part "  # how what is said of a fault in a reader's part begins
RUNNING: dict[str, Path] = {}  # the file name of code that runs, as tracebacks have it -> the reader's file it is of


def parts_in_use() -> dict[str, Path]:
    """Finished module's name -> the reader's file that stands in for it."""
    if os.environ.get("BOOK_REFERENCE"):
        return {}
    try:
        chosen = json.loads((ROOT / ".progress.json").read_text(encoding="utf-8")).get("use", {})
        return {name: ROOT / file for name, file in chosen.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise ImportError(
            f".progress.json can't be read ({error}), so it is unknown which parts are yours; to run on the reference "
            "(it holds the ticks, the hints shown and what is in use, and no code): "
            "mv .progress.json .progress.json.broken"
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
        raise ImportError(f"{YOURS}{shown}, in use for {name}, can't be loaded: {error}; {_remedy(file)}") from error


def _chapter(file: Path) -> int:
    return int(file.parent.name[2:4])


def _remedy(file: Path) -> str:
    return f"mend it, or go back to the reference: python -m chapters use --reference {_chapter(file)}"


class ReaderLoader(Loader):
    """Loads the reader's file under the finished module's name."""

    def __init__(self, file: Path):
        self.file = file

    def create_module(self, spec: ModuleSpec) -> None:
        """None, which has Python make an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the reader's text, completed from the reference, under the finished module's name."""
        source, filled = merged_source(module.__name__, self.file)
        filename = str(self.file)
        if filled:  # the lines no longer match the file's, so tracebacks quote the text that really runs
            filename = f"<{self.file.relative_to(ROOT).as_posix()} with {', '.join(filled)} from the reference>"
            linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        RUNNING[filename] = self.file
        exec(compile(source, filename, "exec"), module.__dict__)


class ReaderFinder(MetaPathFinder):
    """Finds the modules that the reader has chosen to run on parts of their own."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The reader's file for a module of shared/ that they use their own part for; else None."""
        file = parts_in_use().get(name) if name.startswith("shared.") else None
        if file is None:
            return None
        return importlib.util.spec_from_file_location(name, file, loader=ReaderLoader(file))


def _parts() -> Iterator[tuple[str, Path, list[str]]]:
    """Each part in use: the finished module's name, the reader's file, and what is filled in from the reference."""
    for name, file in sorted(parts_in_use().items()):
        yield name, file, merged_source(name, file)[1]


def reader_parts() -> list[str]:
    """A line for each part of the running program that is the reader's own."""
    lines = []
    for name, file, filled in _parts():
        rest = f" ({', '.join(filled)} still from the reference)" if filled else ""
        lines.append(f"{name}: yours, {file.relative_to(ROOT).as_posix()}{rest}")
    return lines


def reader_chapters() -> list[str]:
    """The same with one line for each chapter: `chapter 12: yours (sampler, scheduler; 12.10 still from …)`."""
    names: dict[int, list[str]] = {}
    open_ids: dict[int, list[str]] = {}
    for _, file, filled in _parts():
        names.setdefault(_chapter(file), []).append(file.stem)
        open_ids.setdefault(_chapter(file), []).extend(filled)
    lines = []
    for chapter, parts in sorted(names.items()):
        ids = sorted(open_ids[chapter], key=lambda id: int(id.partition(".")[2]))
        rest = f"; {', '.join(ids)} still from the reference" if ids else ""
        lines.append(f"chapter {chapter}: yours ({', '.join(sorted(parts))}{rest})")
    return lines


def in_words(error: BaseException) -> str:
    """An exception's kind and message; where it came out of a part of the reader's, which one, and what to do."""
    said = ": ".join(filter(None, (type(error).__name__, str(error))))
    where = own_line(error)
    if where is None:
        return str(error) if str(error).startswith(YOURS) else said
    file, number = where
    return f"{YOURS}{file.relative_to(ROOT).as_posix()}:{number} raised {said}; {_remedy(file)}"


def own_line(error: BaseException) -> tuple[Path, int] | None:
    """Where an exception came out of a part of the reader's: their file, and the line in it. None where it didn't."""
    if str(error).startswith(YOURS):  # another part, which this one imports: it has said so itself
        return None
    for frame, number in reversed([*traceback.walk_tb(error.__traceback__)]):
        name = frame.f_code.co_filename
        own = _number_in(RUNNING[name], name, number) if name in RUNNING else None
        if own is not None:
            return RUNNING[name], own
    return None


def _number_in(file: Path, name: str, number: int) -> int | None:
    """The reader's number of a line of the text that runs; None for one that was filled in from the reference."""
    if name == str(file):
        return number
    try:
        theirs = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError):  # it was moved meanwhile
        return number
    ran = [line.rstrip("\n") for line in linecache.getlines(name)]
    for start, own, size in SequenceMatcher(None, ran, theirs, autojunk=False).get_matching_blocks():
        if start < number <= start + size:
            return own + number - start
    return None


sys.meta_path.insert(0, ReaderFinder())
