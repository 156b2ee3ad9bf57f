"""An engine process dies, or hangs, or talks nonsense: its callers see a pause and nothing else."""

import asyncio
import os
import signal
import time

import pytest

from shared.inference.outputs import EngineStopped, GenerationError, joined
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from tests.serving.engine_processes import LONG, alive, kinds, text_of, with_engine
from tests.serving.fake_engine import DIES, DIES_LATER, FAILS, GARBAGE, SLEEPS, answer


def test_killed_again_and_again_under_many_streams():
    """Ten kills, each as soon as the new engine has said something; every stream gets all of its text, once."""

    async def test(engine):
        await engine.start()
        traces = [RequestTrace(str(i), "/") for i in range(12)]
        tasks = [
            asyncio.create_task(text_of(engine.generate([5] * (i + 1), SamplingParams(max_tokens=150, seed=i), str(i),
                                                        trace=traces[i])))
            for i in range(12)
        ]  # fmt: skip
        for _ in range(10):
            before = sum(trace.output_tokens for trace in traces)
            while sum(trace.output_tokens for trace in traces) == before:
                await asyncio.sleep(0.001)
            os.kill(engine.pid, signal.SIGKILL)
            while engine.state == "ready":
                await asyncio.sleep(0.001)
        got = await asyncio.gather(*tasks)
        assert got == [answer(i, i + 1, 150) for i in range(12)]
        assert all(trace.resumed >= 1 and trace.output_tokens == 150 for trace in traces)

    events = with_engine(test)
    assert kinds(events) == ["engine_ready", *["engine_died", "engine_restarted"] * 10]
    assert "SIGKILL" in events[1][1]


def test_several_answers_stop_texts_and_logprobs_go_on():
    """The engine dies twice where a stop text has begun: "c" is held back, and "j" comes from the next engine. At the
    first death one of the three answers has ended already, at the second two."""
    assert [answer(k, 3, 9) for k in range(3)] == ["vcjqxelsz", "ahovcjqxe", "fmtahovcj"]

    async def test(engine):
        await engine.start()
        params = SamplingParams(max_tokens=40, n=3, logprobs=1, stop=("cj",))
        outputs, pieces, deaths = engine.generate([5, 5, 5], params, "a"), {0: [], 1: [], 2: []}, []
        async for output in outputs:
            pieces[output.index].append(output)
            if (output.index, len(pieces[output.index])) in ((1, 5), (2, 8)):
                deaths.append(output.index)
                os.kill(engine.pid, signal.SIGSTOP)  # it may have sent more, but not much
                os.kill(engine.pid, signal.SIGKILL)
        whole = [joined(pieces[k]) for k in range(3)]
        assert [answer.text for answer in whole] == ["v", "ahov", "fmtahov"]
        assert [answer.finish_reason for answer in whole] == ["stop"] * 3
        assert ["".join(map(chr, answer.token_ids)) for answer in whole] == ["vcj", "ahovcj", "fmtahovcj"]
        assert [[entry.token_id for entry in answer.logprobs] for answer in whole] == [a.token_ids for a in whole]
        assert whole[0].logprobs[0].top == [(118, -0.5), (98, -1.5)]
        assert deaths == [1, 2]

    assert kinds(with_engine(test)).count("engine_died") == 2


def test_a_stopped_process_is_replaced():
    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        text = (await anext(outputs)).text
        pid = engine.pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        text += await text_of(outputs)
        assert 0.4 < time.monotonic() - began < 5
        assert text == answer(0, 1, 60)
        assert not alive(pid)

    events = with_engine(test)
    assert kinds(events) == ["engine_ready", "engine_hung", "engine_restarted"]
    assert "no sign of life for 0.4 s" in events[1][1]


def test_what_kills_engines_is_failed_alone():
    """It is given four engines. The others pause, and go on."""

    async def test(engine):
        await engine.start()
        ended = []
        others = [asyncio.create_task(text_of(engine.generate([5, i], LONG, f"o{i}"))) for i in range(3)]
        with pytest.raises(GenerationError, match="4 engine processes in a row have ended on it"):
            await text_of(engine.generate([DIES], LONG, "bad", on_end=lambda: ended.append("bad")))
        assert await asyncio.gather(*others) == [answer(0, 2, 60)] * 3
        assert ended == ["bad"]
        assert engine.state == "ready"

    events = with_engine(test)
    assert kinds(events).count("engine_died") == 4
    assert kinds(events).count("request_failed") == 1


def test_an_engine_that_dies_and_makes_progress_is_not_given_up():
    """Every fifth token ends the process; the answer takes 12 of them, and more than the policy allows in a row."""

    async def test(engine):
        await engine.start()
        params = SamplingParams(max_tokens=59)
        assert await text_of(engine.generate([DIES_LATER], params, "a")) == answer(0, 1, 59)

    assert kinds(with_engine(test)).count("engine_died") == 11


def test_a_step_that_never_ends_counts_as_hung():
    async def test(engine):
        await engine.start()
        with pytest.raises(GenerationError, match="4 engine processes"):
            await text_of(engine.generate([SLEEPS], LONG, "a"))
        assert await text_of(engine.generate([5], LONG, "b")) == answer(0, 1, 60)

    events = with_engine(test)
    assert kinds(events).count("engine_hung") == 4
    assert "longer than 0.3 s" in events[1][1]


def test_nonsense_from_the_engine():
    async def test(engine):
        await engine.start()
        other = asyncio.create_task(text_of(engine.generate([5], LONG, "b")))
        with pytest.raises(GenerationError):
            await text_of(engine.generate([GARBAGE], LONG, "a"))
        assert await other == answer(0, 1, 60)

    events = with_engine(test)
    assert "no frame" in events[1][1]


def test_an_engine_that_speaks_another_version(monkeypatch):
    """As when the program's files are changed under a running server: nobody waits for ever."""

    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        monkeypatch.setattr("shared.serving.engines.process_engine.StepStats", lambda at: None)
        with pytest.raises(GenerationError, match="4 engine processes"):
            await text_of(outputs)

    events = with_engine(test)
    assert "files were changed while the server runs" in events[1][1]


def test_whoever_is_told_of_steps_may_fail(caplog):
    async def test(engine):
        await engine.start()
        engine.on_step = lambda stats: {}["a bug"]
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    assert kinds(with_engine(test)) == ["engine_ready"]
    assert "a step could not be told on" in caplog.text


def test_a_request_that_is_refused():
    async def test(engine):
        await engine.start()
        with pytest.raises(GenerationError, match="doesn't like this one"):
            await text_of(engine.generate([FAILS], LONG, "a"))
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    assert kinds(with_engine(test)) == ["engine_ready", "request_failed"]


def test_aborting_is_at_once_even_while_it_hangs():
    async def test(engine):
        await engine.start()
        ended = []
        outputs = engine.generate([5], LONG, "a", on_end=lambda: ended.append("a"))
        await anext(outputs)
        os.kill(engine.pid, signal.SIGSTOP)
        engine.abort("a")
        assert ended == ["a"]
        async with asyncio.timeout(0.2):
            assert [output.finish_reason async for output in outputs][-1] == "abort"
        os.kill(engine.pid, signal.SIGCONT)
        assert await text_of(engine.generate([5], LONG, "a")) == answer(0, 1, 60)

    with_engine(test)


def test_stopping_ends_everything():
    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], LONG, "a")
        await anext(outputs)
        os.kill(engine.pid, signal.SIGSTOP)  # it can't be asked to end
        await engine.stop()
        with pytest.raises(EngineStopped):
            await text_of(outputs)
        with pytest.raises(EngineStopped):
            engine.generate([5], LONG, "b")

    with_engine(test)
