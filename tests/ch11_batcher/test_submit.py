"""Exercise 11.7: judged on a clock that jumps, by who gets in, who waits, and who leaves."""

import asyncio
import time

from chapters import Todo
from chapters.ch11_batcher import batcher
from chapters.judge import Rejected, exercise, expect, expect_close, expect_equal
from shared.inference.batch_queue import BatchPolicy
from shared.inference.outputs import QueueFull
from tests.ch11_batcher.scenes import PARAMS, idle, now, run, until


async def asking(made: batcher.Batcher, k: int, **how: float) -> "asyncio.Task[list[int]]":
    """A caller with the prompt [k], who has joined the queue."""
    task = asyncio.ensure_future(made.submit([k], PARAMS, **how))
    await asyncio.sleep(0)
    if task.done() and isinstance(task.exception(), Todo | Rejected):
        await task
    return task


def alarms() -> int:
    """How many alarms are set on the loop."""
    return sum(not handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)


def stops_everybody(seconds: float) -> None:
    expect(False, because="time.sleep stops the event loop, and everybody with it. submit awaits its answer, no more")


@exercise("11.7")
def test_join_and_wait(monkeypatch):
    monkeypatch.setattr(time, "sleep", stops_everybody)

    async def scene():
        made = idle()
        callers = [await asking(made, 7)]
        woken = made._joined.is_set()
        made._joined.clear()  # as the collector does before it sleeps
        callers.append(await asking(made, 8))
        await until(0.5)
        for one in callers:
            expect(
                not (one.done() and one.exception() is not None and not isinstance(one.exception(), QueueFull)),
                because="submit failed before there was an answer"
                + (f": {one.exception()!r}" if one.done() and not one.cancelled() else ""),
            )
            expect(
                not one.done(),
                because="submit returned before anybody answered: it must await the request's own future",
            )
        waiting = list(made.queue._waiting)
        expect_equal(
            [request.prompt_ids for request in waiting],
            [[7], [8]],
            because="both callers should wait in the queue now. A caller who empties it takes others' requests along",
        )
        expect(
            woken,
            because="the collector sleeps and knows nothing: set self._joined when somebody has joined",
        )
        expect(
            made._joined.is_set(),
            because="the first caller woke the collector, the second did not: whoever joins may make the batch full, "
            "so set self._joined for each",
        )
        made.queue.take()
        waiting[1].answer.set_result([80])
        waiting[0].answer.set_result([70])
        return await asyncio.gather(*callers)

    got = run(scene, because="submit is still waiting, and its future has its answer")
    expect_equal(got, [[70], [80]], because="each caller gets what the request's own future holds")


@exercise("11.7")
def test_full_is_full():
    async def scene():
        made = idle(BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=1))
        first = await asking(made, 1)
        await until(0.1)
        try:
            await asyncio.wait_for(made.submit([2], PARAMS, timeout_s=3.0), 5.0)
        except QueueFull:
            expect_equal(
                alarms(),
                0,
                because="the one who was refused has left an alarm: join the queue first, and set the alarm then",
            )
            return now(), len(made.queue)
        except TimeoutError:
            pass
        finally:
            first.cancel()
        return None, 0

    busy = "QueueFull goes to the caller at once, who decides whether to come again. Don't catch it, and don't wait"
    at, length = run(scene, because=busy) or (None, 0)
    expect(at is not None and at < 0.2, because=busy)
    expect_equal(length, 1, because="the one who waits already keeps the place when another is refused")


@exercise("11.7")
def test_the_deadline():
    async def scene():
        made = idle()
        try:
            await made.submit([1], PARAMS, timeout_s=3.0)
        except Todo:
            raise
        except Exception as error:
            return type(error), now(), len(made.queue)

    never = "the deadline passed, and nothing happened: set an alarm, loop.call_later(timeout_s, self._give_up, …)"
    kind, at, left = run(scene, because=never)
    expect(
        kind is batcher.DeadlineExceeded,
        because=f"{kind.__name__} is not DeadlineExceeded: _give_up puts the right error into the request's future",
    )
    expect_close(at, 3.0, rtol=0, atol=1e-3, because="the alarm rings timeout_s after the request came")
    expect_equal(left, 0, because="who has given up leaves the queue")


@exercise("11.7")
def test_the_deadline_is_for_waiting():
    async def scene():
        made = idle()
        caller = await asking(made, 1, timeout_s=3.0)
        await until(2.0)
        (request,) = made.queue.take()  # its batch begins in time ...
        await until(9.0)  # ... and takes long
        if not request.answer.done():
            request.answer.set_result([10])
        return await caller

    cut = "the deadline is for waiting in the queue: this batch had begun in time, and its answer was thrown away. "
    try:
        got = run(scene, because=cut)
    except (TimeoutError, batcher.DeadlineExceeded, asyncio.CancelledError, asyncio.InvalidStateError):
        got = None
    expect(got == [10], because=cut + "A time-out around the awaited future doesn't know whether it still waits")


@exercise("11.7")
def test_who_leaves_frees_his_place():
    async def scene():
        made = idle()
        stays, leaves = [await asking(made, k, timeout_s=50.0) for k in (1, 2)]
        await until(0.5)
        leaves.cancel()
        await until(1.0)
        expect(
            leaves.cancelled(),
            because="a caller who is cancelled must be let go: CancelledError is meant for others, don't catch it",
        )
        expect_equal(
            [request.prompt_ids for request in made.queue._waiting],
            [[1]],
            because="a caller who was cancelled while waiting still has a place in the queue: a batch will be computed "
            "for nobody. `finally` is reached however the waiting ends",
        )
        expect(
            made._joined.is_set(),
            because="the one who left has cleared self._joined, and a collector that hadn't looked yet never hears of "
            "the other: whoever waits for the event clears it",
        )
        request, *_ = made.queue.take()
        request.answer.set_result([10])
        await stays
        return alarms()

    rings = run(scene, because="the caller who stayed has an answer, and still waits")
    expect_equal(
        rings,
        0,
        because="an alarm is still set, and its request is kept in memory until it rings: cancel the alarm when the "
        "waiting is over",
    )


@exercise("11.7")
def test_no_deadline_no_alarm():
    async def scene():
        made = idle()
        caller = await asking(made, 1)
        await until(1e6)
        expect(not caller.done(), because="without timeout_s a request waits for as long as it takes")
        (request,) = made.queue.take()
        request.answer.set_result([10])
        return await caller

    expect_equal(run(scene, because="the answer is there"), [10], because="the answer, however late")
