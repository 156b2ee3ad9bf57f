"""A progress bar for training: how far, the loss, tokens a second, and the share of the machine's peak in use."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[int, str], None]  # (steps done, note)


@contextmanager
def training_bar(total: int, done: int = 0, enabled: bool = True) -> Iterator[Show]:
    """A bar of `total` steps, `done` of them by an earlier start; the block calls what it is given after each."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not enabled:
        yield lambda step, note: None
    elif shell is not None and hasattr(shell, "kernel"):
        with _notebook_bar(total) as show:
            yield show
    else:
        columns = (TextColumn("training"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[note]}"))  # fmt: skip
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("training", total=total, completed=done, note="")
            yield lambda step, note: bar.update(task, completed=step, note=note)


@contextmanager
def _notebook_bar(total: int) -> Iterator[Show]:
    from IPython.display import DisplayHandle

    handle, shown = DisplayHandle(), 0.0
    handle.display({"text/plain": ""}, raw=True)

    def show(step: int, note: str) -> None:
        nonlocal shown
        if step == total or time.perf_counter() - shown > 0.3:
            shown = time.perf_counter()
            filled = round(30 * step / total)
            handle.update({"text/plain": f"[{'#' * filled}{'.' * (30 - filled)}] {step}/{total}  {note}"}, raw=True)

    yield show
