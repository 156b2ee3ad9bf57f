"""One progress bar for the terminal and for notebooks; it leaves nothing behind."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(label: str, total: int, enabled: bool = True) -> Iterator[Callable[[], None]]:
    """Show how many of `total` steps are done; the block calls what it is given once a step.

    >>> with progress_bar("requests", len(trace)) as step:
    ...     for request in trace:
    ...         answer(request)
    ...         step()
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not enabled:
        yield lambda: None
    elif shell is not None and hasattr(shell, "kernel"):
        with _notebook_bar(label, total) as step:
            yield step
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)


@contextmanager
def _notebook_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    from IPython.display import DisplayHandle

    done, shown = 0, 0.0
    handle = DisplayHandle()
    handle.display({"text/plain": f"{label} 0/{total}"}, raw=True)

    def step() -> None:
        nonlocal done, shown
        done += 1
        if time.perf_counter() - shown > 0.2:  # a message to the browser costs more than a token
            shown = time.perf_counter()
            filled = round(30 * min(1.0, done / max(total, 1)))
            handle.update({"text/plain": f"{label} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}"}, raw=True)

    try:
        yield step
    finally:
        handle.update({"text/plain": ""}, raw=True)
