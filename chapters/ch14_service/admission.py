# Yours to finish. Generated from shared/serving/guard/admission.py (version 342f9c339160).
"""Who may go on, who waits, and who is sent away: a limit on what runs, a bound on who waits, and turns between keys.

A semaphore around the work limits what runs, and lets everybody else wait: a thousand callers, each with an open
connection and a prompt in memory, the last of whom gives up long before its turn. Here the queue has a bound, each
caller's share of it has one, keys take turns, and when the queue is full, the longest of them gives way.
"""

from chapters import Todo
import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.serving.guard.deadline import Deadline, DeadlinePassed


class Busy(RuntimeError):
    """Too many wait already. After about `retry_after_s` seconds those who are here now should have been served."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(f"{why}; try again in about {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class Waiter:
    """Somebody who waits for n places. `granted` gets a result at the moment in which they are this waiter's, or an
    exception: Busy, when it was pushed out of the queue."""

    key: str
    n: int
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Place:
    """What a caller holds while it is served: n of the places. To be released, once; a second time does nothing."""

    def __init__(self, admission: "Admission", n: int, since: float) -> None:
        self._admission, self.n, self.since = admission, n, since
        self._held = True

    def release(self) -> None:
        """Give the places back; the first time counts."""
        if self._held:
            self._held = False
            self._admission._leave(self.n, self.since)


class Admission:
    """At most max_running places are taken, at most max_waiting requests wait, and of one key max_waiting_per_key.

    A request takes n places, one for each answer it asks for; one that needs more than there are gets them when nobody
    else runs. To be used on one event loop. clock: the loop's, in seconds. held_s: about how long a place will be held;
    a guess, until the first was.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        max_waiting_per_key: int,
        clock: Callable[[], float],
        held_s: float = 1.0,
    ) -> None:
        whole = all(isinstance(bound, int) for bound in (max_running, max_waiting, max_waiting_per_key))
        if not whole or max_running < 1 or max_waiting < 0 or max_waiting_per_key < 0:
            raise ValueError("max_running must be a whole number from 1 on, max_waiting and max_waiting_per_key from 0")
        self.max_running, self.max_waiting, self.max_waiting_per_key = max_running, max_waiting, max_waiting_per_key
        self.num_running = 0  # places, not requests
        self._clock = clock
        self._queues: OrderedDict[str, deque[Waiter]] = OrderedDict()  # keys somebody waits under; the next turn first
        self._held_s, self.measured = held_s, False  # whether that is more than a guess

    @property
    def num_waiting(self) -> int:
        """How many requests wait, over all keys."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def waiting_by_key(self) -> dict[str, int]:
        """How many wait under each key; keys of which nobody waits are left out."""
        return {key: len(queue) for key, queue in self._queues.items()}

    def expected_s(self, more: int = 0) -> float:
        """About how many seconds it takes to serve all who are here now, and `more` who come before the next one."""
        places = more + sum(waiter.n for queue in self._queues.values() for waiter in queue)
        return self._held_s * (1 + places / self.max_running)

    def retry_after(self, more: int = 0) -> float:
        """The same, at least 1: nobody should come back sooner."""
        return max(1.0, self.expected_s(more))

    async def acquire(self, key: str, deadline: Deadline, n: int = 1, max_waiting: int | None = None) -> Place:
        """A place: at once if it's free and nobody waits, or else after waiting, as long as the deadline allows.

        max_waiting: how many requests of this key may wait, when it isn't max_waiting_per_key. Raises Busy, at once,
        when so many of this key wait, or when max_waiting requests wait and none can be pushed out (`_push_out`); and
        DeadlinePassed; ValueError for an n below 1.
        """
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be a whole number of places, at least 1, not {n!r}")
        # exercise 14.3: nobody waits and n fit (self._fits): a place, now. Else Busy twice over; else queue and wait
        #   self._take(n) gives the place; self._enqueue(Waiter(key, n)) queues; await self._wait(waiter, deadline)
        raise Todo("14.3")
        # end

    def _fits(self, n: int) -> bool:
        return self.num_running == 0 or self.num_running + n <= self.max_running

    def _take(self, n: int) -> Place:
        self.num_running += n
        return Place(self, n, self._clock())

    def _enqueue(self, waiter: Waiter) -> None:
        """To the end of its key's queue; a key of which nobody waited gets its turn after the others."""
        self._queues.setdefault(waiter.key, deque()).append(waiter)

    def can_push_out(self, key: str) -> bool:
        """Whether a full queue makes room for one more of this key: the key with most waiting has two more than it.

        So fewer than max_waiting greedy keys can't keep a modest one out; as many can, with one request each, and then
        nobody has more than its share. While nobody else is there, one key may use the whole queue.
        """
        return len(self._longest()) >= len(self._queues.get(key, ())) + 2

    def _push_out(self, key: str) -> bool:
        """Where it can: whoever came last of the key with most waiting gets Busy. Returns whether there is room now."""
        if not self.can_push_out(key):
            return False
        why = "the queue is full, and others have fewer requests in it"
        self._longest().pop().granted.set_exception(Busy(why, self.retry_after()))
        return True

    def _longest(self) -> deque[Waiter]:
        return max(self._queues.values(), key=len, default=deque[Waiter]())

    def _grant(self) -> None:
        """Give out places as long as there are some for whoever is next. Keys take turns: a request, then the next key.

        Within a key it is first come, first served. Whoever is next is waited for: if it needs four places and three
        are free, nobody overtakes it, or it would wait for ever. A key of which nobody waits any more is forgotten.
        """
        # exercise 14.4: the first key's first waiter: if it doesn't fit, stop; grant it, and the key goes to the end
        #   granted: its n in self.num_running, waiter.granted.set_result(None)
        raise Todo("14.4")
        # end

    async def _wait(self, waiter: Waiter, deadline: Deadline) -> Place:
        """Wait until the places are granted, and return them as a Place.

        Raises DeadlinePassed when the deadline comes first, and Busy when it was pushed out (`_place` does). Whoever
        leaves without the place, because of the deadline or because it's cancelled, leaves nothing behind: it doesn't
        wait any more; and if the places were granted in the same moment, they go to others.
        """
        # exercise 14.5: asyncio.wait([waiter.granted], timeout=what is left); leaving: forget it, or give the places on
        #   self._place(waiter) makes the Place; self._forget(waiter) takes it out of the queue; self._pass_on(waiter)
        #   gives places that were granted to others
        raise Todo("14.5")
        # end

    def _place(self, waiter: Waiter) -> Place:
        waiter.granted.result()  # raises what it was refused with
        return Place(self, waiter.n, self._clock())

    def _pass_on(self, waiter: Waiter) -> None:
        if waiter.granted.exception() is None:
            self._free(waiter.n)  # never held, so they say nothing about how long places are

    def _forget(self, waiter: Waiter) -> None:
        """It doesn't wait any more. Whoever was behind it may fit where it didn't."""
        queue = self._queues[waiter.key]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.key]
        self._grant()

    def _leave(self, n: int, since: float) -> None:
        """n places are free again; they were held since then. The latest counts for a tenth of held_s, the first for
        all of it."""
        held = self._clock() - since
        self._held_s += (held - self._held_s) / 10 if self.measured else held - self._held_s
        self.measured = True
        self._free(n)

    def _free(self, n: int) -> None:
        self.num_running -= n
        self._grant()
