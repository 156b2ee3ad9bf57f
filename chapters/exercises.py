"""The book's exercises: where each one's source, reader's file, tests and solution stand."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from chapters import ROOT
from chapters.regions import BookError, MissingEnd, Region, RegionError, find_regions


@dataclass(frozen=True)
class Module:
    """A module of `shared/` that holds exercises, and the reader's file that mirrors it."""

    name: str  # shared.inference.kv_cache
    source: Path  # shared/inference/kv_cache.py
    view: Path  # chapters/ch09_kv_cache/kv_cache.py
    chapter: int

    @property
    def view_name(self) -> str:
        """The reader's module's dotted name."""
        return ".".join(("chapters", self.view.parent.name, self.view.stem))


@dataclass(frozen=True)
class Exercise:
    """One exercise."""

    id: str
    title: str  # the function or method it stands in
    module: Module
    region: Region  # with the reference's body

    @property
    def chapter(self) -> int:
        """The chapter's number, 9 of "9.4"."""
        return self.module.chapter


class Book:
    """All chapters, modules and exercises below one root folder."""

    def __init__(self, root: Path = ROOT):
        self.root = root

    @cached_property
    def folders(self) -> dict[int, Path]:
        """Chapter number -> its folder in chapters/."""
        found = {}
        for folder in sorted((self.root / "chapters").glob("ch[0-9][0-9]_*")):
            if folder.is_dir():
                found[int(folder.name[2:4])] = folder
        return found

    @cached_property
    def modules(self) -> list[Module]:
        """Every module of shared/ that holds exercises, by chapter. Raises BookError for a broken one."""
        found = []
        for source in sorted((self.root / "shared").rglob("*.py")):
            text = source.read_text(encoding="utf-8")
            if "# exercise " not in text and "# end" not in text:
                continue
            regions = find_regions(text, self.relative(source))
            if not regions:
                continue
            chapters = {int(region.id.split(".")[0]) for region in regions}
            if len(chapters) > 1:
                raise BookError(
                    f"{self.relative(source)}: exercises of chapters {sorted(chapters)} in one module; "
                    "a module belongs to one chapter"
                )
            chapter = chapters.pop()
            if chapter not in self.folders:
                raise BookError(
                    f"{self.relative(source)}: exercise {regions[0].id} has no folder chapters/ch{chapter:02}_*"
                )
            name = ".".join(source.relative_to(self.root).with_suffix("").parts)
            found.append(Module(name, source, self.folders[chapter] / source.name, chapter))
        views: dict[Path, Module] = {}
        for module in found:
            if module.view in views:
                raise BookError(
                    f"{self.relative(module.source)} and {self.relative(views[module.view].source)} "
                    "would both become " + self.relative(module.view)
                )
            views[module.view] = module
        return sorted(found, key=lambda module: (module.chapter, module.view.name))

    @cached_property
    def exercises(self) -> dict[str, Exercise]:
        """Exercise id -> exercise, in the book's order."""
        found: dict[str, Exercise] = {}
        for module in self.modules:
            text = module.source.read_text(encoding="utf-8")
            for region in find_regions(text, self.relative(module.source)):
                if region.id in found:
                    raise BookError(
                        f"{self.relative(module.source)}:{region.first}: exercise {region.id} stands in "
                        f"{self.relative(found[region.id].module.source)} too"
                    )
                title = enclosing_function(text, region, self.relative(module.source))
                found[region.id] = Exercise(region.id, title, module, region)
        return dict(sorted(found.items(), key=lambda pair: id_key(pair[0])))

    def select(self, what: str | None) -> list[Exercise]:
        """The exercises meant by "9" or "9.4" (None: all). Raises BookError for one that doesn't exist."""
        if what is None:
            return list(self.exercises.values())
        if re.fullmatch(r"\d+", what):
            chosen = [exercise for exercise in self.exercises.values() if exercise.chapter == int(what)]
            if not chosen:
                known = ", ".join(str(number) for number in sorted({e.chapter for e in self.exercises.values()}))
                raise BookError(f"no chapter {what} with exercises; there are: {known}")
            return chosen
        if what in self.exercises:
            return [self.exercises[what]]
        if not re.fullmatch(r"\d+\.\d+", what):
            raise BookError(f"{what!r} is neither a chapter (1) nor an exercise (1.4)")
        chapter = [e for e in self.exercises if e.split(".")[0] == what.split(".")[0]]
        raise BookError(
            f"no exercise {what}; "
            + (
                f"chapter {what.split('.')[0]} has {', '.join(chapter)}"
                if chapter
                else "python -m chapters lists what there is"
            )
        )

    def chapter_modules(self, chapter: int) -> list[Module]:
        """The modules of one chapter."""
        return [module for module in self.modules if module.chapter == chapter]

    def tests(self, chapter: int) -> Path:
        """The folder of the chapter's tests."""
        return self.root / "tests" / self.folders[chapter].name

    def test_markers(self, chapter: int) -> dict[Path, set[str]]:
        """The chapter's test files, in order, with the exercises that each one names."""
        marker = re.compile(r"""\bexercise\(["'](\d+\.\d+)["']\)""")
        files = sorted(self.tests(chapter).glob("test_*.py"))
        return {file: set(marker.findall(file.read_text(encoding="utf-8"))) for file in files}

    def test_files(self, chapter: int, ids: Iterable[str]) -> list[str]:
        """The test files that name one of these exercises; the whole folder when none does."""
        wanted = set(ids)
        found = [str(file) for file, named in self.test_markers(chapter).items() if named & wanted]
        return found or [str(self.tests(chapter))]

    def solutions(self, chapter: int) -> Path:
        """The folder of the chapter's answers and its executed notebook."""
        return self.root / "solutions" / self.folders[chapter].name

    def relative(self, path: Path) -> str:
        """A path as the reader types it, from the repository's root."""
        return path.relative_to(self.root).as_posix()


def id_key(exercise_id: str) -> tuple[int, int]:
    """Sorts 9.10 behind 9.9."""
    chapter, number = exercise_id.split(".")
    return int(chapter), int(number)


@lru_cache(maxsize=1)  # asked for once an exercise, file by file
def parse(text: str, file: str) -> ast.Module:
    """The file's syntax tree. Raises RegionError with the line of a syntax error."""
    try:
        compile(text, file, "exec", dont_inherit=True)  # finds more than ast.parse does: a return outside a function
        return ast.parse(text)
    except SyntaxError as error:
        quoted = f": {error.text.strip()}" if error.text else ""
        raise RegionError(file, error.lineno or 1, f"Python can't read this line ({error.msg}){quoted}") from None


def enclosing_function(text: str, region: Region, file: str) -> str:
    """The dotted name of the innermost function around a region, for instance `KVCache.update`."""
    best: list[str] = []

    def visit(node: ast.AST, path: list[str]) -> None:
        nonlocal best
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if child.lineno < region.first and (child.end_lineno or 0) >= region.body_first:
                    inner = [*path, child.name]
                    if not isinstance(child, ast.ClassDef):
                        best = inner
                    visit(child, inner)
            else:
                visit(child, path)

    visit(parse(text, file), [])
    if not best:
        raise RegionError(file, region.first, f"exercise {region.id} stands outside any function")
    return ".".join(best)


def raw_text(module: Module, book: Book) -> str:
    """The reader's file as it is. Raises BookError when it is missing or not text."""
    file = book.relative(module.view)
    try:
        return module.view.read_text(encoding="utf-8-sig")  # some editors put a BOM in front
    except FileNotFoundError:
        raise BookError(f"{file} is missing; bring it back: python -m chapters build") from None
    except UnicodeDecodeError as error:
        raise BookError(f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def reader_text(module: Module, book: Book) -> str:
    """The reader's file, checked: it exists, Python can read it, and it still has its markers. Raises BookError."""
    text = raw_text(module, book)
    check_markers(text, module, book)
    parse(text, book.relative(module.view))
    return text


def check_markers(text: str, module: Module, book: Book) -> None:
    """Raise BookError when a marker is missing, doubled or misspelt; the message names the smallest repair."""
    file = book.relative(module.view)
    wanted = [exercise for exercise in book.exercises.values() if exercise.module == module]
    gone = [e.region for e in wanted if not re.search(rf"^\s*# exercise {re.escape(e.id)}: ", text, re.MULTILINE)]
    compare = f"what you were given: python -m chapters diff {module.chapter}"
    try:
        present = {region.id for region in find_regions(text, file)}
    except MissingEnd as error:
        over = f"or start this exercise over, yours is kept: python -m chapters reset {error.exercise_id}"
        raise BookError(f"{error}; {over}") from None
    except RegionError as error:
        line = f"the line that is missing: '{gone[0].marker}'; " if gone else ""
        raise BookError(f"{error}; {line}{compare}") from None
    if gone:
        problem = f"the line '{gone[0].marker}' is gone, and its '# end' with it; put them back around the body"
        raise BookError(f"{file}: {problem}; {compare}")
    for extra in sorted(present - {exercise.id for exercise in wanted}):
        raise BookError(f"{file}: exercise {extra} does not belong in this file")
