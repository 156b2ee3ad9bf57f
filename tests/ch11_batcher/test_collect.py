"""Exercise 11.8: judged on a clock that jumps, by which batches are collected, and when."""

import asyncio
from collections.abc import Callable

from chapters.ch11_batcher import batcher
from chapters.judge import exercise, expect, expect_close, expect_equal
from shared.inference.batch_queue import BatchPolicy, BatchQueue
from tests.ch11_batcher.scenes import PARAMS, POLICY, idle, now, run, until

NOBODY_LEFT = (
    "the only one who waited has left the queue meanwhile, and the collector dies of it: due_at may give None again at "
    "any waking, and may be another at any await. Ask anew, and take at once"
)


def join(made: batcher.Batcher, number: int, at: float, extra: int = 0) -> batcher.Request:
    """Put a request into the queue without the reader's submit; its length is 5 + extra."""
    answer = asyncio.get_running_loop().create_future()
    request = batcher.Request([number] + [0] * extra, PARAMS, at, answer)
    made.queue._waiting[request] = None
    made._joined.set()
    return request


async def collecting(made: batcher.Batcher, arrivals: list[float]) -> tuple[float, list[int]]:
    """When `collect` hands over its batch, and the numbers of those in it; requests come at `arrivals`, seconds."""

    async def arrive():
        for number, at in enumerate(arrivals):
            await until(at)
            join(made, number, now())

    arriving = asyncio.ensure_future(arrive())
    batch = await made.collect()
    expect(batch is not None, because="collect returns the batch that self.queue.take() gave")
    at = now()
    arriving.cancel()
    return at, [request.prompt_ids[0] for request in batch]


def collect(arrivals: list[float], policy: BatchPolicy = POLICY) -> tuple[float, list[int]]:
    async def scene():
        return await collecting(idle(policy), arrivals)

    lost = (
        "it sleeps for ever, with requests in the queue: whoever joins sets self._joined, so wait for that event, and "
        "clear it before the next wait"
    )
    try:
        return run(scene, because=lost)
    except TimeoutError:
        expect(False, because="the alarm's TimeoutError got out of collect, and would end the collector for good")
        raise
    except (TypeError, ValueError, IndexError) as error:
        expect(False, because=f"with an empty queue due_at gives None, and there is nothing to take: {error}")
        raise


@exercise("11.8")
def test_the_window():
    at, batch = collect([0.0])
    expect(at > 0.5, because="the batch was taken at once: it should have waited for its window, until due_at")
    expect_close(
        at, 1.0, rtol=0, atol=1e-3, because="one request alone is taken when its window ends, 1 s after it came"
    )
    expect_equal(batch, [0], because="the batch holds the one who waited")


@exercise("11.8")
def test_arrivals_do_not_restart_the_window():
    at, batch = collect([0.0, 0.4, 0.9, 1.8])
    expect(
        at < 1.7,
        because="each arrival began the window anew: sleep until due_at, which is counted from the first arrival, and "
        "not for max_wait_s",
    )
    expect_close(at, 1.0, rtol=0, atol=1e-3, because="the first one's window ends at 1 s, whoever else comes")
    expect_equal(batch, [0, 1, 2], because="who came within the window is in the batch")


@exercise("11.8")
def test_a_full_batch_wakes_it():
    at, batch = collect([0.0, 0.1, 0.2, 0.3, 0.35])
    expect_close(
        at,
        0.3,
        rtol=0,
        atol=1e-3,
        because="the fourth of four came at 0.3 s, and the batch was due: who sleeps until the window's end, deaf to "
        "arrivals, notices too late. Wait for self._joined, with the time until due as the time-out",
    )
    expect_equal(batch, [0, 1, 2, 3], because="four are a batch; the fifth waits for the next")


@exercise("11.8")
def test_an_empty_queue():
    at, batch = collect([5.0])
    expect_close(
        at, 6.0, rtol=0, atol=1e-3, because="nobody was there until 5 s: the window begins with the first arrival"
    )
    expect_equal(batch, [0], because="the batch holds the one who came")


@exercise("11.8")
def test_what_was_due_before():
    """The model was busy: by the time the collector looks, windows are long over."""

    async def scene():
        made = idle()
        loop = asyncio.get_running_loop()
        for number in range(2):
            made.queue._waiting[batcher.Request([number], PARAMS, 0.0, loop.create_future())] = None
        await until(7.0)
        batch = await made.collect()
        return now(), len(batch)

    at, n = run(scene, because="two wait, and are overdue: ask the queue before you sleep; the event may be old news")
    expect_close(at, 7.0, rtol=0, atol=1e-3, because="they are overdue: the batch starts at once, with no new window")
    expect_equal(n, 2, because="both are in it")


@exercise("11.8")
def test_more_than_a_batch():
    async def overdue():
        made = idle()
        for number in range(6):
            join(made, number, 0.0)
        await until(7.0)
        return [request.prompt_ids[0] for request in await made.collect()], len(made.queue)

    async def buckets():
        made = idle(BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=8, edges=(8,)))
        for number, (at, extra) in enumerate([(0.0, 0), (0.1, 9), (0.2, 9), (0.3, 0)]):
            await until(at)
            join(made, number, at, extra)
        return [request.prompt_ids[0] for request in await made.collect()], round(now(), 3)

    expect_equal(
        run(overdue, because="six are overdue"),
        ([0, 1, 2, 3], 2),
        because="six wait, and four are a batch: the queue's take() gives those whose turn it is, and keeps the others",
    )
    expect_equal(
        run(buckets, because="four wait, two in each of two buckets"),
        ([0, 3], 1.0),
        because="four wait, in two buckets: no batch is full, and the first is due at 1 s. How many wait in all "
        "doesn't tell; due_at does",
    )


@exercise("11.8")
def test_who_waited_has_left():
    async def scene():
        made = idle()
        first = join(made, 0, 0.0)

        async def leave_and_come():
            await until(0.3)
            made.queue.discard(first)
            await until(5.0)
            join(made, 1, now())

        others = asyncio.ensure_future(leave_and_come())
        batch = await made.collect()
        await others
        return [request.prompt_ids[0] for request in batch], round(now(), 3)

    try:
        got = run(scene, because="the first one left, another came, and nobody was taken")
    except (TypeError, ValueError, IndexError) as error:
        expect(False, because=f"{NOBODY_LEFT} ({error})")
        raise
    expect_equal(got, ([1], 6.0), because="the first one left at 0.3 s; the next came at 5 s, with a window of its own")


class Nosy(BatchQueue):
    """A queue in which something happens at the loop's next turn, once, after the collector has asked."""

    def __init__(self, policy: BatchPolicy) -> None:
        super().__init__(policy)
        self.then: Callable[[], object] | None = None

    def asked(self) -> None:
        if self.then is not None:
            asyncio.get_running_loop().call_soon(self.then)
            self.then = None

    def due_at(self) -> float | None:
        found = super().due_at()
        self.asked()
        return found

    def __len__(self) -> int:
        self.asked()
        return super().__len__()


@exercise("11.8")
def test_nothing_happens_between_asking_and_waiting():
    async def scene():
        made = idle()
        made.queue = Nosy(POLICY)
        made.queue.then = lambda: join(made, 0, 0.0)
        asyncio.get_running_loop().call_later(0.5, lambda: made.queue.then and made.queue.asked())
        batch = await made.collect()
        return [request.prompt_ids[0] for request in batch], round(now(), 3)

    got = run(
        scene,
        because="somebody joined between due_at and the wait, the event was cleared after that, and the wake-up is "
        "lost: await nothing between asking and waiting but the wait itself",
    )
    expect_equal(got, ([0], 1.0), because="somebody joined right after the queue was asked, at 0 s")


@exercise("11.8")
def test_nothing_happens_between_asking_and_taking():
    async def scene():
        made = idle()
        made.queue = Nosy(POLICY)
        first = join(made, 0, 0.0)
        await until(3.0)
        made.queue.then = lambda: made.queue.discard(first)
        collector = asyncio.ensure_future(made.collect())
        await until(5.0)
        if collector.done():
            await collector
        collector.cancel()

    try:
        run(scene, because="it is overdue")
    except (TypeError, ValueError, IndexError) as error:
        expect(False, because=f"{NOBODY_LEFT} ({error})")
        raise


@exercise("11.8")
def test_stopped_while_it_waits():
    async def scene():
        made = idle()
        task = asyncio.ensure_future(made.collect())
        await until(1.0)
        if task.done():
            await task
        task.cancel()
        await asyncio.wait([task], timeout=5.0)
        join(made, 0, 0.0)  # whoever couldn't be stopped ends with a batch
        await asyncio.wait([task], timeout=5.0)
        return task.cancelled()

    swallowed = (
        "collect was cancelled while it waited, and waits on: stop() would never end. Suppress TimeoutError and no more"
    )
    expect(run(scene, because=swallowed), because=swallowed)


@exercise("11.8")
def test_one_batch_after_another():
    async def scene():
        made = idle()
        first = await collecting(made, [0.0, 0.1, 0.2, 0.3, 0.35, 0.4])  # the last never comes: the batch is full
        loop = asyncio.get_running_loop()
        made.queue._waiting[batcher.Request([9], PARAMS, loop.time(), loop.create_future())] = None
        made._joined.set()
        second = await made.collect()
        return first[1], now(), len(second)

    first, at, n = run(scene, because="the second batch never comes")
    expect_equal(first, [0, 1, 2, 3], because="the first batch is full at 0.3 s")
    expect_close(at, 1.3, rtol=0, atol=1e-2, because="the second has its own window, which ends 1 s after its arrival")
    expect_equal(n, 1, because="the second batch holds the one who came")
