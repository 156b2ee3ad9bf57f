"""ReplicaSetEngine in front of its replicas: answers as they come, who leaves, the state it is in, sums of steps."""

import asyncio
import gc
import time
from dataclasses import replace

import pytest

from shared.inference.outputs import EngineStopped
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.cluster.replica_engine import ReplicaSetEngine
from shared.serving.engines.engine import EngineFailed
from shared.serving.guard.deadline import Deadline, DeadlinePassed
from tests.deploy.fake_replicas import PROMPT, FakeReplicas, answer, read, run


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
