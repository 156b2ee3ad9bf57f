"""An engine in a process of its own, over a tiny model: it says what the same engine says in this process."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from shared.data.tokenizer import Tokenizer
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError, joined
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from shared.serving.engines.load_engine import EngineOptions, load_engine
from shared.serving.engines.process_engine import ProcessEngine
from tests.serving.engine_processes import by_index, text_of

OPTIONS = EngineOptions(threads=1, attention="gather", max_num_seqs=4, kv_memory=1)
PARAMS = [
    SamplingParams(max_tokens=30),
    SamplingParams(max_tokens=40, temperature=1.3, seed=3, n=3, logprobs=2),
    SamplingParams(max_tokens=60, temperature=1.0, top_p=0.9, top_k=50, seed=-4, repetition_penalty=1.4),
    SamplingParams(max_tokens=500, temperature=1.5, seed=8, ignore_eos=True),  # to the end of the context
]
PROMPTS = [list(b"Hello"), list(b"The quick brown fox " * 9), [5], list(range(40))]


@pytest.fixture(scope="module")
def direct(folder) -> LLMEngine:
    """The same engine in this process, text side and all: what the other's answers are held against."""
    return load_engine(folder, OPTIONS, tokenizer=Tokenizer.load(folder))


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(loop, folder):
    engine = ProcessEngine(folder, OPTIONS, "v1")
    loop.run(engine.start())
    yield engine
    loop.run(engine.stop())


async def answers(engine: ProcessEngine, params=PARAMS) -> list:
    asked = [
        by_index(engine.generate(prompt, each, f"r{i}"))
        for i, (prompt, each) in enumerate(zip(PROMPTS, params, strict=True))
    ]
    return [answer for found in await asyncio.gather(*asked) for _, answer in sorted(found.items())]


def check_same(got: list, expected: list) -> None:
    """Logprobs differ in their last bits with what else was in a step."""
    assert [replace(answer, logprobs=None) for answer in got] == [replace(answer, logprobs=None) for answer in expected]
    for one, other in zip(got, expected, strict=True):
        for entry, wanted in zip(one.logprobs or [], other.logprobs or [], strict=True):
            assert [entry.token_id, *(id for id, _ in entry.top)] == [wanted.token_id, *(id for id, _ in wanted.top)]
            numbers = [wanted.logprob, *(value for _, value in wanted.top)]
            assert [entry.logprob, *(value for _, value in entry.top)] == pytest.approx(numbers, abs=1e-3)


def stops_in(answers: list, params: list) -> list[SamplingParams]:
    """The same parameters with a stop text for each that is in its first answer, over several tokens."""
    firsts = iter(answers)
    found = []
    for each in params:
        text = next(firsts).text
        for _ in range(each.n - 1):
            next(firsts)
        found.append(SamplingParams(**{**vars(each), "stop": (text[7:10],)}))
    return found


def test_the_same_answers_as_in_one_process(loop, engine, direct):
    expected = direct.generate(PROMPTS, PARAMS)
    check_same(loop.run(answers(engine)), expected)
    assert {answer.finish_reason for answer in expected} == {"stop", "length"}
    stops = stops_in(expected, PARAMS)
    expected = direct.generate(PROMPTS, stops)
    assert all(len(answer.text) <= 7 for answer in (expected[0], expected[1], expected[4]))
    check_same(loop.run(answers(engine, stops)), expected)


def test_the_same_answers_when_it_is_killed_in_the_middle(loop, engine, direct):
    async def test():
        task = asyncio.create_task(answers(engine))
        steps = []
        engine.on_step = steps.append
        while len(steps) < 12:
            await asyncio.sleep(0.001)
        os.kill(engine.pid, signal.SIGKILL)
        return await task

    check_same(loop.run(test()), direct.generate(PROMPTS, PARAMS))


def test_what_it_tells(loop, engine):
    steps, trace, ended = [], RequestTrace("a", "/"), []

    async def test():
        engine.on_step = steps.append
        began = time.monotonic()
        outputs = engine.generate(list(range(60, 110)), PARAMS[0], "a", trace=trace, on_end=lambda: ended.append(1))
        whole = (await by_index(outputs))[0]
        assert began <= trace.started <= trace.first_token <= time.monotonic()
        assert trace.output_tokens == len(whole.token_ids)
        assert trace.max_blocks == -(-(50 + len(whole.token_ids) - 1) // 16)
        assert 0 < trace.machine_s <= sum(step.seconds for step in steps) + 1e-9
        assert ended == [1]
        again = RequestTrace("b", "/")
        await text_of(engine.generate(list(range(60, 110)), PARAMS[0], "b", trace=again))
        assert again.cached_tokens == 48
        return await engine.block_map()

    blocks = loop.run(test())
    steps = [step for step in steps if step.batch_tokens]  # the others tell how it is at rest
    assert [step.generated_tokens for step in steps] == sorted(step.generated_tokens for step in steps)
    assert steps[0].batch_tokens == 50
    assert steps[-1].num_blocks == len(blocks) == engine.limits.num_blocks
    assert steps[-1].num_free_blocks == len(blocks)
    assert set(blocks) == {0, 255}


def test_who_leaves_leaves_nothing_behind(loop, engine):
    """And the last that is told of the blocks is how they are at rest."""

    async def test():
        steps = []
        engine.on_step = steps.append
        outputs = [engine.generate([1, 2, 3], PARAMS[3], str(i)) for i in range(5)]
        await anext(outputs[0])
        await outputs[0].aclose()
        outputs[1] = None  # dropped unread
        engine.abort("2")
        assert (await by_index(outputs[2]))[0].finish_reason == "abort"
        task = asyncio.create_task(text_of(outputs[3]))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.abort("4")
        while set(await engine.block_map()) & set(range(1, 255)):
            await asyncio.sleep(0.001)
        assert len(engine._requests) == 0
        assert not engine._requests._by_number
        while steps[-1].batch_tokens:
            await asyncio.sleep(0.001)
        at_rest, blocks = steps[-1], await engine.block_map()
        assert (at_rest.num_running, at_rest.seconds, at_rest.num_free_blocks) == (0, 0, len(blocks))
        assert at_rest.num_cached_blocks == blocks.count(255)
        assert at_rest.generated_tokens == steps[-2].generated_tokens
        told = len(steps)
        await asyncio.sleep(0.3)
        assert len(steps) == told

    loop.run(test())


def test_what_is_refused_before_it_goes_anywhere(loop, engine):
    async def test():
        for prompt, params, message in (
            ([], PARAMS[0], "prompt"),
            ([257], PARAMS[0], "257"),
            ([1] * 256, PARAMS[0], "256"),
            ([1], SamplingParams(n=5), "n: 5 answers"),
        ):
            with pytest.raises(ValueError, match=message):
                engine.generate(prompt, params, "a")
        outputs = engine.generate([1], PARAMS[0], "a")
        with pytest.raises(ValueError, match="'a' is in use"):
            engine.generate([1], PARAMS[0], "a")
        await text_of(outputs)

    loop.run(test())


def test_signals_to_the_whole_group_do_not_end_it(loop, engine):
    """The terminal sends Ctrl-C to both processes, and a service manager may send SIGTERM to both: the API process
    decides."""

    async def test():
        pid = engine.pid
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        await text_of(engine.generate([1], PARAMS[0], "a"))
        assert engine.pid == pid

    loop.run(test())


BROKEN = """
import torch
from shared.model.transformer import Transformer
forward = Transformer.forward
def broken(self, ids, *rest, **others):
    pairs = set(zip(ids[0].tolist(), ids[0].tolist()[1:]))
    bad = {250: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 251: MemoryError(),
           252: RuntimeError("a kernel failed")}
    for token, error in bad.items():
        if (1, token) in pairs:  # the prompt of one request
            raise error
    return forward(self, ids, *rest, **others)
Transformer.forward = broken
from shared.serving.engines.engine_process import main
main()
"""


def test_what_fails_in_a_step_fails_alone(folder, direct, caplog):
    """Out of memory in two forms, and a bug, each set off by one request's prompt, while others go on beside it."""

    async def test():
        engine = ProcessEngine(folder, OPTIONS, "v1", command=[sys.executable, "-c", BROKEN])
        events = []
        engine.on_event = lambda kind, text: events.append((kind, text))
        await engine.start()
        good = [asyncio.create_task(by_index(engine.generate([i] * 9, PARAMS[1], f"good{i}"))) for i in range(2)]
        for token, message in ((250, "out of memory"), (251, "MemoryError"), (252, "a kernel failed")):
            with pytest.raises(GenerationError, match=message):
                await text_of(engine.generate([1, token], PARAMS[0], f"bad{token}"))
        got = [answer for task in good for _, answer in sorted((await task).items())]
        await engine.stop()
        check_same(got, direct.generate([[0] * 9, [1] * 9], PARAMS[1]))
        assert [kind for kind, _ in events] == ["engine_ready", *["request_failed"] * 3]
        assert "bad250" in events[1][1]

    asyncio.run(test())
    assert "CUDA out of memory" in caplog.text  # the traceback comes over the wire


@pytest.mark.real
def test_killed_in_the_middle_with_the_real_model(model_dir, tokenizer):
    """The same text as without, drawn at temperature 1, and within ten seconds."""
    prompt = tokenizer.encode("The sea was calm that morning, and")
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=11, ignore_eos=True)

    async def test():
        engine = ProcessEngine(model_dir, EngineOptions(threads=1, max_num_seqs=4))
        await engine.start()
        undisturbed = await by_index(engine.generate(prompt, params, "a"))
        pieces, times = [], []
        async for output in engine.generate(prompt, params, "b"):
            pieces.append(output)
            times.append(time.monotonic())
            if len(pieces) == 10:
                os.kill(engine.pid, signal.SIGKILL)
        await engine.stop()
        assert joined(pieces) == undisturbed[0]
        assert 0.5 < max(later - sooner for sooner, later in pairwise(times)) < 10

    asyncio.run(test())
