"""The engine with many callers at once: they share the steps, come and leave, and get what they would get alone."""

import asyncio
import random
import threading
import time
from dataclasses import replace

import pytest

from shared.inference.generate import generate
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from tests.inference.engines import LONG, PlainTokenizer, collect, run, scripted_engine, started, until
from tests.inference.scripted import ScriptedModel, Turnstile
from tests.tiny import tiny_model


def test_streams_go_on_side_by_side():
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile()
        async with started(model) as engine:
            first, second = engine.generate([1], LONG, "1"), engine.generate([2], LONG, "2")
            turnstile.allow(2)
            await anext(first)
            await anext(second)  # both have begun, and neither has finished
            for _ in range(5):
                turnstile.allow(1)
                await anext(first)
                await anext(second)
            assert model.batches[-5:] == [[1, 1]] * 5
            turnstile.allow(1000)

    run(test)


def test_eight_take_as_many_steps_as_one():
    async def test():
        model = ScriptedModel("x" * 90)
        async with started(model) as engine:
            await collect(engine.generate([1], LONG, "alone"))
            alone = model.steps
            with engine._requests.changed:  # the thread sees all eight together
                asked = [engine.generate([i], LONG, f"{i}") for i in range(8)]
            await asyncio.gather(*map(collect, asked))
            assert model.steps == 2 * alone

    run(test)


def test_a_long_prompt_does_not_stop_a_stream():
    """The running stream gets a token in every step, while the prompt is read beside it, piece by piece."""

    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(3)
        async with started(model, max_num_seqs=2, max_num_batched_tokens=20) as engine:
            stream = engine.generate([1], LONG, "stream")
            await anext(stream)
            long = engine.generate([2] * 100, SamplingParams(max_tokens=1), "long")
            turnstile.allow(1000)
            await collect(long)
            both = [batch for batch in model.batches if len(batch) == 2]
            assert both == [[1, 19]] * 5 + [[1, 5]]
            await stream.aclose()

    run(test)


def test_those_who_wait_are_served_while_others_go_on():
    """A caller with a long answer doesn't keep those who come after it from theirs."""

    async def test():
        model = ScriptedModel("x" * 90)
        async with started(model, max_num_seqs=2) as engine:
            long = asyncio.create_task(collect(engine.generate([0], LONG, "long")))
            short = [engine.generate([i], SamplingParams(max_tokens=3), f"{i}") for i in range(1, 9)]
            await asyncio.gather(*map(collect, short))
            assert not long.done()
            assert len((await long).token_ids) == 91

    run(test)


def test_one_wake_up_for_a_step(monkeypatch):
    async def test():
        model = ScriptedModel("x" * 90)
        async with started(model) as engine:
            calls, loop = [], asyncio.get_running_loop()
            original = loop.call_soon_threadsafe
            monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *a: calls.append(a) or original(*a))
            with engine._requests.changed:
                asked = [engine.generate([i], LONG, f"{i}") for i in range(8)]
            await asyncio.gather(*map(collect, asked))
            assert len(calls) == model.steps == 91

    run(test)


def test_callers_on_several_event_loops():
    model, expected = ScriptedModel("abc"), ["abc"] * 3
    engine = scripted_engine(model)
    engine.start()
    got = []

    def caller(i):
        async def ask():
            got.append((await collect(engine.generate([i], LONG, f"{i}"))).text)

        asyncio.run(ask())

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    asyncio.run(engine.stop())
    assert got == expected


def test_only_the_engine_s_thread_touches_the_model():
    async def test():
        model, threads = ScriptedModel("x" * 90), set()
        model.before_step = lambda done: threads.add(threading.current_thread().name)
        async with started(model) as engine:
            await asyncio.gather(*(collect(engine.generate([i], LONG, f"{i}")) for i in range(4)))
        assert threads == {"engine"}

    run(test)


def test_it_sleeps_while_there_is_nothing_to_do():
    async def test():
        async with started(ScriptedModel("abc")) as engine:
            await collect(engine.generate([1], LONG, "a"))
            await asyncio.sleep(0.05)
            steps, wait_for = [], engine._requests.changed.wait_for
            engine._requests.changed.wait_for = lambda *args, **kwargs: steps.append(1) or wait_for(*args, **kwargs)
            start = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - start < 0.1
            assert not steps  # it was asleep already, and has not woken up
            assert (await collect(engine.generate([2], LONG, "b"))).text == "abc"

    run(test)


def test_an_abort_in_flight_frees_the_blocks():
    """While the step runs the blocks belong to it; after it they are free, and the others go on."""

    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(1)
        async with started(model) as engine:
            blocks = engine.engine.blocks
            with engine._requests.changed:
                leaving, staying = engine.generate([1] * 40, LONG, "1"), engine.generate([2] * 20, LONG, "2")
            await anext(leaving)
            await until(lambda: model.steps == 2)
            assert blocks.num_free == 200 - 3 - 2
            engine.abort("1")
            assert (await collect(leaving)).finish_reason == "abort"  # at once, with the step still running
            assert blocks.num_free == 200 - 3 - 2
            again = engine.generate([3], LONG, "1")  # and the id is free
            turnstile.allow(1)
            await until(lambda: model.steps == 3)
            assert blocks.num_free == 200 - 2 - 1
            blocks.check([sequence.block_table for sequence in engine.engine.scheduler.running])
            turnstile.allow(1000)
            assert [len((await collect(outputs)).token_ids) for outputs in (staying, again)] == [91, 91]

    run(test)


def test_a_request_that_is_aborted_before_the_engine_saw_it():
    async def test():
        model = ScriptedModel("abc")
        async with started(model) as engine:
            with engine._requests.changed:
                gone, here = engine.generate([1], LONG, "a"), None
                engine.abort("a")
                here = engine.generate([2], LONG, "a")
            assert (await collect(gone)).finish_reason == "abort"
            assert (await collect(here)).text == "abc"
            assert model.prompts == [[2]]

    run(test)


@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_callers_who_come_and_leave(seed):
    """50 callers, a pool that is too small for them, prompts that share beginnings, several answers to some. Whoever
    stays gets the very tokens that the loop alone gives; nobody waits for ever; nothing is left behind."""
    model, draw = tiny_model(), random.Random(seed)
    plans = []
    for i in range(50):
        own = [draw.randrange(97) for _ in range(draw.choice((1, 15, 16, 17)))]
        prompt = [5] * draw.choice((0, 32)) + own
        params = SamplingParams(draw.choice((1, 4, 16)), draw.choice((0.0, 1.2)), seed=i, n=draw.choice((1, 1, 1, 3)))
        plans.append((prompt, params, draw.choice(("stay", "stay", "abort", "close")), draw.random() / 5))
    expected = [
        [list(generate(model, prompt, replace(params, n=1, seed=params.seed + k))) for k in range(params.n)]
        for prompt, params, _, _ in plans
    ]

    async def caller(engine, i):
        prompt, params, what, when = plans[i]
        await asyncio.sleep(when)
        try:
            outputs = engine.generate(prompt, params, f"{i}")
        except QueueFull:
            return "refused"
        if what == "close":
            await anext(outputs)
            await outputs.aclose()
            return "left"
        if what == "abort":
            asyncio.get_running_loop().call_later(when / 10, engine.abort, f"{i}")
        got, ends = [[] for _ in range(params.n)], {}
        async for output in outputs:
            assert output.index not in ends
            got[output.index] += output.token_ids
            if output.finish_reason:
                ends[output.index] = output.finish_reason
        for k, reason in ends.items():
            assert got[k] == (expected[i][k] if reason == "length" else expected[i][k][: len(got[k])])
            assert reason == "length" or what == "abort"
        assert len(ends) == params.n
        return ends[0]

    async def test():
        settings = {"num_blocks": 16, "max_num_seqs": 6, "max_num_batched_tokens": 32, "prefix_caching": True}
        async with started(model, tokenizer=PlainTokenizer(), max_waiting=60, **settings) as engine:
            results = await asyncio.gather(*(caller(engine, i) for i in range(50)))
        assert results.count("length") >= 15
        assert "left" in results

    run(test)
