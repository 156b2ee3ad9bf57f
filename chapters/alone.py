"""Chapters alone, in a scratch copy: whole and in use, then half done, with all other parts the reference's.

Usage: python -m chapters.alone FOLDER GROUP...   (called by `python -m chapters test-solved`)
A GROUP is one chapter, 9, or several, 9,10,12; FOLDER/GROUP.json becomes what its exercises' tests said.

Python needs longer to import torch and the rest than a chapter's tests take. So each step runs in a fork of this
process, which has imported them, and nothing of the book but what makes the copies.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from chapters import python_path
from chapters.exercises import Book
from chapters.scratch import command, scratch_copy

PARTS = "tests/book/test_solved_parts.py"
# what all those forks would import, each for itself
SHARED = ("torch", "matplotlib.pyplot", "sklearn.datasets", "scipy.stats", "hypothesis", "pytest", "fastapi", "uvicorn",
          "httpx", "typer", "tokenizers", "safetensors", "gguf", "prometheus_client")  # fmt: skip


def main(keep: Path, groups: list[str]) -> int:
    """Do one group after another. Prints a line for each, and all that it printed for one that fails."""
    if len(groups) > 1 and sys.platform == "linux":  # on macOS a process that has begun threads shouldn't fork
        for name in SHARED:
            import_module(name)
    failed = 0
    for group in groups:
        began = time.monotonic()
        with scratch_copy(Book()) as root:
            log = root.parent / "log"
            status = forked(partial(do_chapters, root, log, group, keep / f"{group}.json"))
            done = "failed" if status else "passed"
            print(f"chapter {group} alone, whole and half done: {done}, {time.monotonic() - began:.1f} s", flush=True)
            if status:
                print(log.read_text(), flush=True)
        failed = failed or status
    return failed


def do_chapters(root: Path, log: Path, group: str, outcomes: Path) -> None:
    """Write all answers, use them, take every other one back; test the exercises and what is in use."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    forget_the_book()
    os.chdir(root)
    sys.path.insert(0, str(root))
    os.environ |= {"PYTHONPATH": python_path(root), "BOOK_RESULTS": str(outcomes), "BOOK_REFERENCE": ""}
    book, chapters = Book(root), group.split(",")
    parts = [PARTS] if Path(PARTS).exists() else []  # a book may have no server yet
    folders = [str(book.tests(int(chapter))) for chapter in chapters]
    for chapter in chapters:
        command("answer", chapter, "--write")
    run_tests("--judges-only", f"--results={outcomes}", *folders)
    for chapter in chapters:  # goes by those outcomes
        command("use", chapter)
    if len(chapters) > 1 and parts:
        run_tests(*parts)  # one chapter's whole parts are the same code as the half's below
    for chapter in chapters:
        for exercise in book.select(chapter)[1::2]:
            command("reset", exercise.id)
    run_tests("--judges-only", "-k", "not served_by_a_process", *folders, *parts)


def run_tests(*arguments: str) -> None:
    """Run tests, in a fork. Ends this process when one fails."""

    def run() -> int:
        forget_the_book()
        import pytest

        return int(pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *arguments]))

    if forked(run):
        sys.exit(f"pytest {' '.join(arguments)}: that failed")


def forget_the_book() -> None:
    """The book's modules are imported anew from now on, wherever they then stand and whosever they then are."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("chapters", "shared", "tests"):
            del sys.modules[name]


def forked(step: Callable[[], int | None]) -> int:
    """Run a step in a child process. Returns its status: 1 when it raised."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        status = step() or 0
    except SystemExit as end:
        print(end)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
