"""Four batchers that are wrong in well-known ways, what one sees of each from outside, and which sign means which.

All are asked by numbered callers, and the model only repeats the numbers: so it shows who was answered by whose answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.inference.batch_queue import BatchPolicy
from shared.inference.outputs import QueueFull

SHARED = "callers share one flush"
SWAPPED = "sorted without the index"
RESTARTS = "the window restarts with every arrival"
UNBOUNDED = "no bound on who waits"
HEALTHY = "healthy"

SLACK_S = 0.001  # an alarm may ring as late as this


@dataclass
class BatchSeen:
    """A batch that the model ran: when its requests arrived, in order; when it began; since when the model was free."""

    arrivals: list[float]
    started: float
    free_since: float


@dataclass
class Signs:
    """What one sees of a batcher that was asked to follow `policy`.

    handed: for each caller who was answered, the caller's number and the numbers of those whose answers were given.
    batches: in the order in which the model ran them. most_waiting: the most callers that waited at a time.
    """

    policy: BatchPolicy
    handed: list[tuple[int, list[int]]] = field(default_factory=list)
    batches: list[BatchSeen] = field(default_factory=list)
    most_waiting: int = 0


def diagnose(signs: Signs) -> str:
    """The fault, one of the names above. Ask in this order, for the first ones make the later ones unreadable.

    SHARED     a caller was given no answer, or more than one
    SWAPPED    a caller was given one answer, and it was another's
    RESTARTS   a batch that wasn't full began later than its policy allows. It may wait until the window is over, from
               its first arrival on, or until the model is free, whichever comes later; SLACK_S more is no fault
    UNBOUNDED  more callers waited than the policy allows
    HEALTHY    none of these
    """
    # exercise 11.10: go through the table from top to bottom and return the first that fits
    #   given: signs.policy.max_batch_size, .max_wait_s, .max_waiting
    if any(len(got) != 1 for _, got in signs.handed):
        return SHARED
    if any(got != [caller] for caller, got in signs.handed):
        return SWAPPED
    for batch in signs.batches:
        allowed = max(batch.arrivals[0] + signs.policy.max_wait_s, batch.free_since)
        if len(batch.arrivals) < signs.policy.max_batch_size and batch.started > allowed + SLACK_S:
            return RESTARTS
    return UNBOUNDED if signs.most_waiting > signs.policy.max_waiting else HEALTHY
    # end


class Submits(Protocol):
    """What all four batchers have, and the whole of what is asked of a batcher here."""

    async def submit(self, caller: int, length: int) -> list[int]:
        """Wait for this caller's answer. Returns the numbers of those whose answers it was given. Raises QueueFull."""


class WatchedModel:
    """A model that repeats the callers' numbers, one batch at a time, and writes down what it sees."""

    def __init__(self, policy: BatchPolicy, batch_s: float) -> None:
        self.signs = Signs(policy)
        self._batch_s = batch_s
        self._waiting: dict[int, float] = {}  # callers and when they came
        self._free_since = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def run(self, callers: Sequence[int]) -> list[int]:
        """One batch, after those before it; it takes batch_s seconds. Returns the callers' numbers, in order."""
        loop = asyncio.get_running_loop()
        if not callers:
            return []
        async with self._one_at_a_time:
            arrivals = sorted(self._waiting.pop(caller) for caller in callers)
            self.signs.batches.append(BatchSeen(arrivals, loop.time(), self._free_since))
            await asyncio.sleep(self._batch_s)
            self._free_since = loop.time()
        return list(callers)

    async def ask(self, batcher: Submits, caller: int, at: float, length: int) -> None:
        """Come at a time, ask, and note what was handed over. A refusal is an answer, too."""
        await asyncio.sleep(at)
        self._waiting[caller] = asyncio.get_running_loop().time()
        waiting = len(self._waiting)
        try:
            self.signs.handed.append((caller, await batcher.submit(caller, length)))
        except QueueFull:
            del self._waiting[caller]
        else:  # only now is it known that this one waited
            self.signs.most_waiting = max(self.signs.most_waiting, waiting)


async def observe(
    make: Callable[[WatchedModel, BatchPolicy], Submits],
    arrivals: Sequence[tuple[float, int]],
    policy: BatchPolicy,
    batch_s: float,
) -> Signs:
    """Send callers, numbered from 0, to a batcher. arrivals: when each comes, and how many tokens it wants."""
    model = WatchedModel(policy, batch_s)
    batcher = make(model, policy)
    await asyncio.gather(*(model.ask(batcher, caller, *one) for caller, one in enumerate(arrivals)))
    return model.signs


class SharedFlush:
    """Whoever completes the batch, or has slept for the window, empties the queue and takes what comes of it."""

    def __init__(self, model: WatchedModel, policy: BatchPolicy) -> None:
        self.model, self.policy = model, policy
        self.waiting: list[int] = []

    async def submit(self, caller: int, length: int) -> list[int]:
        """The fault: whoever wakes up second finds the queue empty, and the first takes everybody's answers."""
        self.waiting.append(caller)
        if len(self.waiting) < self.policy.max_batch_size:
            await asyncio.sleep(self.policy.max_wait_s)
        batch, self.waiting = self.waiting, []
        return await self.model.run(batch)


class Collecting:
    """What the next two share: a queue, a collector, and a future for each caller."""

    def __init__(self, model: WatchedModel, policy: BatchPolicy) -> None:
        self.model, self.policy = model, policy
        self.queue: asyncio.Queue[tuple[int, int, asyncio.Future[list[int]]]] = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(self.serve())

    async def submit(self, caller: int, length: int) -> list[int]:
        """Queue the caller, within the policy's bound, and wait for the collector's answer."""
        if self.queue.qsize() >= self.policy.max_waiting:
            raise QueueFull
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((caller, length, answer))
        return await answer

    async def serve(self) -> None:
        """The collector, for ever: take a batch out of the queue, run it, fulfil the futures."""
        raise NotImplementedError


class RestartingWindow(Collecting):
    """The time-out of waiting for one more request, taken for the window."""

    async def serve(self) -> None:
        """The fault: the time-out counts from the arrival before, so a steady trickle never lets it run out."""
        while True:
            batch = [await self.queue.get()]
            try:
                while len(batch) < self.policy.max_batch_size:
                    batch.append(await asyncio.wait_for(self.queue.get(), self.policy.max_wait_s))
            except TimeoutError:
                pass
            for (_, _, answer), number in zip(batch, await self.model.run([one[0] for one in batch]), strict=True):
                answer.set_result([number])


class SortedBatch(Collecting):
    """Sorted by length, to save padding, and zipped with those who asked, in the order in which they came."""

    async def serve(self) -> None:
        """The fault: answers in the order of lengths go to callers in the order of arrival."""
        while True:
            first = await self.queue.get()
            await asyncio.sleep(self.policy.max_wait_s)
            batch = [first]
            while len(batch) < self.policy.max_batch_size and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            by_length = sorted(batch, key=lambda one: one[1])
            for (_, _, answer), number in zip(batch, await self.model.run([one[0] for one in by_length]), strict=True):
                answer.set_result([number])


class OneAtATime:
    """A semaphore around the model. It bounds who computes, and not who waits."""

    def __init__(self, model: WatchedModel, policy: BatchPolicy) -> None:
        self.model = model
        self.semaphore = asyncio.Semaphore(1)

    async def submit(self, caller: int, length: int) -> list[int]:
        """The fault: there is no queue that could be full, only callers who wait for the semaphore."""
        async with self.semaphore:
            return await self.model.run([caller])
