"""The engine's answers, with a scripted model and with a tiny one."""

import asyncio
from dataclasses import replace

import pytest

from shared.inference.generate import generate
from shared.inference.outputs import QueueFull, RequestOutput
from shared.inference.sampling import SamplingParams
from tests.inference.engines import LONG, PlainTokenizer, collect, run, started, until
from tests.inference.scripted import EOS, SILENT, ScriptedModel, Turnstile
from tests.tiny import tiny_model


def test_answers_and_finish_reasons():
    async def test():
        async with started(ScriptedModel("grün")) as engine:
            whole = await collect(engine.generate([1], LONG, "a"))
            assert whole == RequestOutput("grün", [*"grün".encode(), EOS], "stop")
            short = await collect(engine.generate([1], SamplingParams(max_tokens=2), "b"))
            assert short == RequestOutput("gr", [*b"gr"], "length")
            broken = await collect(engine.generate([1], SamplingParams(max_tokens=3), "c"))
            assert broken.text == "gr"  # cut off in the middle of a character
            exact = await collect(engine.generate([1], SamplingParams(max_tokens=5), "d"))
            assert exact == RequestOutput("grün", [*"grün".encode()], "length")
            both = await collect(engine.generate([1], SamplingParams(max_tokens=6), "e"))
            assert both.finish_reason == "stop"  # the end token came as the last one allowed

    run(test)


def test_each_token_is_sent_when_it_is_made():
    async def test():
        model = ScriptedModel("añb")
        model.before_step = turnstile = Turnstile()
        async with started(model) as engine:
            outputs, got = engine.generate([1], LONG, "a"), []
            for _ in range(4):
                turnstile.allow(1)
                got.append(await anext(outputs))
            assert [output.text for output in got] == ["a", "", "ñ", "b"]
            turnstile.allow(1)
            assert await anext(outputs) == RequestOutput("", [EOS], "stop")

    run(test)


def test_stop_texts():
    async def test():
        async with started(ScriptedModel("one. two. three")) as engine:
            got = await collect(engine.generate([1], SamplingParams(stop=(". t", "zzz")), "a"))
            assert (got.text, got.finish_reason) == ("one", "stop")
            assert bytes(got.token_ids) == b"one. t"
            last = await collect(engine.generate([1], SamplingParams(max_tokens=4, stop=(".",)), "b"))
            assert (last.text, last.finish_reason) == ("one", "stop")  # not "length"
            held = await collect(engine.generate([1], SamplingParams(max_tokens=5, stop=(". z",)), "c"))
            assert (held.text, held.finish_reason) == ("one. ", "length")  # what was held back is sent at the end
            ended = await collect(engine.generate([1], SamplingParams(stop=("three!",)), "d"))
            assert (ended.text, ended.finish_reason) == ("one. two. three", "stop")

    run(test)


def test_special_tokens_have_no_text():
    async def test():
        async with started(ScriptedModel([97, SILENT, 98, EOS, 99])) as engine:
            got = await collect(engine.generate([1], SamplingParams(max_tokens=5, ignore_eos=True), "a"))
            assert got == RequestOutput("abc", [97, SILENT, 98, EOS, 99], "length")

    run(test)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 64])
def test_the_same_tokens_as_the_loop_alone(max_num_seqs):
    """A real (tiny) model, sampled, in float64: however many share the steps, each answer is its own."""
    model = tiny_model()
    params = [SamplingParams(max_tokens=12, temperature=1.5, seed=seed) for seed in range(5)]
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6][: seed + 3] * (3 * seed + 1) for seed in range(5)]
    expected = [list(generate(model, prompt, p)) for prompt, p in zip(prompts, params, strict=True)]
    assert len(set(map(tuple, expected))) == 5

    async def test():
        settings = {"tokenizer": PlainTokenizer(), "max_num_seqs": max_num_seqs, "max_num_batched_tokens": 64}
        async with started(model, prefix_caching=True, **settings) as engine:
            asked = [engine.generate(prompt, p, f"{p.seed}") for prompt, p in zip(prompts, params, strict=True)]
            assert [answer.token_ids for answer in await asyncio.gather(*map(collect, asked))] == expected

    run(test)


def test_several_answers_to_one_prompt():
    """The k-th is what seed + k gives alone; each output names its answer, and each answer ends once."""
    model = tiny_model()
    params = SamplingParams(max_tokens=6, temperature=1.5, seed=10, n=3)
    expected = [list(generate(model, [3, 1, 4], replace(params, n=1, seed=10 + k))) for k in range(3)]

    async def test():
        async with started(model, tokenizer=PlainTokenizer(), max_num_seqs=2) as engine:
            got, ends = [[], [], []], []
            async for output in engine.generate([3, 1, 4], params, "a"):
                got[output.index] += output.token_ids
                ends += [output.index] * (output.finish_reason is not None)
            assert got == expected
            assert sorted(ends) == [0, 1, 2]

            outputs, ends = engine.generate([3, 1, 4], replace(params, max_tokens=200), "b"), []
            await anext(outputs)
            engine.abort("b")
            async for output in outputs:
                ends += [output.index] * (output.finish_reason == "abort")
            assert sorted(ends) == [0, 1, 2]

    run(test)


def test_what_retry_after_counts():
    """Finished answers only, and everyone who waits."""

    async def test():
        model, clock = ScriptedModel("ab"), [100.0]

        def four_seconds_a_step(done):
            clock[0] += 4
            engine.abort("left")

        model.before_step = four_seconds_a_step
        async with started(model, max_waiting=2, max_num_seqs=1, clock=lambda: clock[0]) as engine:
            assert (await collect(engine.generate([1], LONG, "left"))).finish_reason == "abort"
            await collect(engine.generate([1], LONG, "whole"))  # three steps
            assert list(engine._requests.service_times) == [12]
            model.before_step = turnstile = Turnstile(1)
            steps = model.steps
            here = [engine.generate([1], LONG, "running")]
            await until(lambda: model.steps == steps + 2)  # its second step has begun, so the first is accounted for
            here += [engine.generate([1], LONG, "first"), engine.generate([1], LONG, "second")]
            clock[0] += 5
            with pytest.raises(QueueFull) as refusal:
                engine.check_place()
            assert refusal.value.retry_after_s == pytest.approx(12 - 5 + 2 * 12)
            clock[0] += 35
            assert engine.retry_after() == pytest.approx(40 + 2 * 12)
            turnstile.allow(100)

    run(test)


def test_waiting_is_shorter_where_many_are_served_at_a_time():
    async def test():
        model, clock = ScriptedModel("x" * 90), [100.0]
        model.before_step = turnstile = Turnstile(1)
        async with started(model, max_waiting=8, max_num_seqs=4, clock=lambda: clock[0]) as engine:
            engine._requests.service_times.append(20)
            with engine._requests.changed:  # the thread sees all four together
                here = [engine.generate([i], LONG, f"running {i}") for i in range(4)]
            await until(lambda: model.steps == 2)
            here += [engine.generate([i], LONG, f"waiting {i}") for i in range(8)]
            clock[0] += 8
            with pytest.raises(QueueFull) as refusal:
                engine.check_place()
            assert refusal.value.retry_after_s == pytest.approx(20 - 8 + 8 / 4 * 20)
            turnstile.allow(1000)

    run(test)
