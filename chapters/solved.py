"""The book on the reader's own parts: every answer filled in, in a scratch copy, then tested and its notebooks run."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from chapters.checking import PLAIN_PYTEST
from chapters.exercises import Book
from chapters.regions import BookError
from chapters.scratch import environment, scratch_copy, solve
from chapters.views import write_atomically

CELL_S = 300  # a cell that runs for longer is stopped
NOTEBOOK_S = 90  # a notebook that takes longer is too long, even where two run at a time
LONGEST = (7, 8, 14)  # the notebooks that begin
TOGETHER = (9, 10, 12)  # the chapters that are tried together, and alone
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@contextmanager
def solved_copy(book: Book, outcomes: Path | None = None) -> Iterator[Path]:
    """A scratch copy with all answers written and in use. outcomes: of the exercises' tests, for `use` to go by."""
    with scratch_copy(book) as root:
        if outcomes is None:  # nothing was judged
            outcomes = root.parent / "none.json"
            outcomes.write_text("[]")
        solve(root, outcomes)
        yield root


def clean_notebook(path: Path) -> None:
    """Strip outputs, counts and the kernel's details from a reader's notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        cell["id"] = f"cell-{number:02}"
        cell["metadata"] = {key: value for key, value in cell.get("metadata", {}).items() if key == "tags"}
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    write_atomically(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def execute(chapter: int, book: Book) -> Path:
    """Run a chapter's notebook on the answers and write it to solutions/. Raises BookError with the failing cell."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    if chapter not in book.folders:
        raise BookError(f"no chapter {chapter}")
    source = book.folders[chapter] / "notebook.ipynb"
    if not source.exists():
        raise BookError(f"{book.relative(source)} is missing")
    clean_notebook(source)
    with solved_copy(book) as root:
        notebook = nbformat.read(source, as_version=4)
        folder = root / book.relative(book.solutions(chapter))
        folder.mkdir(parents=True, exist_ok=True)
        client = NotebookClient(
            notebook, timeout=CELL_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        try:
            client.execute(env=environment(root))
        except CellExecutionError as error:
            raise BookError(f"{book.relative(source)}: {error}") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
    target = book.solutions(chapter) / "notebook.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook)
    if str(book.root) in text or "/tmp/" in text:
        raise BookError(
            f"{book.relative(source)}: an output names a path of this machine; print paths relative to the repository"
        )
    write_atomically(target, text + "\n")
    return target


def solved_tests(book: Book, chapter: int | None) -> int:
    """Everything that runs on a reader's parts, tested on them. Returns the first exit code that isn't 0.

    1. Each chapter alone, and 9, 10 and 12 together, in copies where all else is the reference (`chapters.alone`).
    2. A copy with every answer written and every chapter in use: all tests but those of the book itself, and the server
       as a process. In `make test` the layers' tests run here only: the texts are those of shared/ (`build --check`),
       and here the import finder must hold, too, in every process that a test starts. tests/book isn't run here: it
       makes small books of its own and reads the notebooks. It has run before, on the untouched copy, with the
       exercises' tests, which must find them all to do there.
    3. The solved notebooks, by nbval. Their check cells take the outcomes of 2: a process for each would take minutes.
    """
    chapters = sorted(book.folders) if chapter is None else [chapter]
    for path in (book.solutions(c) / "notebook.ipynb" for c in chapters):
        if not path.exists():
            fix = f"python -m chapters execute {int(path.parent.name[2:4])}"
            raise BookError(f"{book.relative(path)} is missing; {fix}")
    judged = [c for c in chapters if book.chapter_modules(c)]
    with tempfile.TemporaryDirectory() as folder:
        keep, outcomes, results = (Path(folder) / name for name in ("alone", "outcomes.json", "results.json"))
        keep.mkdir()
        with timed("chapters alone"):
            failed = run_alone(book, judged, keep)
        told = [outcome for file in keep.iterdir() for outcome in json.loads(file.read_text(encoding="utf-8"))]
        outcomes.write_text(json.dumps(told), encoding="utf-8")
        with solved_copy(book, outcomes) as root:
            with timed("tests on the reader's parts"):
                failed = run_on_parts(root, [] if chapter is None else judged, results) or failed
            with timed("notebooks"):
                return run_notebooks(root, [book.folders[c].name for c in chapters], results) or failed


def run_alone(book: Book, chapters: list[int], keep: Path) -> int:
    """The chapters one by one, and a few together, in two processes; keep: the folder for their tests' outcomes."""
    groups = [",".join(map(str, TOGETHER))] if set(TOGETHER) < set(chapters) else []
    groups += map(str, chapters)
    command = [sys.executable, "-m", "chapters.alone", str(keep)]
    env = environment(book.root) | PLAIN_PYTEST | {"OMP_NUM_THREADS": "1"}
    runs = [subprocess.Popen([*command, *half], cwd=book.root, env=env) for half in (groups[::2], groups[1::2]) if half]
    return next(filter(None, [run.wait() for run in runs]), 0)


def run_on_parts(root: Path, chapters: list[int], results: Path) -> int:
    """The tests in the solved copy: some chapters' exercises, or (none given) all but the book's own."""
    tests = root / "tests"
    names = [
        folder.name for folder in tests.iterdir() if folder.is_dir() and folder.name not in ("book", "__pycache__")
    ]
    if chapters:
        names = [Book(root).folders[c].name for c in chapters]
    files = [*(str(tests / name) for name in sorted(names)), *map(str, tests.glob("book/test_solved_parts.py"))]
    spread = ["--judges-only"] if chapters else ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [*PYTEST, *spread, f"--results={results}", *files]
    return subprocess.run(command, cwd=root, env=environment(root) | {"OMP_NUM_THREADS": "1"}).returncode


def run_notebooks(root: Path, names: list[str], results: Path) -> int:
    """Each notebook in a process of its own, two at a time: what they compare, they measure in one process, in turns.

    The cores are shared out: two times two threads on two cores wait for each other most of the time. Prints each one's
    report when it is done, and a table of the times. Returns the first exit code that isn't 0.
    """
    cores = os.cpu_count() or 1
    at_once = min(2, cores)
    env = {"OMP_NUM_THREADS": str(cores // at_once)} | environment(root) | PLAIN_PYTEST | {"BOOK_RESULTS": str(results)}
    nbval = [*PYTEST, "-p", "nbval.plugin", "--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_S}"]
    seconds: dict[str, float] = {}

    def run(name: str) -> int:
        began = time.monotonic()
        command = [*nbval, str(root / "solutions" / name / "notebook.ipynb")]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
        seconds[name] = time.monotonic() - began
        print(f"{name}/notebook.ipynb\n{done.stdout}{done.stderr}", flush=True)
        return done.returncode

    order = sorted(names, key=lambda name: int(name[2:4]) not in LONGEST)  # none is left running alone at the end
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        codes = list(pool.map(run, order))
    for name in sorted(names):
        print(f"{name:<24}{seconds[name]:6.1f} s" + ("   over 90 s: too long" if seconds[name] > NOTEBOOK_S else ""))
    print(f"{'all, one after another':<24}{sum(seconds.values()):6.1f} s", flush=True)
    return next(filter(None, codes), 0)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long it took."""
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s\n", flush=True)
