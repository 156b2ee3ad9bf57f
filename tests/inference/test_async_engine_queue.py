"""The engine's queue: order, bounds, refusals, and callers who leave."""

import asyncio
import math

import pytest

from shared.inference.outputs import QueueFull, RequestOutput
from shared.inference.sampling import SamplingParams
from tests.inference.engines import LONG, collect, run, scripted_engine, started, until
from tests.inference.scripted import ScriptedModel, Turnstile


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_in_order_of_arrival(max_num_seqs):
    async def test():
        model = ScriptedModel("ab")
        async with started(model, max_num_seqs=max_num_seqs) as engine:
            finished = []

            async def ask(prompt):
                await collect(engine.generate([prompt], LONG, f"{prompt}"))
                finished.append(prompt)

            await asyncio.gather(*map(ask, range(8)))
            assert [prompt for (prompt,) in model.prompts] == finished == list(range(8))
            assert max(map(len, model.batches)) == max_num_seqs

    run(test)


@pytest.mark.parametrize(("max_num_seqs", "max_waiting"), [(1, 0), (1, 1), (1, 3), (4, 0), (3, 2)])
def test_the_queue_is_bounded(max_num_seqs, max_waiting):
    async def test():
        model = ScriptedModel("ab")
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=max_num_seqs, max_waiting=max_waiting) as engine:
            places = max_num_seqs + max_waiting
            accepted = [engine.generate([i], LONG, f"{i}") for i in range(places)]
            with pytest.raises(QueueFull) as refusal:
                engine.generate([9], LONG, "9")
            assert refusal.value.retry_after_s >= 1
            turnstile.allow(1000)
            assert [(await collect(outputs)).text for outputs in accepted] == ["ab"] * places
            again = engine.generate([9], LONG, "9")  # at once: the place was free before the last output was seen
            assert (await collect(again)).text == "ab"
            assert [9] not in model.prompts[:-1]
            with pytest.raises(ValueError, match=f"{places + 1} answers"):  # those could never be served
                engine.generate([1], SamplingParams(n=places + 1), "many")

    run(test)


def test_retry_after_is_measured():
    async def test():
        model, clock = ScriptedModel("ab"), [100.0]
        turnstile = Turnstile(1000)

        def four_seconds_a_step(done):
            clock[0] += 4
            turnstile(done)

        model.before_step = four_seconds_a_step
        async with started(model, max_num_seqs=1, max_waiting=0, clock=lambda: clock[0]) as engine:
            for i in range(3):  # each takes three steps of four seconds
                await collect(engine.generate([i], LONG, f"{i}"))
            model.before_step = turnstile = Turnstile(1)
            running = engine.generate([1], LONG, "running")
            await until(lambda: model.steps == 11)  # its second step has begun, so the first is accounted for
            clock[0] += 5
            with pytest.raises(QueueFull) as refusal:
                engine.generate([1], LONG, "refused")
            assert refusal.value.retry_after_s == pytest.approx(12 - 5)
            clock[0] += 100
            with pytest.raises(QueueFull) as refusal:
                engine.generate([1], LONG, "refused")
            assert refusal.value.retry_after_s == pytest.approx(105)  # overdue: as long again
            turnstile.allow(100)
            await collect(running)

    run(test)


def test_every_answer_of_a_request_takes_a_place():
    async def test():
        model = ScriptedModel("ab")
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=2, max_waiting=2) as engine:
            pair = engine.generate([1], SamplingParams(max_tokens=2, n=2), "pair")
            engine.check_place(2)
            with pytest.raises(QueueFull):
                engine.check_place(3)
            single = engine.generate([1], LONG, "single")
            with pytest.raises(QueueFull):
                engine.generate([1], SamplingParams(n=2), "too many")
            engine.abort("pair")
            assert [output.index async for output in pair] == [0, 1]
            engine.check_place(3)
            turnstile.allow(100)
            assert (await collect(single)).text == "ab"

    run(test)


def test_the_more_urgent_goes_first():
    async def test():
        model = ScriptedModel("ab")
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=1) as engine:
            first = engine.generate([0], LONG, "first")
            await until(lambda: model.steps == 1)
            asked = [engine.generate([p], LONG, f"{p}", priority=p) for p in (3, 1, 2)]
            turnstile.allow(100)
            await asyncio.gather(*map(collect, [first, *asked]))
            assert model.prompts == [[0], [1], [2], [3]]
            for priority in (None, "high", math.nan, math.inf, 1.5, True, 10**6 + 1, -(10**400)):
                with pytest.raises(ValueError, match="priority must be a whole number"):
                    engine.generate([1], LONG, "bad", priority=priority)

    run(test)


def test_what_can_never_be_served_is_refused_before_the_queue():
    async def test():
        model = ScriptedModel("ab", context=50)
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=1, max_waiting=0) as engine:
            first = engine.generate([1], LONG, "fills the queue")
            for prompt in ([], [1] * 50, [1] * 51, [999], [-1]):
                with pytest.raises(ValueError, match="prompt"):
                    engine.generate(prompt, LONG, "bad")
            with pytest.raises(ValueError, match="'fills the queue' is in use"):
                engine.generate([1], LONG, "fills the queue")
            turnstile.allow(100)
            assert (await collect(first)).text == "ab"

    run(test)


def test_the_context_clips_max_tokens():
    async def test():
        model = ScriptedModel("x" * 300, context=150)
        async with started(model) as engine:
            got = await collect(engine.generate([1] * 140, LONG, "a"))
            assert (len(got.token_ids), got.finish_reason) == (10, "length")
        async with started(model, max_model_len=20) as engine:
            got = await collect(engine.generate([1] * 19, LONG, "b"))
            assert (len(got.token_ids), got.finish_reason) == (1, "length")
            with pytest.raises(ValueError, match="20 tokens"):
                engine.generate([1] * 20, LONG, "c")

    run(test)


def test_bad_settings():
    model = ScriptedModel("", context=50)
    with pytest.raises(ValueError, match="max_waiting"):
        scripted_engine(model, max_waiting=-1)
    for length in (0, 1, 51):
        with pytest.raises(ValueError, match="max_model_len"):
            scripted_engine(model, max_model_len=length)
    with pytest.raises(ValueError, match="max_num_seqs"):
        scripted_engine(model, max_num_seqs=0)
    with pytest.raises(ValueError, match="no such backend"):
        scripted_engine(model, attention="no such backend")


def test_abort_stops_within_a_token():
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(3)
        async with started(model) as engine:
            outputs = engine.generate([1], LONG, "a")
            for _ in range(3):
                await anext(outputs)
            engine.abort("a")
            turnstile.allow(1000)
            last = await collect(outputs)
            assert last.finish_reason == "abort"
            assert model.steps <= 4
            engine.abort("a")  # again, and of the unknown: nothing happens
            engine.abort("never heard of")
            assert (await collect(engine.generate([1], LONG, "a"))).finish_reason == "stop"  # the id is free again

    run(test)


def test_aborting_one_that_waits():
    async def test():
        model = ScriptedModel("ab")
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=1, max_waiting=1) as engine:
            first, second = engine.generate([1], LONG, "1"), engine.generate([2], LONG, "2")
            with pytest.raises(QueueFull):
                engine.generate([3], LONG, "3")
            engine.abort("2")
            assert await collect(second) == RequestOutput("", [], "abort")
            third = engine.generate([3], LONG, "3")
            turnstile.allow(100)
            assert (await collect(first)).text == (await collect(third)).text == "ab"
            assert model.prompts == [[1], [3]]

    run(test)


@pytest.mark.parametrize("leave", ["aclose", "cancel"])
def test_a_caller_who_leaves_frees_the_engine(leave):
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(2)
        async with started(model) as engine:
            outputs = engine.generate([1], LONG, "a")
            if leave == "aclose":
                await anext(outputs)
                await outputs.aclose()
            else:
                task = asyncio.create_task(collect(outputs))
                await until(lambda: model.steps == 3)  # it waits for its third
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert not engine._requests  # its place is free already
            turnstile.allow(1000)
            assert len((await collect(engine.generate([2], LONG, "b"))).token_ids) == 91
            assert model.prompts == [[1], [2]]
            assert model.batches[4:] == [[1]] * (len(model.batches) - 4)  # nothing was computed for the one who left

    run(test)


@pytest.mark.parametrize("leave", ["aclose", "drop", "cancel"])
def test_a_caller_who_leaves_before_the_first_output_was_asked_for(leave):
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile()
        async with started(model) as engine:
            outputs = engine.generate([1], LONG, "a")
            if leave == "aclose":
                await outputs.aclose()
                await outputs.aclose()
            elif leave == "cancel":
                task = asyncio.create_task(collect(outputs))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del task
            del outputs
            await until(lambda: not engine._requests)
            turnstile.allow(1000)
            assert len((await collect(engine.generate([2], LONG, "a"))).token_ids) == 91
            assert len(model.batches) <= 92  # of the first at most one step

    run(test)


def test_a_caller_whose_event_loop_is_gone():
    model = ScriptedModel("x" * 90)
    model.before_step = turnstile = Turnstile()
    engine = scripted_engine(model)
    engine.start()
    forgotten = []

    async def ask_and_forget():
        forgotten.append(engine.generate([1], LONG, "a"))

    asyncio.run(ask_and_forget())
    turnstile.allow(1000)

    async def test():
        assert (await collect(engine.generate([2], SamplingParams(max_tokens=3), "b"))).text == "xxx"
        await engine.stop()

    run(test)
    assert model.steps < 10
