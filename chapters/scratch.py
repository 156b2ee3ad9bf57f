"""A scratch copy of the repository, and the reader's commands typed into it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chapters import python_path
from chapters.exercises import Book
from chapters.regions import BookError
from chapters.views import view, write_atomically

LINKED = ("models", "corpus", "native")  # below data/: made once, by the finished code, for all copies
SKIPPED = {".venv", ".git", ".backup", "__pycache__", ".progress.json", "results", "mnist", "peers", *LINKED}
TYPED = "import json, sys, chapters.scratch as s; [s.command(*words) for words in json.loads(sys.argv[1])]"


@contextmanager
def scratch_copy(book: Book) -> Iterator[Path]:
    """A temporary copy in which nothing is done yet. What takes long to make is shared by links."""
    with tempfile.TemporaryDirectory(prefix="scratch-") as scratch:
        root = Path(scratch) / "book"
        files = [Path(name) for name in book_files(book.root)]
        for folder in {path.parent for path in files}:
            (root / folder).mkdir(parents=True, exist_ok=True)
            compiled = book.root / folder / "__pycache__"
            if compiled.is_dir():  # good as long as the files' times are the same
                shutil.copytree(compiled, root / folder / "__pycache__", ignore=shutil.ignore_patterns("*pytest*"))
        for path in files:
            shutil.copy2(book.root / path, root / path)
        (root / "data").mkdir(exist_ok=True)
        for name in LINKED:
            (book.root / "data" / name).mkdir(parents=True, exist_ok=True)
            (root / "data" / name).symlink_to(book.root / "data" / name)
        copy = Book(root)
        for module in copy.modules:  # the reader's own answers stay out of it
            write_atomically(module.view, view(module, copy))
        yield root


def book_files(root: Path) -> list[str]:
    """The repository's files, without what git ignores."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        return [name for name in listed if name and (root / name).is_file()]
    except (OSError, subprocess.CalledProcessError):  # a downloaded archive has no git
        return [
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and not SKIPPED & set(path.relative_to(root).parts)
        ]


def environment(root: Path) -> dict[str, str]:
    """The environment for a process that runs in the scratch copy: its own packages come first."""
    return os.environ | {"PYTHONPATH": python_path(root), "PYTHONDONTWRITEBYTECODE": ""}


def solve(root: Path, outcomes: Path) -> None:
    """Do all of a copy's exercises as a reader would: `answer N --write`, then `use N`, chapter by chapter.

    outcomes: what came of the exercises' tests, for `use` to go by. Raises BookError when a command fails.
    """
    chapters = sorted({module.chapter for module in Book(root).modules})
    typed(root, [words for n in chapters for words in (["answer", f"{n}", "--write"], ["use", f"{n}"])], outcomes)


def typed(root: Path, commands: Iterable[list[str]], outcomes: Path) -> None:
    """Run `python -m chapters …` in a copy, one command after another, in one process of their own."""
    run = subprocess.run(
        [sys.executable, "-c", TYPED, json.dumps([*commands])],
        cwd=root,
        env=environment(root) | {"BOOK_RESULTS": str(outcomes), "BOOK_REFERENCE": ""},
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        raise BookError(f"a command failed in the scratch copy:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")


def command(*words: str) -> None:
    """Run `python -m chapters …` in this process. Raises SystemExit when it fails, having said why."""
    from chapters.__main__ import main

    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
