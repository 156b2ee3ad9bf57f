"""Until when an answer is of use: one point in time, handed from wait to wait, so that each gets what is left."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

ENOUGH = 100  # so many requests, and their 99th percentile is more than the slowest of a handful
SHORTEST_S, LONGEST_S, UNKNOWN_S = 30.0, 600.0, 300.0


class DeadlinePassed(TimeoutError):
    """The time a request was given is over."""


@dataclass(frozen=True)
class Deadline:
    """A point in time on a monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float, now: float) -> "Deadline":
        """The deadline `seconds` after `now`, on the clock of `now`."""
        return cls(now + seconds)

    def remaining(self, now: float) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self.at - now)

    def expired(self, now: float) -> bool:
        """Whether it has come; at the moment itself, too."""
        return now >= self.at


async def within(deadline: Deadline, work: Awaitable[T], clock: Callable[[], float]) -> T:
    """The result of `work`, which is cancelled when the deadline comes first: DeadlinePassed."""
    try:
        return await asyncio.wait_for(work, deadline.remaining(clock()))
    except DeadlinePassed:
        raise
    except TimeoutError:
        if not deadline.expired(clock()):
            raise  # the work's own
        raise DeadlinePassed("the deadline has passed") from None


def default_timeout(p99_s: float | None, n_measured: int) -> float:
    """How long a request may take that doesn't say so itself, in seconds: three times what 99 of 100 take.

    p99_s: the 99th percentile of the latencies of n_measured requests that were answered; None when there were none.
    Of fewer than ENOUGH it says little, and the answer is UNKNOWN_S. Never less than SHORTEST_S, never more than
    LONGEST_S, whatever was measured.

    >>> default_timeout(20.0, 500), default_timeout(0.5, 500), default_timeout(1000.0, 500), default_timeout(20.0, 5)
    (60.0, 30.0, 600.0, 300.0)
    """
    # exercise 14.6: what is known too little of, first; then three times the percentile, between the two ends
    if p99_s is None or n_measured < ENOUGH:
        return UNKNOWN_S
    return min(max(3 * p99_s, SHORTEST_S), LONGEST_S)
    # end
