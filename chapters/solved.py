"""A scratch copy of the book with every answer filled in, as a reader would have it; notebooks are executed there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from chapters.answers import use_own, write_answer
from chapters.exercises import Book
from chapters.progress import Progress
from chapters.regions import BookError
from chapters.views import view, write_atomically

CELL_S = 300


@contextmanager
def solved_copy(book: Book) -> Iterator[Path]:
    """A temporary copy of the repository, all answers written and in use. Models and corpora are shared by links."""
    with tempfile.TemporaryDirectory(prefix="solved-") as scratch:
        root = Path(scratch) / "book"
        for path in book_files(book.root):
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(book.root / path, target)
        (root / "data").mkdir(exist_ok=True)
        for name in ("models", "corpus"):  # made once, by the finished code, for both
            (book.root / "data" / name).mkdir(parents=True, exist_ok=True)
            (root / "data" / name).symlink_to(book.root / "data" / name)
        copy = Book(root)
        for module in copy.modules:  # the reader's own answers stay out of it
            write_atomically(module.view, view(module, copy))
        progress = Progress(root)
        for chapter in sorted({module.chapter for module in copy.modules}):
            write_answer(copy.select(str(chapter)), copy)
            use_own(chapter, copy, progress)
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
        skip = {".venv", ".git", ".backup", "__pycache__", ".progress.json", "models", "results", "corpus", "mnist"}
        return [
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and not skip & set(path.relative_to(root).parts)
        ]


def environment(root: Path) -> dict[str, str]:
    """The environment for a process that runs in the scratch copy: its own packages come first."""
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


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
    """In the solved copy: run the exercises' tests, the server's tests (it runs on the reader's parts there) and, by
    nbval, the solved notebooks. Returns pytest's exit code: the first that isn't 0.

    The chapters' other tests judge shared/ alone, whose text is the same here: pytest runs them once, outside. The
    notebooks' check cells judge the outcomes of the run before: a process for each would take minutes in all.
    """
    chapters = sorted(book.folders) if chapter is None else [chapter]
    with solved_copy(book) as root:
        notebooks = [root / "solutions" / book.folders[c].name / "notebook.ipynb" for c in chapters]
        for path in notebooks:
            if not path.exists():
                fix = f"python -m chapters execute {int(path.parent.name[2:4])}"
                raise BookError(f"{path.relative_to(root).as_posix()} is missing; {fix}")
        names = [book.folders[c].name for c in chapters if Book(root).chapter_modules(c)]
        tests = [root / "tests" / name for name in [*names, *(["inference", "serving"] if chapter is None else [])]]
        tests = [folder for folder in tests if folder.exists()]  # a book may have no server yet
        results = root / "results.json"
        in_copy = environment(root)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        judges = [*pytest, "--judges-only", f"--results={results}", *map(str, tests)]
        judged = subprocess.run(judges, cwd=root, env=in_copy).returncode if tests else 0
        nbval = [*pytest, "--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_S}"]
        return run_notebooks(nbval, notebooks, root, in_copy | {"BOOK_RESULTS": str(results)}) or judged


def run_notebooks(nbval: list[str], notebooks: list[Path], cwd: Path, env: dict[str, str]) -> int:
    """Each notebook in a process of its own, two at a time: what they compare, they measure in one process, in turns.

    The cores are shared out: two times two threads on two cores wait for each other most of the time.
    Prints each one's report when it is done. Returns the first exit code that isn't 0.
    """
    cores = os.cpu_count() or 1
    at_once = min(2, cores)
    env = {"OMP_NUM_THREADS": str(cores // at_once)} | env

    def run(path: Path) -> int:
        done = subprocess.run([*nbval, str(path)], cwd=cwd, env=env, capture_output=True, text=True)
        print(f"{path.parent.name}/{path.name}\n{done.stdout}{done.stderr}", flush=True)
        return done.returncode

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return next(filter(None, list(pool.map(run, notebooks))), 0)
