"""The reader's side of the book: one folder a chapter, and the command that checks the exercises."""

import os
from pathlib import Path

# Read by OpenMP when torch is first imported: threads that wait for work go to sleep. Spinning on, they take the core
# from whoever has work to do, and on a busy machine a token takes ten times as long. But not at once: between two
# small products they wait for microseconds only, and being woken takes longer than that.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

ROOT = Path(__file__).resolve().parent.parent


class Todo(NotImplementedError):
    """Raised by the body of an exercise that is still to be written."""

    def __init__(self, exercise_id: str):
        super().__init__(f"exercise {exercise_id} is still to do: python -m chapters hint {exercise_id}")
        self.exercise_id = exercise_id


def python_path(root: Path) -> str:
    """PYTHONPATH for a process that works on the book at `root`: the root, then what the caller's own says."""
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def check(what: str | None = None) -> None:
    """Check one exercise ("1.2"), a whole chapter ("1") or all, from a notebook; prints what the command prints."""
    try:
        from chapters.checking import check_and_print
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("chapters", "shared"):
            raise
        print(f"this Python lacks the book's packages ({error}); choose the kernel of .venv (make setup makes it)")
        return
    if what is not None and not isinstance(what, str):
        raise TypeError(f'put the exercise in quotes, check("{what}"): as a number, 1.10 would be 1.1')
    check_and_print(what)
