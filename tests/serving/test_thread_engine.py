"""The engine in a thread, as the server sees it."""

import asyncio
import time

import pytest

from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.outputs import EngineStopped, GenerationError
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from shared.serving.engines.engine import EngineFailed, ThreadEngine, check_against
from shared.serving.guard.deadline import Deadline
from tests.inference.scripted import ByteTokenizer, ScriptedModel
from tests.serving.engine_processes import text_of

PARAMS = SamplingParams(max_tokens=30)


def with_engine(test, model=None, **settings) -> list:
    events = []

    async def run() -> None:
        usual = {"max_num_seqs": 4, "num_blocks": 40, "block_size": 4, "attention": "gather", "prefix_caching": False}
        thread = AsyncLLMEngine(model or ScriptedModel("hello, world"), ByteTokenizer(), **(usual | settings))
        engine = ThreadEngine(thread, "v7")
        engine.on_event = lambda kind, text: events.append((kind, text))
        try:
            async with asyncio.timeout(20):
                await test(engine)
        finally:
            await engine.stop()

    asyncio.run(run())
    return events


def test_its_life():
    async def test(engine):
        assert engine.state == "loading"
        await engine.start()
        assert engine.state == "ready"
        await engine.until_ready(Deadline.after(1, time.monotonic()))
        assert (engine.limits.version, engine.limits.num_blocks, engine.limits.context) == ("v7", 40, 200)
        assert await text_of(engine.generate([5], PARAMS, "a")) == "hello, world"
        outputs = engine.generate([5], PARAMS, "b")
        await engine.stop()
        assert engine.state == "stopped"
        with pytest.raises(EngineStopped):
            await text_of(outputs)
        with pytest.raises(EngineStopped):
            engine.generate([5], PARAMS, "c")

    assert [kind for kind, _ in with_engine(test)] == ["engine_ready"]


def test_what_it_tells():
    """12 letters and the end token: of 21 prompt tokens and 12 computed ones 33 take 9 blocks of 4."""
    steps, ended = [], []

    async def test(engine):
        await engine.start()
        engine.on_step = steps.append
        trace, began = RequestTrace("a", "/", debug=True), time.monotonic()
        outputs = engine.generate([5] * 21, PARAMS, "a", trace=trace, on_end=lambda: ended.append("a"))
        assert await text_of(outputs) == "hello, world"
        assert (trace.output_tokens, trace.cached_tokens, trace.max_blocks) == (13, 0, 9)
        assert began <= trace.started <= trace.first_token <= time.monotonic()
        assert trace.batch_sizes == [1] * 13
        assert ended == ["a"]
        assert set(await engine.block_map()) == {0}
        await asyncio.sleep(0.01)
        assert trace.machine_s == pytest.approx(sum(step.seconds for step in steps))

    with_engine(test)
    assert [step.batch_tokens for step in steps] == [21, *[1] * 12]
    assert (steps[-1].generated_tokens, steps[-1].num_blocks, steps[-1].num_free_blocks) == (13, 40, 40)


@pytest.mark.parametrize("how", ["aborted", "left", "dropped", "failed", "stopped"])
def test_the_end_is_told_once_however_it_comes(how):
    model, ended = ScriptedModel("x" * 90), []
    if how == "failed":
        model.garbled = [[5]]

    async def test(engine):
        await engine.start()
        outputs = engine.generate([5], SamplingParams(max_tokens=90), "a", on_end=lambda: ended.append(how))
        if how == "failed":
            with pytest.raises(GenerationError):
                await text_of(outputs)
        else:
            await anext(outputs)
        if how == "aborted":
            engine.abort("a")
        elif how == "left":
            await outputs.aclose()
        elif how == "dropped":
            del outputs
        elif how == "stopped":
            await engine.stop()
        while not ended:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)

    with_engine(test, model)
    assert ended == [how]


def test_an_engine_that_has_failed():
    async def test(engine):
        await engine.start()
        engine.engine.engine.scheduler.update = lambda *_: {}["a bug"]
        with pytest.raises(GenerationError, match="a bug"):
            await text_of(engine.generate([5], PARAMS, "a"))
        assert engine.state == "failed"
        with pytest.raises(EngineFailed, match="a bug"):
            engine.generate([5], PARAMS, "b")
        with pytest.raises(EngineFailed, match="a bug"):
            await engine.until_ready(Deadline.after(1, time.monotonic()))

    assert [kind for kind, _ in with_engine(test)] == ["engine_ready", "engine_failed"]


def test_limits_alone_tell_what_can_be_served():
    """As the engine itself does: 40 blocks of 4 tokens are 160, and the context is 200."""

    async def test(engine):
        check = lambda *request: check_against(engine.limits, *request)  # noqa: E731
        for ask in (engine.check, check):
            assert ask([5] * 100, SamplingParams(max_tokens=500)).max_tokens == 60
            for prompt, params, message in (
                ([5] * 160, PARAMS, "160"),
                ([258], PARAMS, "258"),
                ([5], SamplingParams(seed=2**63 - 1, n=2), "seed"),
            ):
                with pytest.raises(ValueError, match=message):
                    ask(prompt, params)
        with pytest.raises(ValueError, match="5 answers"):
            check([5], SamplingParams(n=5))

    with_engine(test)
