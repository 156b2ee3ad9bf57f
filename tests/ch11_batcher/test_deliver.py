"""Exercise 11.9: judged on a clock that jumps, by who gets which answer or error."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from chapters import Todo
from chapters.ch11_batcher import batcher
from chapters.judge import Rejected, exercise, expect, expect_equal
from shared.inference.outputs import EngineStopped, GenerationError
from tests.ch11_batcher.scenes import PARAMS, POLICY, now, run, until


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
