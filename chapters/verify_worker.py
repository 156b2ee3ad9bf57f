"""Runs a chapter's tests on every variant of its modules (stub, answer, each mistake) in one process; prints JSON.

Usage: python -m chapters.verify_worker CHAPTER (called by `python -m chapters verify`).
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from chapters.exercises import Book, Exercise
from chapters.regions import fill, stub
from chapters.solutions import read_solutions
from chapters.variants import Variants
from chapters.views import view

SECONDS = 20  # for one test of a wrong answer
# A chapter has some fifty variants, so that what pytest does once a run counts: no search for garbage at its end, and
# no tracebacks, which nobody reads here.
LEAN = ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:threadexception", "--tb=line")


def run_variant(book: Book, chapter: int, exercise_id: str, files: list[str], mistake: bool) -> list[dict[str, Any]]:
    """Run one exercise's tests on what `Variants` serves now. Returns each test's outcome.

    files: those that hold its tests. Of a mistake's tests, none is run after the one that rejects it.
    """
    folder = book.tests(chapter)
    for name in list(sys.modules):  # test files and the modules under test are imported anew
        file = getattr(sys.modules[name], "__file__", None) or ""
        if f"{name}.".startswith(f"chapters.{book.folders[chapter].name}.") or file.startswith(str(folder)):
            del sys.modules[name]
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pytest.main(
                [
                    "-q",
                    "--no-header",
                    *LEAN,
                    f"--results={results}",
                    f"--exercise={exercise_id}",
                    f"--exercise-seconds={SECONDS}",
                    *(["--until-rejected"] if mistake else []),
                    *files,
                ]
            )
        if code not in (0, 1, 5):
            raise SystemExit(f"pytest ended with {code} on exercise {exercise_id}:\n{output.getvalue()[-3000:]}")
        return json.loads(results.read_text(encoding="utf-8"))


def main(chapter: int) -> dict[str, Any]:
    """All outcomes of a chapter: {exercise id: {"stub": [...], "answer": [...], "mistakes": [[...], ...]}}."""
    book = Book(Path.cwd())
    variants = Variants()
    sys.meta_path.insert(0, variants)
    answered: dict[str, tuple[str, str]] = {}
    bodies = {e.id: e.region.body for e in book.select(str(chapter))}
    for module in book.chapter_modules(chapter):
        file = str(module.view)
        answered[module.view_name] = (file, fill(view(module, book), bodies, file))
    page = book.solutions(chapter) / "README.md"
    solutions = read_solutions(page, book) if page.exists() else {}
    outcomes: dict[str, Any] = {}
    for exercise in book.select(str(chapter)):
        files = book.test_files(chapter, [exercise.id])

        def run(
            body: str, mistake: bool = False, exercise: Exercise = exercise, files: list[str] = files
        ) -> list[dict[str, Any]]:
            name = exercise.module.view_name
            file, source = answered[name]
            text = fill(source, {exercise.id: body}, file)
            variants.sources = answered | {name: (file, text)}
            try:
                compile(text, file, "exec")
            except SyntaxError as error:
                return [{"exercise": exercise.id, "test": "compile", "outcome": "crashed", "detail": str(error)}]
            return run_variant(book, chapter, exercise.id, files, mistake)

        mistakes = solutions[exercise.id].mistakes if exercise.id in solutions else []
        outcomes[exercise.id] = {
            "stub": run(stub(exercise.id)),
            "answer": run(exercise.region.body),
            "mistakes": [run(mistake.body, mistake=True) for mistake in mistakes],
        }
    return outcomes


if __name__ == "__main__":
    os.environ["BOOK_REFERENCE"] = "1"
    print(json.dumps(main(int(sys.argv[1]))))
