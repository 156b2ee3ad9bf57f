# Yours to finish. Generated from shared/observability/gc_pauses.py (version c926127e4acc).
"""Garbage collections, seen and made rare. All threads of a process stand still while its cyclic collector runs; other
processes go on."""

from chapters import Todo
import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any


class GcPauses:
    """Put into gc.callbacks, it is called before ("start") and after ("stop") each collection, in whichever thread.

    pauses: (generation, seconds) of each, the latest ones. A collection can begin in the middle of anything, even where
    a lock is held. So the callback takes no lock and writes no log: it appends to a deque, and others read that later.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pauses: deque[tuple[int, float]] = deque(maxlen=100_000)
        self._clock = clock
        self._began: float | None = None

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """phase: "start" or "stop". info: "generation" (0, 1 or 2), and what was "collected".

        A "stop" whose "start" wasn't seen (the callback was put in meanwhile) is no pause. One that collected nothing
        is: the time went into looking.
        """
        # exercise 13.10: at the start note the time, at the stop append the generation and the seconds since then
        #   given: self._clock, self._began, self.pauses
        raise Todo("13.10")
        # end

    def start(self) -> None:
        """Measure every collection of this process from now on."""
        gc.callbacks.append(self)

    def stop(self) -> None:
        """Measure no more. What was measured can still be drained."""
        if self in gc.callbacks:
            gc.callbacks.remove(self)

    def drain(self) -> list[tuple[int, float]]:
        """The pauses since the last call."""
        return [self.pauses.popleft() for _ in range(len(self.pauses))]


def tame(threshold: int = 20_000) -> None:
    """To be called once a server is loaded and warm: what is there now is never looked at again, and collections are
    rarer.

    gc.freeze puts all objects that exist (modules, weights, routes) aside. Then a full collection is shorter: it looks
    only at what came later. `threshold`: so many more objects made than freed start a collection; Python's own is ten
    times less or lower. So they are rarer: a full one is only put off, and has all the more to look at when it comes.
    Objects without cycles are freed by their reference counts in any case.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold, *gc.get_threshold()[1:])
