"""ReplicaSetEngine over replicas that a test can lose: what a caller gets must be what one engine would have said."""

import asyncio
import gc
import time
from collections import Counter
from dataclasses import replace

import pytest

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped, GenerationError
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.cluster.replica_engine import ReplicaSetEngine
from shared.serving.engines.engine import EngineFailed
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from tests.deploy.fake_replicas import FakeReplicas, TinyReplicas, answer
from tests.tiny import tiny_model

PROMPT = [5, 17, 3]


def run(test, replicas, n=2):
    """Run a test of a started engine; afterwards nothing may be left of its requests."""

    async def whole():
        engine = ReplicaSetEngine(replicas, n)
        engine.events = []
        engine.on_event = lambda kind, text: engine.events.append(kind)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 20)
            assert not engine._requests
        finally:
            await engine.stop()
        await asyncio.sleep(0.01)
        assert replicas.open == 0
        assert replicas.stopped

    asyncio.run(whole())


async def read(outputs):
    """The tokens, texts and reasons of each answer."""
    tokens, texts, reasons = {}, {}, {}
    async for output in outputs:
        tokens.setdefault(output.index, []).extend(output.token_ids)
        texts[output.index] = texts.get(output.index, "") + output.text
        reasons[output.index] = output.finish_reason
    return tokens, texts, reasons


def test_an_answer_comes_as_its_replica_makes_it():
    replicas, ended = FakeReplicas(), []

    async def test(engine):
        trace = RequestTrace("r", "/v1/completions", arrived=time.monotonic())
        params = SamplingParams(max_tokens=6, seed=3)
        outputs = engine.generate(PROMPT, params, "r", priority=2, trace=trace, on_end=lambda: ended.append(1))
        tokens, texts, reasons = await read(outputs)
        assert tokens == {0: answer(PROMPT, 3, 6)}
        assert texts == {0: "".join(f"<{id}>" for id in answer(PROMPT, 3, 6))}
        assert reasons == {0: "length"}
        assert (trace.output_tokens, trace.cached_tokens, trace.resumed) == (6, 2, 0)
        assert trace.first_token is not None
        assert trace.started == pytest.approx(time.monotonic() - 0.5, abs=0.4)

    run(test, replicas)
    assert ended == [1]
    (request,) = replicas.asked
    assert (request.prompt_ids, request.output_ids, request.priority) == (PROMPT, [], 2)


@pytest.mark.parametrize("life", [0, 1, 4])
def test_another_replica_goes_on_behind_the_tokens_that_have_arrived(life):
    replicas = FakeReplicas([life])

    async def test(engine):
        trace = RequestTrace("r", "/v1/completions")
        tokens, texts, _ = await read(engine.generate(PROMPT, SamplingParams(max_tokens=5, seed=1), "r", trace=trace))
        assert tokens == {0: answer(PROMPT, 1, 5)}, "a token was lost or came twice"
        assert texts == {0: "".join(f"<{id}>" for id in answer(PROMPT, 1, 5))}
        assert (trace.resumed, trace.output_tokens) == (1, 5)

    run(test, replicas)
    first, second = replicas.asked
    assert second.output_ids == answer(PROMPT, 1, 5)[:life]
    assert second.prompt_ids == PROMPT
    assert second.params == first.params, "max_tokens counts the tokens so far, and the seed stays"
    assert first.request_id != second.request_id


def test_many_losses_with_tokens_between_them_lose_nothing():
    replicas = FakeReplicas([1] * 19)

    async def test(engine):
        tokens, _, _ = await read(engine.generate(PROMPT, SamplingParams(max_tokens=20), "r"))
        assert tokens == {0: answer(PROMPT, 0, 20)}

    run(test, replicas)


def test_a_request_that_kills_every_replica_fails_and_the_others_do_not():
    replicas, ended = FakeReplicas([0, 0, 0, 0]), []

    async def test(engine):
        with pytest.raises(GenerationError, match="4 replicas"):
            await read(engine.generate(PROMPT, SamplingParams(max_tokens=5), "bad", on_end=lambda: ended.append(1)))
        tokens, _, _ = await read(engine.generate(PROMPT, SamplingParams(max_tokens=5), "good"))
        assert tokens == {0: answer(PROMPT, 0, 5)}
        assert engine.events.count("request_failed") == 1

    run(test, replicas)
    assert ended == [1]


def test_one_under_suspicion_goes_alone_and_the_other_lost_ones_wait_for_it():
    """Two are lost together twice; then one is tried without the other, and what comes new waits for neither."""
    replicas = FakeReplicas([0, 0, 0, 0])

    async def test(engine):
        params = SamplingParams(max_tokens=5)
        replicas.gate.clear()
        ask = lambda name: asyncio.create_task(read(engine.generate(PROMPT, params, name)))  # noqa: E731
        first, second = ask("first"), ask("second")
        for n_asked in (2, 4):  # both have been sent on at once
            await asyncio.sleep(0.01)
            assert len(replicas.asked) == n_asked
            replicas.lose()
        await asyncio.sleep(0.01)
        assert [request.request_id.split("/")[0] for request in replicas.asked[4:]] == ["first"]
        new = ask("new")
        await asyncio.sleep(0.01)
        assert len(replicas.asked) == 6
        replicas.gate.set()
        for task in (first, second, new):
            assert (await task)[0] == {0: answer(PROMPT, 0, 5)}
        assert len(replicas.asked) == 7

    run(test, replicas)


@pytest.mark.parametrize("how", ["abort", "lost"])
def test_one_under_suspicion_that_ends_lets_the_others_go_on(how):
    replicas = FakeReplicas([0, 0, 0, 0, *([0, 0] if how == "lost" else [])])

    async def test(engine):
        params = SamplingParams(max_tokens=5)
        replicas.gate.clear()
        ask = lambda name: asyncio.create_task(read(engine.generate(PROMPT, params, name)))  # noqa: E731
        first, second = ask("first"), ask("second")
        for _ in range(2 if how == "abort" else 4):
            await asyncio.sleep(0.01)
            replicas.lose()
        if how == "abort":
            await asyncio.sleep(0.01)
            engine.abort("first")
        replicas.gate.set()
        assert (await second)[0] == {0: answer(PROMPT, 0, 5)}
        if how == "lost":
            with pytest.raises(GenerationError, match="4 replicas"):
                await first
        else:
            assert (await first)[2] == {0: "abort"}

    run(test, replicas)


def test_each_of_n_answers_draws_with_its_own_seed_and_goes_on_by_itself():
    replicas = FakeReplicas([None, 2, None])

    async def test(engine):
        tokens, _, reasons = await read(engine.generate(PROMPT, SamplingParams(max_tokens=4, seed=10, n=3), "r"))
        assert tokens == {k: answer(PROMPT, 10 + k, 4) for k in range(3)}
        assert set(reasons.values()) == {"length"}

    run(test, replicas)
    assert Counter(request.params.seed for request in replicas.asked) == {10: 1, 11: 2, 12: 1}
    assert all(request.params.n == 1 for request in replicas.asked)


@pytest.mark.parametrize("how", ["close", "drop", "abort"])
def test_a_caller_who_leaves_ends_the_replicas_work(how):
    replicas, ended = FakeReplicas(), []

    async def test(engine):
        outputs = engine.generate(PROMPT, SamplingParams(max_tokens=50), "r", on_end=lambda: ended.append(1))
        await anext(outputs)
        assert replicas.open == 1
        if how == "close":
            await outputs.aclose()
        elif how == "abort":
            replicas.gate.clear()
            engine.abort("r")
            engine.abort("nobody's")
            reasons = [output.finish_reason async for output in outputs]
            assert reasons[-1] == "abort"
        else:
            del outputs
            gc.collect()
        await asyncio.sleep(0.02)
        assert replicas.open == 0

    run(test, replicas)
    assert ended == [1]


def test_stopping_tells_every_caller():
    replicas = FakeReplicas()

    async def test(engine):
        replicas.gate.clear()
        waiting = [asyncio.create_task(read(engine.generate(PROMPT, SamplingParams(), f"{k}"))) for k in range(3)]
        await asyncio.sleep(0.01)
        await engine.stop()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [EngineStopped] * 3
        with pytest.raises(EngineStopped):
            engine.generate(PROMPT, SamplingParams(), "late")

    run(test, replicas)


def test_what_can_not_be_served_is_refused_at_once():
    replicas = FakeReplicas()

    async def test(engine):
        assert (engine.limits.max_num_seqs, engine.limits.num_blocks, engine.limits.max_model_len) == (8, 80, 64)
        for wrong in ([], [97], list(range(64))):
            with pytest.raises(ValueError):
                engine.generate(wrong, SamplingParams(), "r")
        first = engine.generate(PROMPT, SamplingParams(max_tokens=1000), "r")
        with pytest.raises(ValueError, match="in use"):
            engine.generate(PROMPT, SamplingParams(), "r")
        tokens, _, _ = await read(first)
        assert len(tokens[0]) == 64 - len(PROMPT)  # the context's end

    run(test, replicas)
    assert len(replicas.asked) == 1


def test_it_is_away_while_there_is_no_replica():
    replicas = FakeReplicas()

    async def test(engine):
        assert engine.state == "ready"
        engine._look_at({"a": []})
        assert engine.state == "ready"
        engine._look_at({})
        assert engine.state == "restarting"
        with pytest.raises(DeadlinePassed):
            await engine.until_ready(Deadline.after(0.01, time.monotonic()))
        engine._look_at({"c": []})
        await engine.until_ready(Deadline.after(1, time.monotonic()))
        assert engine.state == "ready"
        assert engine.events == ["engine_ready", "replica_lost", "engine_died", "engine_restarted"]

    run(test, replicas)


def test_a_start_that_fails_says_why():
    async def whole():
        engine = ReplicaSetEngine(FakeReplicas(error="no such folder"), 2)
        with pytest.raises(EngineFailed, match="no such folder"):
            await engine.start()
        assert (engine.state, engine.error) == ("failed", "no such folder")
        with pytest.raises(EngineFailed):
            engine.generate(PROMPT, SamplingParams(), "r")
        await engine.stop()

    asyncio.run(whole())


def test_steps_are_told_as_sums_and_totals_never_fall():
    step = StepStats(0.0, 0.1, 2, 1, 5, 30, 4, 1, 10, 20, 100, 40)
    replicas, told = FakeReplicas(), []

    async def test(engine):
        engine.on_step = told.append
        engine._look_at({"a": [step], "b": [replace(step, num_running=3, generated_tokens=50)]})
        assert (told[-1].num_running, told[-1].num_blocks, told[-1].generated_tokens) == (5, 80, 150)
        assert (told[-1].batch_tokens, told[-1].seconds) == (5, 0.1)  # the step's own
        engine._look_at({"b": [replace(step, generated_tokens=60)]})  # a is lost, with the 100 it had made
        assert (told[-1].num_running, told[-1].generated_tokens) == (2, 160)
        engine._look_at({"b": [], "c": [replace(step, generated_tokens=1)]})
        assert told[-1].generated_tokens == 161
        assert len(told) == 4
        assert await engine.block_map() == b"\x01\x00\xff"

    run(test, replicas)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_engine_goes_on_with_the_same_tokens(temperature):
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=5)
    whole = LLMEngine(tiny_model(), num_blocks=40, attention="reference").generate([PROMPT], params)[0].token_ids
    replicas = TinyReplicas([3, 1, 0, 5])

    async def test(engine):
        tokens, _, _ = await read(engine.generate(PROMPT, params, "r"))
        assert tokens == {0: whole}

    run(test, replicas)
