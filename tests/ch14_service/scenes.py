"""What the chapter's tests share: scenes on a virtual clock, and crashes that become rejections."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from chapters import Todo
from chapters.judge import Rejected, expect
from shared.inference.virtual_time import Deadlock, Spinning, run_virtual
from shared.serving.guard.deadline import Deadline

STUCK = "somebody waits for ever: a place was free, or the deadline had passed, and nobody was told"
LATER = Deadline(1000.0)
SLIPS = (NameError, AttributeError)  # of the pen; their own message says more than any reason


def run(scene: Callable[[], Coroutine[Any, Any, Any]], because: str) -> Any:
    """Play a scene on the virtual clock; one that can never end, or keeps the clock from moving, is rejected."""

    async def quiet() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # what a test leaves behind is its own affair
        tasks: list[asyncio.Task[Any]] = []
        asyncio.get_running_loop().set_task_factory(
            lambda loop, work: tasks.append(asyncio.Task(work, loop=loop)) or tasks[-1]
        )
        try:
            return await scene()
        except Rejected:
            for task in tasks:  # what is to do in a task, or a slip of the pen, whatever the scene makes of it
                error = task.exception() if task.done() and not task.cancelled() else None
                if isinstance(error, (Todo, Rejected, *SLIPS)):
                    raise error from None
            raise

    try:
        return run_virtual(quiet())
    except Deadlock:
        expect(False, because=because)
    except Spinning:
        expect(False, because="it asks again and again without ever sleeping: nobody else gets a turn, and time stops")


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(seconds: float) -> None:
    """Sleep until a time on the loop's clock."""
    await asyncio.sleep(max(0.0, seconds - now()))


@contextmanager
def survives(because: str, *answers: type[Exception]) -> Iterator[None]:
    """Reject what raises in the block: the right answer doesn't. answers: what it may raise all the same."""
    try:
        yield
    except (Todo, Rejected, *SLIPS, *answers):
        raise
    except Exception as error:
        raise Rejected(f"it raised {type(error).__name__}: {error}", because) from error
