"""Exercises 11.7 to 11.9: judged on a clock that jumps, by when things happen and who gets what."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

from chapters import Todo
from chapters.ch11_batcher import batcher
from chapters.judge import Rejected, exercise, expect, expect_close, expect_equal
from shared.inference.batch_queue import BatchPolicy, BatchQueue
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import Deadlock, Spinning, run_virtual

PARAMS = SamplingParams(max_tokens=4)
POLICY = BatchPolicy(max_batch_size=4, max_wait_s=1.0, max_waiting=8)


def run(scene: Callable[[], Coroutine[Any, Any, Any]], because: str) -> Any:
    """Play a scene on the virtual clock; one that can never end, or keeps the clock from moving, is rejected."""

    async def quiet() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # what a test leaves behind is its own affair
        return await scene()

    try:
        return run_virtual(quiet())
    except Deadlock:
        expect(False, because=because)
    except Spinning:
        expect(
            False,
            because="it asks again and again without sleeping, and nobody else gets a turn. For a collector: a batch "
            "that is due this very moment, due == now, is to be taken; otherwise clear the event before each wait",
        )


async def until(seconds: float) -> None:
    """Sleep until a time on the loop's clock."""
    await asyncio.sleep(max(0.0, seconds - asyncio.get_running_loop().time()))


def now() -> float:
    return asyncio.get_running_loop().time()


class Idle(batcher.Batcher):
    """A batcher whose collector does nothing: the test plays the collector, and looks at what callers leave behind."""

    async def _serve(self) -> None:
        await asyncio.Event().wait()


def idle(policy: BatchPolicy = POLICY) -> Idle:
    async def nothing(prompts, params):
        raise AssertionError("submit mustn't run batches: that is the collector's work")

    made = Idle(nothing, policy)
    made.start()
    return made


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


# 11.7 submit


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


# 11.8 collect


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


# 11.9 deliver


def requests(n: int) -> list[batcher.Request]:
    loop = asyncio.get_running_loop()
    return [batcher.Request([k], PARAMS, 0.0, loop.create_future()) for k in range(n)]


def delivered(answer: Callable[[list[list[int]]], Any], n: int = 3, leave: tuple[int, ...] = ()) -> list[Any]:
    """What each of n callers gets, after some have left while the batch ran. None: nothing."""

    async def scene():
        calls = []

        async def model(prompts, params):
            calls.append((prompts, params))
            await asyncio.sleep(1.0)
            for k in leave:
                batch[k].answer.cancel()
            return answer(prompts)

        made, batch = batcher.Batcher(model, POLICY), requests(n)
        try:
            await made.deliver(batch)
        except (Todo, Rejected):
            raise
        except Exception as error:
            expect(
                False,
                because=f"deliver raised {type(error).__name__} ({error}), and the collector is dead: everybody who "
                "comes after waits for ever. Catch what the model raises, and never fulfil a promise that is done()",
            )
        expect_equal(len(calls), 1, because="the batch is run once, as a whole")
        expect_equal(
            calls[0], ([[k] for k in range(n)], [PARAMS] * n), because="run_batch gets the prompts and their params"
        )
        expect(
            not any(inspect.isawaitable(one.answer.result()) for one in batch if one.answer.done()
                    and not one.answer.cancelled() and one.answer.exception() is None),
            because="the model's coroutine was handed out and never awaited",
        )  # fmt: skip
        return [
            None
            if not one.answer.done()
            else "left"
            if one.answer.cancelled()
            else one.answer.exception() or one.answer.result()
            for one in batch
        ]

    return run(scene, because="deliver never ends")


@exercise("11.9")
def test_to_each_the_right_one():
    got = delivered(lambda prompts: [[prompt[0] * 10] for prompt in prompts])
    expect(
        got != [[[0], [10], [20]]] * 3,
        because="everybody got the whole batch's answers: each is to get one, the right one",
    )
    expect(None not in got, because=f"somebody still waits; the callers have {got}: fulfil every promise")
    expect_equal(got, [[0], [10], [20]], because="answers come in the order of the prompts: pair them in that order")


@exercise("11.9")
def test_who_has_left():
    got = delivered(lambda prompts: [[prompt[0] * 10] for prompt in prompts], leave=(0,))
    expect_equal(
        got,
        ["left", [10], [20]],
        because="the first caller left while the batch ran. That promise is done (cancelled), and fulfilling it "
        "raises: "
        "ask done() of each, and go on with the others",
    )


@exercise("11.9")
def test_a_batch_that_fails():
    for kind, leave in ((RuntimeError, ()), (RuntimeError, (1,)), (KeyError, ()), (OSError, ()), (MemoryError, ())):

        def fail(prompts, kind=kind):
            raise kind("out of memory")

        got = delivered(fail, leave=leave)
        told = [one for k, one in enumerate(got) if k not in leave]
        expect(None not in told, because="the model failed, and somebody still waits for an answer: tell everybody")
        expect(
            all(isinstance(one, GenerationError) for one in told),
            because=f"callers get a GenerationError when their batch fails, whatever the model raised; got {told}",
        )
        expect("out of memory" in str(told[0]), because="the error says what happened: keep the model's own message")
        expect(
            told[0] is not told[1],
            because="one error object for all: each raise adds to its traceback, and callers see each other's. Make "
            "one for each",
        )


@exercise("11.9")
def test_stopped_while_a_batch_runs():
    async def scene():
        async def model(prompts, params):
            await asyncio.sleep(9.0)
            return prompts

        made = batcher.Batcher(model, POLICY)
        task = asyncio.ensure_future(made.deliver(requests(2)))
        await until(1.0)
        if task.done():
            await task
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    swallowed = (
        "deliver was cancelled while its batch ran, and went on as if nothing had been: stop() cancels the collector, "
        "and would wait for ever. Catch Exception; CancelledError is a BaseException, and isn't meant for you"
    )
    expect(run(scene, because=swallowed), because=swallowed)


@exercise("11.9")
def test_too_few_and_too_many():
    for wrong in (lambda prompts: prompts[1:], lambda prompts: [*prompts, [9]]):
        got = delivered(wrong)
        expect(
            all(isinstance(one, GenerationError) for one in got),
            because=f"three asked and {len(wrong([[0], [1], [2]]))} answers came: nobody knows whose is missing or "
            f"wrong, so all are told of a failure. The callers have {got}. zip(…, strict=True) minds",
        )


@exercise("11.9")
def test_all_together():
    """Callers, queue, collector and model, in one."""

    async def scene():
        async def model(prompts, params):
            await asyncio.sleep(0.5)
            return [[prompt[0] + 100] for prompt in prompts]

        async with batcher.Batcher(model, POLICY) as made:

            async def ask(k):
                await until(0.1 * k)
                return await made.submit([k], PARAMS), round(now(), 3)

            try:
                return await asyncio.gather(*map(ask, range(6)))
            except EngineStopped:
                await made._collector  # what it died of

    got = run(scene, because="somebody waits for ever")
    expect_equal(
        got,
        [([100 + k], 0.8 if k < 4 else 1.9) for k in range(6)],
        because="four make a batch at 0.3 s, which takes 0.5 s; the other two wait for their window's end, at 1.4 s",
    )
