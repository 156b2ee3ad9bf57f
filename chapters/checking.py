"""Check the reader's answers: run an exercise's tests and say what a good teacher would say."""

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from rich.console import Console

from chapters import python_path
from chapters.exercises import Book, Exercise, Module, id_key, reader_text
from chapters.progress import Progress
from chapters.reach import reach
from chapters.regions import BookError, Region, find_regions
from chapters.views import digest

LIMIT_S = 900
PLAIN_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the installed plugins take seconds to import
STYLE = {"done": "green", "not yet": "red", "to do": "yellow"}


@dataclass
class Result:
    """What the tests say of one exercise."""

    exercise: Exercise
    status: str  # "done" | "not yet" | "to do"
    lines: list[str] = field(default_factory=list)
    traceback: str = ""
    printed: list[str] = field(default_factory=list)  # the last lines that the failing test printed
    unseen: int = 0  # how many lines came before them


@dataclass
class Checked:
    """What came of a check: the results, and what kept others from being judged, or these from being remembered."""

    results: list[Result] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # files that can't be read or imported, and why
    unjudged: list[str] = field(default_factory=list)  # the exercises that weren't judged for that
    forgotten: str = ""

    @property
    def exit_status(self) -> int:
        """2 when a file is broken, 1 when an answer is wrong, else 0."""
        return 2 if self.broken else int(any(result.status == "not yet" for result in self.results))


def run_tests(book: Book, chapter: int, ids: list[str]) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Run the tests of some exercises of one chapter in a process of its own.

    Returns each test's outcome, and for each exercise that has tests which can't be imported, the files at fault.
    Raises BookError when that is no file of the reader's.

    BOOK_RESULTS names a file of outcomes to take instead: `test-solved` has just run those very tests.
    """
    if recorded := os.environ.get("BOOK_RESULTS"):
        outcomes = json.loads(Path(recorded).read_text(encoding="utf-8"))
        return [outcome for outcome in outcomes if outcome["exercise"] in ids], {}
    for module in book.chapter_modules(chapter):  # Python takes a file of the same second and size for the same file
        with suppress(OSError):
            Path(cache_from_source(str(module.view))).unlink()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            f"--results={file}",
            *(f"--exercise={exercise_id}" for exercise_id in ids),
            *book.test_files(chapter, ids),
        ]
        try:
            run = subprocess.run(
                command,
                cwd=book.root,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                env=os.environ | PLAIN_PYTEST | {"PYTHONPATH": python_path(book.root)},
            )
        except subprocess.TimeoutExpired:
            raise BookError(f"the tests of chapter {chapter} ran for more than {LIMIT_S} s and were stopped") from None
        uncollected = set(re.findall(r"ERROR collecting (\S.*\.py)", run.stdout))
        ran = file.exists() and run.returncode in (0, 1, 5)
        broken = import_errors(book, chapter) if uncollected or not ran else []
        if not broken and (uncollected or not ran):
            raise BookError(f"the tests of chapter {chapter} could not run:\n{run.stdout[-4000:]}{run.stderr[-2000:]}")
        if not ran:
            raise BookError("\n".join(broken))
        named = [marked for test, marked in book.test_markers(chapter).items() if book.relative(test) in uncollected]
        unjudged = set(ids) & {exercise_id for marked in named for exercise_id in marked}
        return json.loads(file.read_text(encoding="utf-8")), dict.fromkeys(unjudged, broken)


def import_errors(book: Book, chapter: int) -> list[str]:
    """Why a chapter's files can't be read or imported, a line with its place for each that can't."""
    code = (
        "import importlib, sys, traceback\n"
        "try: importlib.import_module(sys.argv[1])\n"
        "except BaseException as error:\n"
        "    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == sys.argv[2]]\n"
        "    place = f':{frames[-1].lineno}' if frames else ''\n"
        "    print(f'{sys.argv[3]}{place}: {type(error).__name__}: {error}')"
    )
    found = []
    for module in book.chapter_modules(chapter):
        try:
            reader_text(module, book)
        except BookError as error:
            found.append(str(error))
            continue
        run = subprocess.run(
            [sys.executable, "-c", code, module.view_name, str(module.view), book.relative(module.view)],
            cwd=book.root,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": python_path(book.root)},
        )
        if run.stdout.strip():
            found.append(f"the file can't be imported: {run.stdout.strip().splitlines()[-1]}")
    return found


def check(what: str | None, book: Book, progress: Progress) -> Checked:
    """Check one exercise ("9.4"), a chapter ("9") or all, and remember the outcome. Raises BookError.

    A file that is broken doesn't keep those that aren't from being checked.
    """
    chosen = book.select(what)
    checked = Checked()
    now: dict[str, str] = {}  # exercise -> digest of its body
    for chapter in sorted({exercise.chapter for exercise in chosen}):
        here = [exercise for exercise in chosen if exercise.chapter == chapter]
        bodies: dict[str, Region] = {}
        for module in dict.fromkeys(exercise.module for exercise in here):
            try:
                bodies |= module_bodies(book, module)
            except BookError as error:
                checked.broken.append(str(error))
        now |= {exercise_id: digest(region.body) for exercise_id, region in bodies.items()}
        ready = [e.id for e in here if e.id in bodies and not bodies[e.id].is_todo]
        outcomes, unjudged = run_tests(book, chapter, ready) if ready else ([], {})
        checked.broken += [why for reasons in unjudged.values() for why in reasons]
        for exercise in here:
            if exercise.id in unjudged or exercise.id not in bodies:
                checked.unjudged.append(exercise.id)
                continue
            own = [outcome for outcome in outcomes if outcome["exercise"] == exercise.id]
            region = bodies[exercise.id]
            file = book.relative(exercise.module.view)
            if region.is_todo:
                result = Result(exercise, "to do", [f"{file}:{region.body_first}"])
                progress.checked.pop(exercise.id, None)
            else:
                body = [f"{file}:{line}" for line in range(region.body_first, region.last + 1)]
                result = judge(exercise, own, body)
                if result.status == "to do":
                    progress.checked.pop(exercise.id, None)
                else:
                    progress.checked[exercise.id] = {"status": result.status, "digest": now[exercise.id]}
            checked.results.append(result)
    checked.broken = list(dict.fromkeys(checked.broken))
    name_culprits(checked.results, book, progress, now)
    try:
        progress.save()
    except BookError as error:  # in a folder that can't be written a verdict is a verdict, too
        checked.forgotten = f"not remembered: {error}"
    return checked


def name_culprits(results: list[Result], book: Book, progress: Progress, now: dict[str, str]) -> None:
    """A wrong answer may be right, and use an earlier one of its file that is wrong: say which one that could be.

    now: exercise -> digest of its present body. What was found out about another body says nothing.
    """
    for result in results:
        earlier = [
            exercise_id
            for exercise_id, last in progress.checked.items()
            if last["status"] == "not yet"
            and last["digest"] == now.get(exercise_id)
            and book.exercises[exercise_id].module == result.exercise.module
            and id_key(exercise_id) < id_key(result.exercise.id)
        ]
        if result.status == "not yet" and earlier:
            reached = reach(result.exercise, book)
            used = [id_ for id_ in sorted(earlier, key=id_key) if set(book.exercises[id_].title.split(".")) <= reached]
            if used:
                result.lines.insert(-1, f"or is it {' or '.join(used)}? not right yet, and maybe used here")


def module_bodies(book: Book, module: Module) -> dict[str, Region]:
    """Exercise id -> the region in one reader's file. Raises BookError when the file is broken."""
    return {region.id: region for region in find_regions(reader_text(module, book), book.relative(module.view))}


def judge(exercise: Exercise, outcomes: list[dict[str, Any]], body: list[str]) -> Result:
    """Turn an exercise's test outcomes into one result: the first rejection speaks, and an error is named beside it.
    A name that doesn't exist comes before all else: nothing is as easy to mend.

    body: the places of the answer's lines. An error is shown where it passed through them: what was called from there
    may be right, and have been handed the wrong thing.
    """
    hint = f"python -m chapters hint {exercise.id}"
    rejected = [outcome for outcome in outcomes if outcome["outcome"] == "rejected"]
    crashed = [outcome for outcome in outcomes if outcome["outcome"] == "crashed"]
    unknown = [outcome for outcome in crashed if outcome["detail"].startswith(("NameError:", "AttributeError: module"))]
    if failed := unknown or rejected or crashed:
        first = failed[0]
        error = [f"and in another test: {crashed[0]['detail']}"] if rejected and crashed else []
        if error and first["detail"].startswith(crashed[0]["detail"].split(":")[0] + ":"):
            error = []  # the same kind of error, and this time with its cause
        passed = [place for place in first.get("places", []) if place in body]
        where = (first["outcome"] == "crashed" and (passed[0] if passed else first["place"])) or body[0]
        return Result(
            exercise,
            "not yet",
            [*filter(None, (first["detail"], first["because"])), *error, f"{where}      {hint}"],
            first.get("traceback", first["test"]),
            first.get("printed", []),
            first.get("unseen", 0),
        )
    blocked = [outcome for outcome in outcomes if outcome["outcome"] == "todo"]
    if any(outcome["todo"] == exercise.id for outcome in blocked):
        return Result(exercise, "to do", [f"the line 'raise Todo(...)' still runs; remove it: {blocked[0]['place']}"])
    if blocked:
        return Result(
            exercise, "to do", [f"written, but its tests need {blocked[0]['todo']} first: {blocked[0]['place']}"]
        )
    if not any(outcome["outcome"] == "passed" for outcome in outcomes):
        skipped = outcomes[0]["detail"] if outcomes else "it has no tests"
        return Result(exercise, "to do", [f"not judged: {skipped}"])
    return Result(exercise, "done")


def print_results(results: list[Result], console: Console, tracebacks: bool = False) -> None:
    """One block an exercise, as the book shows them."""
    for result in results:
        title = f"{result.exercise.id}  {result.exercise.title}"
        console.print(f"{title:<66} [{STYLE[result.status]}]{result.status}[/]", highlight=False, soft_wrap=True)
        for line in result.lines:
            for part in line.splitlines():
                console.print(f"     {part}", highlight=False, markup=False, soft_wrap=True)
        if result.printed:
            left_out = f" (the last {len(result.printed)} lines; {result.unseen} came before)" if result.unseen else ""
            console.print(f"     printed in this check{left_out}:", highlight=False, soft_wrap=True)
            for line in result.printed:
                console.print(f"     | {line}", highlight=False, markup=False, soft_wrap=True)
        if tracebacks and result.traceback:
            console.print(result.traceback, highlight=False, markup=False, soft_wrap=True)
    if len(results) > 1:
        counts = {status: sum(r.status == status for r in results) for status in STYLE}
        console.print("\n" + " · ".join(f"{count} {status}" for status, count in counts.items()), highlight=False)


def print_checked(checked: Checked, console: Console, tracebacks: bool = False) -> None:
    """All that came of a check: the results, then the files that are broken."""
    print_results(checked.results, console, tracebacks)
    for problem in checked.broken:
        console.print(problem, style="red", highlight=False, markup=False, soft_wrap=True)
    if checked.broken and checked.results:
        console.print(f"not checked for that: {', '.join(checked.unjudged)}", highlight=False, soft_wrap=True)
    if checked.forgotten:
        console.print(checked.forgotten, style="red", highlight=False, markup=False, soft_wrap=True)


def check_and_print(what: str | None) -> None:
    """The notebook's check: the same words as the command's."""
    book = Book()
    console = Console(force_jupyter=False, force_terminal=False, width=110)
    try:
        print_checked(check(what, book, Progress(book.root)), console)
    except BookError as error:
        console.print(str(error), highlight=False, markup=False)
