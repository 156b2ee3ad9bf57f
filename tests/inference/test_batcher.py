"""The batcher, whole: on a clock that jumps with a scripted model, and with a tiny real one in a thread."""

import asyncio
import threading
import time

import pytest

from shared.inference.batch_queue import BatchPolicy
from shared.inference.batcher import Batcher, DeadlineExceeded, in_thread, model_batcher
from shared.inference.generate import generate
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import run_virtual
from tests.inference.batcher_scenes import PARAMS, POLICY, Model, ask, play
from tests.tiny import tiny_model


def test_each_gets_the_right_answer():
    got, batches = play([0.0, 0.1, 0.2, 0.3, 0.4])
    assert got == [([0, k], 2.3) for k in range(4)] + [([0, 4], 4.3)]  # the fifth was overdue when the model was free
    assert batches == [[0, 1, 2, 3], [4]]


def test_busy_come_back_later():
    got, batches = play([0.001 * k for k in range(12)])
    assert [kind for kind, _ in got[10:]] == [QueueFull, QueueFull]  # 4 are computed and 6 wait
    assert [at for _, at in got[10:]] == [0.01, 0.011]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    async def refused():
        async with Batcher(Model(), POLICY) as batcher:
            callers = [asyncio.ensure_future(ask(batcher, k, at=0.1 * (k > 3))) for k in range(10)]
            await asyncio.sleep(2.5)  # one batch is done, in 2 s, four are computed, and two wait
            more = [asyncio.ensure_future(ask(batcher, k)) for k in range(4)]
            await asyncio.sleep(0.1)
            with pytest.raises(QueueFull) as caught:
                await batcher.submit([9], PARAMS)
            await asyncio.gather(*callers, *more)
            return caught.value.retry_after_s

    assert run_virtual(refused()) == pytest.approx(
        3 * (1 + (2 - 1) / 3), abs=1e-6
    )  # 3 batches of what is thought usual


def test_a_deadline_in_the_queue():
    got, batches = play([0.0, 0.0, 0.0, 0.0, 0.5, 0.5], timeout_s=1.2)
    assert got[:4] == [([0, k], 2.0) for k in range(4)]  # in time for their batch, which took longer than the deadline
    assert got[4:] == [(DeadlineExceeded, 1.7)] * 2
    assert batches == [[0, 1, 2, 3]]  # nothing was computed for the two


def test_a_deadline_shorter_than_the_window_is_refused():
    async def scene():
        async with Batcher(Model(), POLICY) as batcher:
            with pytest.raises(ValueError, match="timeout_s must be longer than the window"):
                await batcher.submit([1], PARAMS, timeout_s=1.0)
            for wrong in ("2", True):
                with pytest.raises(ValueError, match="timeout_s"):
                    await batcher.submit([1], PARAMS, timeout_s=wrong)
            with pytest.raises(ValueError, match="params must be SamplingParams"):
                await batcher.submit([1], None)
            return len(batcher.queue)

    assert run_virtual(scene()) == 0


def test_who_leaves():
    """One leaves while waiting, one while the batch runs; everybody else is served, and the batcher lives on."""
    model = Model()

    async def scene():
        async with Batcher(model, POLICY) as batcher:
            callers = [asyncio.ensure_future(ask(batcher, k)) for k in range(4)]
            late = [asyncio.ensure_future(ask(batcher, k, at=0.5)) for k in (4, 5)]
            await asyncio.sleep(1.0)
            callers[1].cancel()
            late[0].cancel()
            rest = await asyncio.gather(*callers, *late, return_exceptions=True)
            return rest, await ask(batcher, 6)

    rest, after = run_virtual(scene())
    assert [isinstance(one, asyncio.CancelledError) for one in rest] == [False, True, False, False, True, False]
    assert rest[0] == ([0, 0], 2.0)
    assert after == ([0, 6], 7.0)  # it came at 4 s, when the others were done, and waited for its window
    assert model.batches == [[0, 1, 2, 3], [5], [6]]


def test_a_batch_that_fails_is_only_one_batch():
    model = Model()

    async def scene():
        async with Batcher(model, POLICY) as batcher:
            bad = asyncio.ensure_future(batcher.submit([13], PARAMS))
            first = await ask(batcher, 1)
            with pytest.raises(GenerationError, match="MemoryError: no room"):
                await bad
            return first, await ask(batcher, 2)

    assert run_virtual(scene()) == ((GenerationError, 3.0), ([0, 2], 6.0))


def test_stop():
    async def scene():
        batcher = Batcher(Model(), POLICY)
        with pytest.raises(EngineStopped):
            await batcher.submit([1], PARAMS)
        batcher.start()
        with pytest.raises(RuntimeError, match="started already"):
            batcher.start()
        callers = [asyncio.ensure_future(ask(batcher, k)) for k in range(6)]
        await asyncio.sleep(0.5)  # four are in the model, two wait
        await batcher.stop()
        await batcher.stop()
        got = await asyncio.gather(*callers)
        with pytest.raises(EngineStopped):
            await batcher.submit([1], PARAMS)
        batcher.start()
        return got, await ask(batcher, 7)

    got, again = run_virtual(scene())
    assert got == [(EngineStopped, 0.5)] * 6
    assert again == ([0, 7], 3.5)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemError("the model is gone")])
def test_who_waits_hears_what_the_collector_died_of(error):
    """Nobody stopped it: the one in the batch and the one who waits are told so, and it can be started again."""

    class Dying(Batcher):
        async def deliver(self, batch):
            await asyncio.sleep(0.5)
            raise error

    async def scene():
        batcher = Dying(Model(), BatchPolicy(max_batch_size=1))
        batcher.start()
        callers = [asyncio.ensure_future(batcher.submit([k], PARAMS)) for k in range(2)]
        told = await asyncio.gather(*callers, return_exceptions=True)
        with pytest.raises(EngineStopped, match="not running"):
            await batcher.submit([1], PARAMS)
        batcher.start()
        await batcher.stop()
        return told

    for one in run_virtual(scene()):
        assert isinstance(one, EngineStopped)
        assert f"collector died of {type(error).__name__}" in str(one)


def test_stopping_ends_the_batch_in_the_thread_at_its_next_step():
    """A model that takes 0.02 s a step, asked for 200 tokens: it stops at once, and computes no further."""
    tiny, calls = tiny_model(), []
    begun = threading.Event()

    class Slow:
        config, parameters = tiny.config, tiny.parameters

        def __call__(self, *given, **named):
            calls.append(time.sleep(0.02))
            begun.set()
            return tiny(*given, **named)

    async def scene():
        async with Batcher(in_thread(Slow()), BatchPolicy(max_wait_s=0.0)) as batcher:
            caller = asyncio.ensure_future(batcher.submit([1], SamplingParams(max_tokens=200)))
            await asyncio.to_thread(begun.wait)
        with pytest.raises(EngineStopped, match="was stopped"):
            await caller

    asyncio.run(scene())  # it waits for the thread
    assert len(calls) < 100


def test_buckets_and_the_long_one():
    """Lengths 5 to 8, 20 to 23, and one of 500: three kinds, no batch holds two of them."""
    policy = BatchPolicy(max_batch_size=4, max_wait_s=1.0, edges=(10, 100), long_from=400)
    seen = []

    async def model(prompts, params):
        seen.append(sorted(map(len, prompts)))
        await asyncio.sleep(0.5)
        return prompts

    async def scene():
        async with Batcher(model, policy) as batcher:
            lengths = [1, 16, 2, 17, 500, 3, 18, 4, 19]
            got = await asyncio.gather(*(batcher.submit(list(range(n)), PARAMS) for n in lengths))
            assert list(map(len, got)) == lengths

    run_virtual(scene())
    assert sorted(seen) == [[1, 2, 3, 4], [16, 17, 18, 19], [500]]


def test_a_real_model_in_a_thread():
    """Real time, real answers; the event loop goes on while the model computes."""
    model = tiny_model()
    prompts = [[k + 1] * (k % 5 + 1) for k in range(12)]
    params = [SamplingParams(max_tokens=k % 4 + 1) for k in range(12)]

    async def scene():
        policy = BatchPolicy(max_batch_size=4, max_wait_s=0.005, adaptive=True)
        async with model_batcher(model, policy) as batcher:
            for bad in ([], [97], [1] * 256):
                with pytest.raises(ValueError):
                    await batcher.submit(bad, PARAMS)
            with pytest.raises(ValueError, match="stop"):
                await batcher.submit([1], SamplingParams(stop=("x",)))
            return await asyncio.gather(*(batcher.submit(p, one) for p, one in zip(prompts, params, strict=True)))

    want = [list(generate(model, p, one)) for p, one in zip(prompts, params, strict=True)]
    assert asyncio.run(scene()) == want
