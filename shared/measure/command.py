"""How a command ends: with one line on what went wrong or that it was stopped, and an exit code that tells which."""

import sys
from collections.abc import Callable

WRONG, STOPPED = 2, 130


def run_command(work: Callable[[], None], stopped: str, *errors: type[Exception]) -> int:
    """Do a command's work and return its exit code: 0, 2 after an error that was foreseen, 130 after Ctrl-C.

    Foreseen are ValueError, OSError and `errors`; each becomes `error: …` on stderr, and any other one is a traceback.
    stopped: what to say after Ctrl-C: what has become of the work so far, and how to go on.
    """
    known: tuple[type[Exception], ...] = (ValueError, OSError, *errors)
    try:
        work()
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return STOPPED
    except known as error:
        said = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            said = f"{error.filename}: {error.strerror}"
        print(f"error: {said}", file=sys.stderr)
        return WRONG
    return 0
