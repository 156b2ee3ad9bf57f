"""Write what is generated from `shared/`: the readers' files and the answers in the solution pages."""

import ast
import difflib
import hashlib
import os
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from chapters import notebooks
from chapters.exercises import Book, Module, parse
from chapters.regions import BookError, RegionError, find_regions, skeleton
from chapters.solutions import fill_answers

HEADER = re.compile(r"\A# Yours to finish\. Generated from (?P<source>\S+) \(version (?P<digest>[0-9a-f]{12})\)\.\n")


def view(module: Module, book: Book) -> str:
    """The reader's file for a module: the same code with every exercise's body still to do."""
    source = book.relative(module.source)
    text = skeleton(module.source.read_text(encoding="utf-8"), source)
    lines = text.splitlines()
    lines.insert(import_line(text, source) - 1, "from chapters import Todo")
    rest = "\n".join(lines) + "\n"
    return f"# Yours to finish. Generated from {source} (version {digest(rest)}).\n" + rest


def digest(text: str) -> str:
    """A text's fingerprint, short enough for a file's first line."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def import_line(text: str, file: str) -> int:
    """The line (from 1) where an import may be put: before the first import that isn't from __future__."""
    tree = parse(text, file)
    for node in tree.body:
        if isinstance(node, ast.Import) or isinstance(node, ast.ImportFrom) and node.module != "__future__":
            return node.lineno
    for node in tree.body:
        if not (
            isinstance(node, ast.ImportFrom) or isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return node.lineno
    return len(text.splitlines()) + 1


def is_edited(text: str) -> bool:
    """True when a reader's file is no longer as it was generated."""
    header = HEADER.match(text)
    return not header or digest(text[header.end() :]) != header["digest"]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that a kill at any moment leaves either the old one or the new one.

    Raises BookError when it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise BookError(f"{path}: can't be written: {error.strerror}") from None


def back_up(path: Path, book: Book) -> Path:
    """Keep a copy of a reader's file below .backup/ before it is overwritten. Returns the copy's path."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H%M%S_%f")
    copy = book.root / ".backup" / path.parent.name / f"{path.stem}_{stamp}{path.suffix}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
    return copy


def build(book: Book) -> list[str]:
    """Write every view that is out of step. A reader's edited file is left alone. Returns a line for each change."""
    done = []
    for module in book.modules:
        text, file = view(module, book), book.relative(module.view)
        old = module.view.read_text(encoding="utf-8") if module.view.exists() else None
        if old == text:
            continue
        if old is not None and is_edited(old):
            if outside_difference(old, text, file):
                done.append(
                    f"{file}: edited by you, left alone (python -m chapters reset {module.chapter} starts over)"
                )
            continue
        write_atomically(module.view, text)
        done.append(f"{file}: written")
    for chapter, folder in book.folders.items():
        reader, solved = folder / "notebook.ipynb", book.solutions(chapter) / "notebook.ipynb"
        if notebooks.differ(reader, solved, book) and (texts := notebooks.with_texts(reader, solved, book)):
            write_atomically(solved, texts)
            done.append(f"{book.relative(solved)}: its texts written")
    for page, fill in pages(book):
        old = page.read_text(encoding="utf-8")
        if (new := fill(old)) != old:
            write_atomically(page, new)
            done.append(f"{book.relative(page)}: written")
    return done


def pages(book: Book) -> list[tuple[Path, Callable[[str], str]]]:
    """The pages and pictures that are generated, whole or in part, each with what fills it in; those that exist."""
    from chapters import glossary, readme, scoreboard_picture, stack_picture  # the reader's commands don't need shared/

    found: list[tuple[Path, Callable[[str], str]]] = [
        (book.root / "README.md", lambda text: readme.fill(text, book)),
        (book.root / "chapters" / "GLOSSARY.md", lambda _: glossary.page(book)),
        (book.root / "solutions" / "stack.svg", lambda _: stack_picture.draw(book)),
        (book.root / "solutions" / "scoreboard.svg", lambda _: scoreboard_picture.draw(book.root)),
    ]
    for chapter in book.folders:
        found.append((book.solutions(chapter) / "README.md", partial(fill_answers, book=book, chapter=chapter)))
    return [(path, fill) for path, fill in found if path.exists()]


def outside_difference(reader: str, generated: str, file: str) -> int | None:
    """The first line (from 1, in the reader's file) that differs outside the bodies; None when only bodies differ."""
    try:
        blank = skeleton(reader, file)
    except RegionError as error:
        return error.line
    if blank == generated:
        return None
    matcher = difflib.SequenceMatcher(a=reader.splitlines(), b=generated.splitlines(), autojunk=False)
    bodies = {n for region in find_regions(reader, file) for n in range(region.body_first, region.last)}
    for tag, first, last, _, _ in matcher.get_opcodes():
        if tag != "equal" and not (last > first and set(range(first + 1, last + 1)) <= bodies):
            return first + 1
    return 1


def out_of_step(book: Book) -> list[str]:
    """What `build` would change, a line each. In a reader's working copy (it has a progress file) edits are fine."""
    problems = []
    readers_copy = (book.root / ".progress.json").exists()
    for module in book.modules:
        text, file = view(module, book), book.relative(module.view)
        if not module.view.exists():
            problems.append(f"{file}: missing")
            continue
        old = module.view.read_text(encoding="utf-8")
        if old == text or readers_copy and is_edited(old):
            continue
        line = outside_difference(old, text, file)
        if line is not None:
            problems.append(f"{file}:{line}: out of step with {book.relative(module.source)}")
    expected = {module.view for module in book.modules}
    for folder in book.folders.values():
        for path in sorted(folder.glob("*.py")):
            if path.name != "__init__.py" and path not in expected:
                problems.append(f"{book.relative(path)}: no module in shared/ holds these exercises")
    for chapter in book.folders:
        if not readers_copy:
            problems += notebooks.out_of_step(chapter, book)
    for page, fill in pages(book):
        text = page.read_text(encoding="utf-8")
        if fill(text) != text:
            problems.append(f"{book.relative(page)}: its generated part is out of step")
    return problems
