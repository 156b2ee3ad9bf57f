# Yours to finish. Generated from shared/inference/batch_queue.py (version 4983a71052e4).
"""Who waits, who goes next, and when: the batcher's decisions, without a clock and without a model.

Nothing here asks for the time or waits. The batcher (batcher.py) brings a real clock and the simulation
(batch_simulation.py) an invented one, and both get the same decisions.
"""

from chapters import Todo
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from shared.inference.outputs import QueueFull

LONG = -1  # the bucket of requests that run alone


class Queued(Protocol):
    """What the queue needs to know of a request."""

    @property
    def arrived(self) -> float:
        """Seconds, on whatever clock the policy's windows are measured with."""

    @property
    def length(self) -> int:
        """Tokens of prompt and answer together, at most: what decides the bucket."""


R = TypeVar("R", bound=Queued)


@dataclass(frozen=True)
class BatchPolicy:
    """When a batch starts, and who is in it. Raises ValueError that names the field.

    max_batch_size: so many requests at most. max_wait_s: the collecting window, in seconds: how long the first request
    of a batch waits for others, at most. adaptive: the window shrinks as the batch fills. max_waiting: so many may
    wait, others are refused. edges: upper ends of the length buckets in tokens, as (64, 256): up to 64, up to 256, and
    above; requests of different buckets share no batch. long_from: requests of so many tokens or more run alone.
    """

    max_batch_size: int = 8
    max_wait_s: float = 0.01
    adaptive: bool = False
    max_waiting: int = 64
    edges: tuple[int, ...] = ()
    long_from: float = math.inf

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_waiting"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, not {value!r}")
        if not is_number(self.max_wait_s) or not 0 <= self.max_wait_s < math.inf:
            raise ValueError(f"max_wait_s must be a number of seconds from 0 on, not {self.max_wait_s!r}")
        if type(self.adaptive) is not bool:
            raise ValueError(f"adaptive must be True or False, not {self.adaptive!r}")
        if not isinstance(self.edges, tuple) or not all(type(edge) is int and edge >= 1 for edge in self.edges):
            raise ValueError(f"edges must be a tuple of whole numbers of tokens, at least 1, not {self.edges!r}")
        if list(self.edges) != sorted(set(self.edges)):
            raise ValueError(f"edges must rise from one to the next, not {self.edges!r}")
        if not is_number(self.long_from) or not self.long_from >= 1:
            raise ValueError(f"long_from must be at least 1 token, not {self.long_from!r}")


def is_number(value: object) -> bool:
    """Whether this is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def batch_due_at(arrivals: Sequence[float], size: int, window_s: float) -> float:
    """When a batch should start: as soon as it is full, or when its first request has waited for the window.

    arrivals: when the waiting requests came, in order, one at least; size: how many make a full batch. Returns a time
    on the same clock, which may lie in the past.

    >>> batch_due_at([1.0, 1.5, 1.75], size=8, window_s=2.0), batch_due_at([1.0, 1.5, 1.75], size=2, window_s=2.0)
    (3.0, 1.5)
    """
    # exercise 11.3: the end of the first one's window, or the arrival that made the batch full, whichever is earlier
    raise Todo("11.3")
    # end


def adaptive_window(waiting: int, size: int, max_wait_s: float) -> float:
    """A window that shrinks as the queue grows: all of max_wait_s for one that waits alone, nothing for a full batch.

    waiting: how many wait, at least 1; size: how many make a full batch. In between the window falls in equal steps,
    and it is never negative. In batches of one there is nobody to wait for, and no window.

    >>> [adaptive_window(n, size=5, max_wait_s=8.0) for n in (1, 2, 3, 5, 9)]
    [8.0, 6.0, 4.0, 0.0, 0.0]
    """
    # exercise 11.4: the share of the batch that is still missing, out of all who could be missing, times max_wait_s
    raise Todo("11.4")
    # end


class BatchQueue(Generic[R]):
    """The requests that wait, in order of arrival, and the policy's decisions about them.

    Each decision looks at all who wait. For tens or hundreds that costs nothing beside a batch.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.batch_s = 1.0  # about how long a batch takes; a guess at first
        self._waiting: dict[R, None] = {}  # a dict keeps the order and forgets any of them at once

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: R) -> None:
        """Let a request wait. Raises QueueFull, and keeps nothing of it, when max_waiting are there already.

        QueueFull says when to try again: after the batch that is running (none may be, but then the queue wouldn't be
        full for long) and as many full ones as it takes to serve all who wait, batch_s seconds each. Buckets are left
        out of that: where they keep batches small, it takes longer.
        """
        # exercise 11.5: refuse when the queue is full, with the seconds after which everybody here should be served
        #   given: self._waiting, self.policy, self.batch_s
        raise Todo("11.5")
        # end

    def discard(self, request: R) -> bool:
        """Forget a request. Returns whether it was waiting; one that has gone into a batch, or never came, is not."""
        return request in self._waiting and self._waiting.pop(request) is None

    def finished(self, seconds: float) -> None:
        """Hear how long a batch took, so that QueueFull can say when to come back. The latest counts for a third."""
        self.batch_s += (seconds - self.batch_s) / 3

    def groups(self) -> list[tuple[int, list[R]]]:
        """Who may share a batch: for each bucket in which somebody waits, how many at most, and its requests in order.

        A request of up to edges[0] tokens is in the first bucket, one of up to edges[1] in the second, and so on.
        Requests of long_from tokens or more are in a bucket of their own, with batches of one.

        With edges (8, 16), long_from 100 and batches of 4, requests of 8, 9, 5 and 200 tokens:
        [(4, [the ones of 8 and 5]), (4, [the one of 9]), (1, [the one of 200])]
        """
        # exercise 11.6: sort the waiting into buckets (bisect_left finds the one), LONG for those that run alone
        raise Todo("11.6")
        # end

    def due_at(self) -> float | None:
        """When the next batch should start, perhaps in the past; None when nobody waits."""
        return min((self._due(group) for group in self.groups()), default=None)

    def take(self) -> list[R]:
        """Remove and return the batch that is due first: the oldest of its bucket, in order of arrival."""
        size, requests = min(self.groups(), key=self._due)
        for request in requests[:size]:
            del self._waiting[request]
        return requests[:size]

    def clear(self) -> list[R]:
        """Remove and return all who wait."""
        everybody = list(self._waiting)
        self._waiting.clear()
        return everybody

    def _due(self, group: tuple[int, list[R]]) -> float:
        size, requests = group
        window = self.policy.max_wait_s
        if self.policy.adaptive:
            window = adaptive_window(len(requests), size, window)
        return batch_due_at([request.arrived for request in requests], size, window)
