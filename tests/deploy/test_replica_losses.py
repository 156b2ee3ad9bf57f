"""Replicas are lost under a ReplicaSetEngine: another goes on with the same tokens, and only what kills them fails."""

import asyncio
from collections import Counter

import pytest

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from tests.deploy.fake_replicas import PROMPT, FakeReplicas, TinyReplicas, answer, read, run
from tests.tiny import tiny_model


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_engine_goes_on_with_the_same_tokens(temperature):
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=5)
    whole = LLMEngine(tiny_model(), num_blocks=40, attention="reference").generate([PROMPT], params)[0].token_ids
    replicas = TinyReplicas([3, 1, 0, 5])

    async def test(engine):
        tokens, _, _ = await read(engine.generate(PROMPT, params, "r"))
        assert tokens == {0: whole}

    run(test, replicas)
