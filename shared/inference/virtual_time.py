"""asyncio on a clock of its own, which jumps to the next alarm instead of waiting for it: hours pass in an instant.

For tests, and for experiments that must come out the same every time. No threads and no network: nothing but timers.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

MAX_TURNS = 20_000  # of the loop in one instant; more are no accident


class Deadlock(RuntimeError):
    """Everybody waits, and nothing is left that could ever wake anybody."""


class Spinning(RuntimeError):
    """Somebody asks again and again, and never sleeps: time can't pass."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and passes only while everybody sleeps."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds since the loop was made, as its own sleepers count them."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the clock on; the selector does it when nobody has anything to do."""
        self._now += seconds + 1e-9  # alarms ring late, if by little, and never early


class _JumpingSelector(selectors.SelectSelector):
    """Asked to wait for so many seconds, it moves the loop's clock by as much and returns at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0  # since the clock last moved

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Deadlock(
                "everybody waits, and no alarm is set (what a thread or the network does can't be waited for)"
            )
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
            self._turns = 0
        self._turns += 1
        if self._turns > MAX_TURNS:
            self._turns = 0  # those who are cancelled now need some turns for it
            raise Spinning(f"{MAX_TURNS} turns of the loop, and the clock still stands at {self._loop.time():g} s")
        return ready


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a clock that jumps, and return its result. Works in a notebook, too, whose thread has a loop.

    Raises Deadlock or Spinning when it could never end.
    """

    def run() -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)  # what is left over is cancelled

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
