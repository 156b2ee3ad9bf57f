"""The book's contract: each stub is to do, each answer passes, each mistake is rejected, and there is help."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chapters import python_path
from chapters.checking import PLAIN_PYTEST
from chapters.exercises import Book, Exercise, id_key
from chapters.notebooks import read_cells
from chapters.regions import BookError
from chapters.solutions import Solution, read_solutions

MIN_MISTAKES = 2


@dataclass
class Verdict:
    """What `verify` found of one exercise; `problems` is empty when the contract is kept."""

    id: str
    title: str
    stub: str = "not run"  # "to do" when it is as it should be
    answer: str = "not run"  # "passes"
    mistakes: list[dict[str, Any]] = field(default_factory=list)  # {"title", "rejected", "message"}
    hint: bool = False
    problems: list[str] = field(default_factory=list)


def verify(
    book: Book, chapter: int | None, progress: Callable[[str], None] = lambda _: None
) -> tuple[list[Verdict], list[str]]:
    """Verify one chapter or all. Returns a verdict for each exercise, and the problems that belong to none."""
    chapters = sorted({exercise.chapter for exercise in book.exercises.values()})
    if chapter is not None:
        book.select(str(chapter))  # says which chapters there are, when this one doesn't exist
        chapters = [chapter]
    verdicts: list[Verdict] = []
    stray: list[str] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        # those with most mistakes first, so that none is left running alone at the end
        order = sorted(chapters, key=lambda n: -len(written(book.solutions(n) / "README.md")))
        runs = {number: pool.submit(run_worker, book, number) for number in order}
        for number in chapters:
            progress(f"chapter {number}")
            outcomes, problems = runs[number].result()
            found, loose = verify_chapter(book, number, outcomes)
            verdicts += found
            stray += loose + problems
    return verdicts, stray


def written(page: Path) -> str:
    """A page's text; empty when there is none."""
    return page.read_text(encoding="utf-8") if page.exists() else ""


def run_worker(book: Book, chapter: int) -> tuple[dict[str, Any], list[str]]:
    """Run all variants of a chapter's exercises in one process of their own."""
    environment = os.environ | {
        "PYTHONPATH": python_path(book.root),
        "BOOK_REFERENCE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # each test file is imported some fifty times
        **PLAIN_PYTEST,
    }
    run = subprocess.run(
        [sys.executable, "-m", "chapters.verify_worker", str(chapter)],
        cwd=book.root,
        env=environment,
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        return {}, [f"chapter {chapter}: the tests could not be run:\n{(run.stderr or run.stdout)[-3000:]}"]
    return json.loads(run.stdout.splitlines()[-1]), []


def verify_chapter(book: Book, chapter: int, outcomes: dict[str, Any]) -> tuple[list[Verdict], list[str]]:
    """Judge the outcomes of one chapter, and look for what is missing or orphaned."""
    page = book.solutions(chapter) / "README.md"
    shown = book.relative(page)
    exercises = book.select(str(chapter))
    ids = {exercise.id for exercise in exercises}
    stray: list[str] = []
    try:
        solutions = read_solutions(page, book)
    except BookError as error:
        solutions, stray = {}, [str(error)]
    headings, checks = notebook_places(book, chapter, stray)
    marked = set().union(*book.test_markers(chapter).values())
    for name, present in (
        (shown, set(solutions)),
        ("the notebook's headings", headings),
        ("the notebook's checks", checks),
        (f"tests/{book.folders[chapter].name}", marked),
    ):
        stray += [
            f"{name}: exercise {orphan} is orphaned: shared/ has no such region"
            for orphan in sorted(present - ids, key=id_key)
            if orphan.startswith(f"{chapter}.") or present is not headings
        ]
    verdicts = []
    for exercise in exercises:
        verdict = judge(exercise, solutions.get(exercise.id), outcomes.get(exercise.id, {}), shown)
        if exercise.id not in headings:
            verdict.problems.append(f"no heading '## {exercise.id} …' in the notebook")
        if exercise.id not in checks:
            verdict.problems.append(f'no cell check("{exercise.id}") in the notebook')
        verdicts.append(verdict)
    return verdicts, stray


def judge(exercise: Exercise, solution: Solution | None, outcomes: dict[str, Any], page: str) -> Verdict:
    """Hold one exercise against the contract."""
    verdict = Verdict(exercise.id, exercise.title)
    problems = verdict.problems
    if solution is None:
        problems.append(f"no section '### {exercise.id} …' in {page}")
    else:
        verdict.hint = bool(solution.hints)
        where = f"{page}:{solution.line}"
        if not solution.hints:
            problems.append(f"{where}: no hint ('**Hint 1.** …')")
        if not solution.why:
            problems.append(f"{where}: no reason ('**Why …** …')")
        if solution.answers != 1:
            problems.append(
                f"{where}: {solution.answers} answer blocks, one is needed (```python answer {exercise.id})"
            )
        if len(solution.mistakes) < MIN_MISTAKES:
            problems.append(f"{where}: {len(solution.mistakes)} mistakes, at least {MIN_MISTAKES} are needed")
    if not outcomes:
        return verdict
    judge_stub(verdict, outcomes["stub"])
    bad = [test for test in outcomes["answer"] if test["outcome"] not in ("passed", "skipped")]
    verdict.answer = "passes" if not bad and any(t["outcome"] == "passed" for t in outcomes["answer"]) else "fails"
    for test in bad:
        problems.append(f"the answer fails {test['test']}: {test.get('detail', test['outcome'])}")
    if verdict.answer == "fails" and not bad:
        problems.append("no test judges it")
    for mistake, tests in zip(solution.mistakes if solution else [], outcomes["mistakes"], strict=True):
        rejected = [test for test in tests if test["outcome"] == "rejected" and test["because"]]
        said = "; ".join(filter(None, (rejected[0]["detail"], rejected[0]["because"]))) if rejected else ""
        message = f"{exercise.id}: {said}" if rejected else ""
        verdict.mistakes.append({"title": mistake.title, "rejected": bool(rejected), "message": message})
        if rejected and mistake.says.lower() not in message.lower():
            problems.append(
                f"{page}:{mistake.line}: the mistake '{mistake.title}' is rejected for another reason than "
                f"'{mistake.says}': {message}"
            )
        if not rejected:
            crashed = next((test for test in tests if test["outcome"] == "crashed"), None)
            how = f"only crashes ({crashed['detail']}), with no word on the cause" if crashed else "slips through"
            problems.append(f"{page}:{mistake.line}: the mistake '{mistake.title}' {how}")
    return verdict


def judge_stub(verdict: Verdict, tests: list[dict[str, Any]]) -> None:
    """With nothing but this exercise's body missing, each of its tests must be to do."""
    wrong = [
        test
        for test in tests
        if test["outcome"] != "skipped" and not (test["outcome"] == "todo" and test["todo"] == verdict.id)
    ]
    verdict.stub = "to do" if tests and not wrong else "not to do"
    for test in wrong:
        verdict.problems.append(
            f"the untouched stub is not to do, it {test['outcome']} {test['test']}"
            + (f": {test['detail']}" if test.get("detail") else "")
        )


def notebook_places(book: Book, chapter: int, stray: list[str]) -> tuple[set[str], set[str]]:
    """The exercises that have a heading, and those that have a check cell, in a chapter's notebook."""
    path = book.folders[chapter] / "notebook.ipynb"
    if not path.exists():
        stray.append(f"{book.relative(path)} is missing")
        return set(), set()
    cells = read_cells(path, book)
    text = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    code = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    headings = set(re.findall(rf"^## ({chapter}\.\d+)\b", text, re.MULTILINE))
    return headings, set(re.findall(r"""\bcheck\(["'](\d+\.\d+)["']\)""", code))


def as_json(verdicts: list[Verdict], stray: list[str]) -> str:
    """What `verify --json` prints."""
    good = not stray and not any(verdict.problems for verdict in verdicts)
    return json.dumps({"ok": good, "exercises": [asdict(verdict) for verdict in verdicts], "problems": stray}, indent=1)
