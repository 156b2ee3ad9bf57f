"""The engine when something breaks or ends: failing requests, stopping, and storms."""

import asyncio
import threading
import time

import pytest

from shared.inference.outputs import EngineStopped, GenerationError
from tests.inference.engines import LONG, collect, nothing_left, run, scripted_engine, started, until
from tests.inference.scripted import ScriptedModel, Turnstile


def test_an_exception_fails_its_request_only(caplog):
    """The model breaks down on one of three requests that share their steps; the others don't notice."""

    async def test():
        model = ScriptedModel("abc")

        def fail(done):
            if ([13], 1) in zip(model.now, done, strict=True):
                raise RuntimeError("no memory left")

        model.before_step = fail
        async with started(model) as engine:
            with engine._requests.changed:  # the thread sees all three together
                good, bad, after = (engine.generate([i], LONG, f"{i}") for i in (1, 13, 2))
            first = await anext(bad)
            assert first.text == "a"
            with pytest.raises(GenerationError, match="no memory left"):
                await anext(bad)
            assert [(await collect(outputs)).text for outputs in (good, after)] == ["abc", "abc"]
            assert (await collect(engine.generate([3], LONG, "13"))).text == "abc"
            assert [1, 1, 1] in model.batches
            assert len(engine._requests.service_times) == 3  # what failed says nothing about how long an answer takes

    run(test)
    assert "request 13 failed" in caplog.text


def test_exceptions_without_words_and_from_the_tokenizer():
    async def test():
        model = ScriptedModel("abc")
        async with started(model) as engine:
            tokenizer = engine.engine.tokenizer
            tokenizer.token_bytes = lambda id: {}[id]
            with pytest.raises(GenerationError, match="97"):
                await collect(engine.generate([1], LONG, "a"))
            del tokenizer.token_bytes

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
        model = ScriptedModel("abc")
        model.garbled = [[13]]
        async with started(model) as engine:
            with engine._requests.changed:
                asked = [engine.generate([i], LONG, f"{i}") for i in (1, 13, 2)]
            got = await asyncio.gather(*map(collect, asked), return_exceptions=True)
            assert [answer.text for answer in (got[0], got[2])] == ["abc", "abc"]
            assert isinstance(got[1], GenerationError)
            assert "not finite" in str(got[1])
            unread = engine.generate([13], LONG, "nobody reads this one")
            await until(lambda: not engine._requests)
            with pytest.raises(GenerationError, match="not finite"):
                await anext(unread)

    run(test)


def test_an_engine_that_breaks_ends_every_request(caplog):
    """Not a request's failure but the engine's own: nobody waits for ever, and the next are told at once."""

    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile()
        async with started(model, max_num_seqs=1) as engine:
            running, waiting = engine.generate([1], LONG, "1"), engine.generate([2], LONG, "2")
            await until(lambda: model.steps == 1)
            update = engine.engine.scheduler.update
            engine.engine.scheduler.update = lambda *_: {}["a bug"]
            turnstile.allow(1)
            for outputs in (running, waiting):
                with pytest.raises(GenerationError, match="engine has failed: KeyError: 'a bug'"):
                    await collect(outputs)
            assert not engine.running
            with pytest.raises(EngineStopped, match="a bug"):
                engine.generate([3], LONG, "3")
            engine.engine.scheduler.update = update
            await engine.stop()
            engine.start()  # and it can be started again
            turnstile.allow(100)
            assert (await collect(engine.generate([3], LONG, "3"))).text == "x" * 90

    run(test)
    assert "the engine has failed" in caplog.text


def test_stop_ends_everything():
    async def test():
        model = ScriptedModel("x" * 90)
        model.before_step = turnstile = Turnstile(2)
        engine = scripted_engine(model, max_num_seqs=1)
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


def test_no_second_thread_beside_one_that_still_computes(monkeypatch, caplog):
    """While stop waits for the step, and after it has left one behind: only when that has ended is there a start."""

    async def test():
        model = ScriptedModel("abc")
        model.before_step = turnstile = Turnstile()
        engine = scripted_engine(model)
        for n, timeout in enumerate((20, 0.05)):
            monkeypatch.setattr("shared.inference.async_engine.STOP_TIMEOUT_S", timeout)
            engine.start()
            outputs, steps = engine.generate([1], LONG, "a"), model.steps
            await until(lambda steps=steps: model.steps == steps + 1)
            stopping = asyncio.create_task(engine.stop())
            await (stopping if n else asyncio.sleep(0.02))
            with pytest.raises(RuntimeError, match="still computes its last step"):
                engine.start()
            with pytest.raises(EngineStopped):
                await collect(outputs)
            turnstile.allow(1)
            await stopping
            await until(lambda: not [t for t in threading.enumerate() if t.name == "engine"])
        engine.start()
        turnstile.allow(100)
        assert (await collect(engine.generate([1], LONG, "a"))).text == "abc"
        await engine.stop()
        nothing_left(engine)

    run(test)
    assert "the engine has failed" not in caplog.text


def test_what_the_engine_refuses_in_the_thread_is_one_request_s_failure(caplog):
    """It shouldn't: all is checked before. If it does, nobody else pays for it."""

    async def test():
        async with started(ScriptedModel("abc")) as engine:
            add = engine.engine.add_request

            def refuse(request_id, *rest):
                if request_id == "bad":
                    raise TypeError("a bug")
                add(request_id, *rest)

            engine.engine.add_request = refuse
            good, bad = engine.generate([1], LONG, "good"), engine.generate([2], LONG, "bad")
            with pytest.raises(GenerationError, match="TypeError: a bug"):
                await collect(bad)
            assert (await collect(good)).text == "abc"
            engine.engine.add_request = add
            assert (await collect(engine.generate([2], LONG, "bad"))).text == "abc"

    run(test)
    assert "request bad failed" in caplog.text


def test_stop_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr("shared.inference.async_engine.STOP_TIMEOUT_S", 0.2)
    release = threading.Event()

    async def test():
        model = ScriptedModel("abc")
        model.before_step = lambda done: release.wait(20)
        engine = scripted_engine(model, max_num_seqs=1)
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
