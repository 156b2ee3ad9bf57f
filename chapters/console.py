"""What the commands show: lines, a spinner, and another program in their place."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from chapters import ROOT

console = Console(highlight=False, soft_wrap=True)


def say(lines: Iterable[str]) -> None:
    """Print lines as they are: "[9.4]" in one is not markup."""
    for line in lines:
        console.print(line, markup=False)


@contextmanager
def working(text: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A spinner with the elapsed time; gives a function that tells the step it is at."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(text)
        yield lambda step: bar.update(task, description=f"{text}: {step}")


def run_instead(module: str, *arguments: str) -> None:
    """Become another Python program, so that Ctrl-C and its exit code are that program's own."""
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
