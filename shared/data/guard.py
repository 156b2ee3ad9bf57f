"""A limit on the time that one record may take."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LEAST, MOST = 0.001, 1_000_000.0  # seconds; below, the system's clock is too coarse, and above it may not count


class TooSlow(Exception):
    """A record used more than its share of time."""


def check_seconds(seconds: float) -> None:
    """Raises ValueError for a time limit that can't be kept."""
    if not LEAST <= seconds <= MOST:
        raise ValueError(f"a time limit must be from {LEAST:g} to {MOST:,.0f} seconds, not {seconds:g}")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop what runs in the block once it has used this much CPU time: TooSlow is raised out of it.

    CPU time, so that a busy machine or a closed lid costs no record its place. It works for Python code and for `re`,
    which looks for signals while it backtracks; it can't stop other C code, such as one long str.replace. In the main
    thread only (RuntimeError elsewhere), because Python runs signal handlers there; limits can't be nested.

    >>> with time_limit(1.0):
    ...     cleaned = clean(record)
    """
    check_seconds(seconds)
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("time_limit works in the main thread only: use a process for each worker, not a thread")

    # exercise 2.5: a handler for SIGPROF that raises TooSlow, ITIMER_PROF set to go off after `seconds`, then the block
    #   whatever happens in the block, the timer is stopped and the old handler comes back
    def ring(number: int, frame: object) -> None:
        raise TooSlow(f"more than {seconds:g} s of CPU time")

    previous = signal.signal(signal.SIGPROF, ring)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    # end
