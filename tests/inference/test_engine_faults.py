"""The engine when something breaks or ends: failing requests, stopping, and storms."""

import asyncio
import threading
import time

import pytest

from shared.inference.engine import AsyncLLMEngine, EngineStopped, GenerationError, QueueFull
from shared.inference.generate import generate
from shared.inference.sampling import SamplingParams
from tests.inference.engines import LONG, collect, run, started, until
from tests.inference.scripted import EOS, ByteTokenizer, ScriptedModel, Turnstile
from tests.tiny import TINY, tiny_model


def test_an_exception_fails_its_request_only(caplog):
    async def test():
        model = ScriptedModel("abc")

        def fail(done):
            if model.prompts[-1] == [13] and done == 1:
                raise RuntimeError("no memory left")

        model.before_step = fail
        async with started(model) as engine:
            good, bad, after = (engine.generate([i], LONG, f"{i}") for i in (1, 13, 2))
            assert (await collect(good)).text == "abc"
            first = await anext(bad)
            assert first.text == "a"
            with pytest.raises(GenerationError, match="no memory left"):
                await anext(bad)
            assert (await collect(after)).text == "abc"
            assert (await collect(engine.generate([3], LONG, "13"))).text == "abc"

    run(test)
    assert "request 13 failed" in caplog.text


def test_exceptions_without_words_and_from_the_tokenizer():
    async def test():
        model = ScriptedModel("abc")
        async with started(model) as engine:
            engine.tokenizer.token_bytes = lambda id: {}[id]
            with pytest.raises(GenerationError, match="97"):
                await collect(engine.generate([1], LONG, "a"))
            del engine.tokenizer.token_bytes

            def fail(done):
                raise MemoryError

            model.before_step = fail
            with pytest.raises(GenerationError, match="MemoryError"):
                await collect(engine.generate([1], LONG, "b"))
            model.before_step = None
            assert (await collect(engine.generate([1], LONG, "c"))).text == "abc"

    run(test)


def test_logits_that_are_not_numbers_fail_the_request():
    async def test():
        model = tiny_model()
        engine = AsyncLLMEngine(model, ByteTokenizer())
        engine.start()
        healthy = model.model.norm.weight.clone()
        model.model.norm.weight.fill_(float("nan"))
        with pytest.raises(GenerationError, match="not finite"):
            await collect(engine.generate([1], LONG, "a"))
        model.model.norm.weight.copy_(healthy)
        assert len((await collect(engine.generate([1], SamplingParams(max_tokens=4), "b"))).token_ids) == 4
        await engine.stop()

    assert TINY.vocab_size < EOS  # the byte tokenizer knows all of the tiny model's tokens
    run(test)


def test_stop_ends_everything():
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(2)
        engine = AsyncLLMEngine(model, ByteTokenizer())
        with pytest.raises(EngineStopped):
            engine.generate([1], LONG, "too early")
        engine.start()
        with pytest.raises(RuntimeError, match="already"):
            engine.start()
        running, waiting = engine.generate([1], LONG, "1"), engine.generate([2], LONG, "2")
        await anext(running)
        await until(lambda: model.steps == 3)
        stopping = asyncio.create_task(engine.stop())
        with pytest.raises(EngineStopped):
            await collect(running)
        with pytest.raises(EngineStopped):
            await collect(waiting)
        turnstile.allow(1)
        await stopping
        await engine.stop()  # again: nothing happens
        with pytest.raises(EngineStopped):
            engine.generate([3], LONG, "3")
        assert model.steps == 3
        assert not [t for t in threading.enumerate() if t.name == "engine"]

    run(test)


def test_stop_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr("shared.inference.engine.STOP_TIMEOUT_S", 0.2)
    release = threading.Event()

    async def test():
        model = ScriptedModel("abc")
        model.before_step = lambda done: release.wait(20)
        engine = AsyncLLMEngine(model, ByteTokenizer())
        engine.start()
        outputs = engine.generate([1], LONG, "a")
        await until(lambda: model.steps == 1)
        start = time.monotonic()
        await engine.stop()
        assert time.monotonic() - start < 5
        with pytest.raises(EngineStopped):
            await collect(outputs)

    run(test)
    release.set()
    assert "still computing" in caplog.text


def test_the_event_loop_stays_free():
    """While the model computes, timers fire: nothing of it runs on the loop."""

    async def test():
        model = ScriptedModel("x" * 20)
        model.before_step = lambda done: time.sleep(0.02)
        async with started(model) as engine:
            answer = asyncio.create_task(collect(engine.generate([1], LONG, "a")))
            ticks = 0
            while not answer.done():
                await asyncio.sleep(0.005)
                ticks += 1
            assert ticks > 20  # 21 steps of 20 ms: were they on the loop, there would be one tick or none

    run(test)


def test_a_storm_of_requests_and_departures():
    """Random callers, many of whom leave: every one who stays gets the right answer, and none waits for ever."""
    model = tiny_model()
    tokenizer = ByteTokenizer()
    tokenizer.eos_ids, tokenizer.special_tokens = frozenset(), {}
    params = SamplingParams(max_tokens=6)
    expected = {i: list(generate(model, [i], params)) for i in range(40)}

    async def caller(engine, i):
        await asyncio.sleep((i * 7 % 11) / 200)
        try:
            outputs = engine.generate([i], params, f"{i}")
        except QueueFull:
            return "refused"
        if i % 3 == 0:
            await asyncio.sleep((i % 5) / 100)
            engine.abort(f"{i}")
        if i % 7 == 0:
            await outputs.aclose()
            return "left"
        got = await collect(outputs)
        assert got.token_ids == expected[i][: len(got.token_ids)]
        assert got.finish_reason in (("abort", "length") if i % 3 == 0 else ("length",))
        return got.finish_reason

    async def test():
        engine = AsyncLLMEngine(model, tokenizer, max_waiting=12)
        engine.start()
        results = await asyncio.gather(*(caller(engine, i) for i in range(40)))
        assert results.count("length") >= 10
        assert "left" in results
        assert not engine._requests
        assert not engine._waiting
        await engine.stop()

    run(test)
