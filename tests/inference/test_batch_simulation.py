"""The simulation, held against queueing theory, against a clock watched tick by tick, and against the real batcher."""

import asyncio
import random

import pytest

from shared.inference.batch_queue import BatchPolicy
from shared.inference.batch_simulation import Job, ServiceTimes, measure_service_times, outcome, simulate
from shared.inference.batcher import Batcher
from shared.inference.outputs import QueueFull
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import run_virtual
from shared.measure.trace import TraceRequest, make_trace
from tests.tiny import tiny_model

TIMES = ServiceTimes(
    (1, 2, 4, 8), (16, 64), ((0.08, 0.2), (0.1, 0.3), (0.16, 0.5), (0.24, 1.0)), (0.04, 0.05, 0.06, 0.07)
)
POLICIES = [
    BatchPolicy(),
    BatchPolicy(max_wait_s=0.3),
    BatchPolicy(max_wait_s=0.3, adaptive=True),
    BatchPolicy(max_wait_s=0.2, edges=(24, 40), long_from=60, max_waiting=10),
]


def trace_of(*arrivals):
    return [TraceRequest((1,) * 16, 1, at) for at in arrivals]


def test_by_hand():
    """Windows of 2 s, batches of 2, 3 s each, at most 2 waiting."""
    jobs = simulate(trace_of(1, 2, 3, 3.5, 4, 20), BatchPolicy(2, 2.0, max_waiting=2), lambda batch: 3.0)
    assert [(job.started, job.ended, job.batch) for job in jobs] == [
        (2, 5, 2),
        (2, 5, 2),
        (5, 8, 2),
        (5, 8, 2),
        (0, 0, 0),
        (22, 25, 1),
    ]
    got = outcome(jobs)
    assert (got["served"], got["refused"], got["batch"]) == (5, 1, 5 / 3)
    assert got["rate"] == pytest.approx(5 / 24)
    assert got["busy"] == pytest.approx(9 / 24)
    assert got["p50_s"] == pytest.approx(4.5)  # 4, 3, 5, 4.5, 5
    assert got["waited_s"] == pytest.approx((1 + 0 + 2 + 1.5 + 2) / 5)


def test_one_at_a_time_is_lindleys_recursion():
    """Lindley 1952: the next one waits as long as the one before and its service, less the time between the two."""
    trace = make_trace(500, seed=3, prompt_lengths=(8, 64), output_lengths=(1, 8), rate=2.5)
    jobs = simulate(trace, BatchPolicy(max_batch_size=1, max_wait_s=0.0, max_waiting=10**6), TIMES)
    wait = 0.0
    for before, job in zip([None, *jobs], jobs, strict=False):
        if before is not None:
            wait = max(0.0, wait + TIMES([before]) - (job.arrived - before.arrived))
        assert job.started - job.arrived == pytest.approx(wait, abs=1e-9)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_at_a_time_is_m_d_1(load):
    """Random arrivals, equal service: the mean wait is load / (2 (1 - load)) services (Pollaczek and Khinchine)."""
    rng, at, arrivals = random.Random(5), 0.0, []
    for _ in range(20_000):
        at += rng.expovariate(load)
        arrivals.append(at)
    jobs = simulate(
        [TraceRequest((1,), 1, at) for at in arrivals], BatchPolicy(1, 0.0, max_waiting=10**6), lambda batch: 1.0
    )
    assert outcome(jobs)["waited_s"] == pytest.approx(load / (2 * (1 - load)), rel=0.08)
    assert outcome(jobs)["busy"] == pytest.approx(load, rel=0.03)


def watched(trace, size, window, seconds, tick):
    """Brute force: look at the clock every tick, one queue, no buckets. Returns when each request started."""
    started, waiting, free, k, t = {}, [], 0, 0, 0
    while len(started) < len(trace):
        while k < len(trace) and round(trace[k].at / tick) <= t:
            waiting.append(k)
            k += 1
        while waiting and t >= free:
            first = round(trace[waiting[0]].at / tick)
            if len(waiting) < size and t < first + round(window / tick):
                break
            batch, waiting = waiting[:size], waiting[size:]
            started.update(dict.fromkeys(batch, t * tick))
            free = t + round(seconds(len(batch)) / tick)
        t += 1
    return [started[i] for i in range(len(trace))]


def test_batches_by_brute_force():
    rng = random.Random(0)
    for _ in range(30):
        trace = trace_of(*sorted(rng.randint(0, 160) / 8 for _ in range(25)))  # eighths, which floats hold exactly
        size, window, each = rng.randint(1, 5), rng.randint(0, 12) / 8, rng.randint(1, 5) / 8

        def seconds(n, each=each):
            return 0.5 + n * each

        jobs = simulate(trace, BatchPolicy(size, window), lambda batch: seconds(len(batch)))
        want = watched(trace, size, window, seconds, tick=1 / 8)
        assert [job.started for job in jobs] == pytest.approx(want, abs=1e-9)


async def really(trace, policy):
    """The latencies of the real batcher, whose model sleeps for as long as the table says. None: refused."""

    async def model(prompts, params):
        await asyncio.sleep(TIMES([Job(len(p), one.max_tokens, 0.0) for p, one in zip(prompts, params, strict=True)]))
        return prompts

    async def ask(batcher, request):
        await asyncio.sleep(request.at)
        start = asyncio.get_running_loop().time()
        try:
            await batcher.submit(list(request.prompt_ids), SamplingParams(max_tokens=request.max_new_tokens))
        except QueueFull:
            return None
        return asyncio.get_running_loop().time() - start

    async with Batcher(model, policy) as batcher:
        return await asyncio.gather(*(ask(batcher, request) for request in trace))


@pytest.mark.parametrize("rate", [1, 8, 30])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_real_batcher_does_the_same(policy, rate):
    trace = make_trace(150, seed=1, prompt_lengths=(8, 64), output_lengths=(1, 8), rate=rate)
    got = [job.latency if job.batch else None for job in simulate(trace, policy, TIMES)]
    want = run_virtual(really(trace, policy))
    assert [one is None for one in got] == [one is None for one in want]
    assert [one for one in got if one is not None] == pytest.approx([one for one in want if one is not None], abs=1e-5)


def test_nobody_starves():
    """A stream of short ones, more than the model can do, and two others: both are served in their turn."""
    trace = [TraceRequest((1,) * 4, 1, 0.1 * k) for k in range(400)]
    trace += [TraceRequest((1,) * 50, 1, 5.0), TraceRequest((1,) * 300, 1, 5.0)]
    policy = BatchPolicy(max_batch_size=4, max_wait_s=0.5, max_waiting=40, edges=(16,), long_from=200)
    jobs = simulate(trace, policy, lambda batch: 0.6)
    waited = [job.started - job.arrived for job in jobs[-2:] if job.batch]
    assert len(waited) == 2
    assert max(waited) < 8  # 40 may wait before them, ten batches


def test_times_between_those_that_were_measured():
    assert TIMES.seconds(4, 16, 1) == pytest.approx(0.16)
    assert TIMES.seconds(4, 64, 3) == pytest.approx(0.5 + 2 * 0.06)
    assert TIMES.seconds(3, 40, 2) == pytest.approx((0.2 + 0.33) / 2 + 0.055)
    assert TIMES.seconds(12, 16, 1) == pytest.approx(0.32)  # the line goes on
    assert TIMES.seconds(1, 8, 1) == pytest.approx(0.06)
    assert TIMES([Job(16, 1, 0.0), Job(64, 3, 0.0)]) == TIMES.seconds(2, 64, 3)  # padded, and until the last is done
    assert TIMES.faster(10).seconds(4, 64, 3) == pytest.approx(0.062)


def test_measuring():
    ticks = iter(range(10_000))
    times = measure_service_times(
        tiny_model(), (1, 2), (3, 5), steps=4, repeats=2, progress=False, clock=lambda: float(next(ticks))
    )
    assert times.prefill_s == ((1.0, 1.0), (2.0, 2.0))  # a tick for each token that came
    assert times.step_s == (1.0, 2.0)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"batch_sizes": (1,)}, "batch_sizes"),
        ({"batch_sizes": (2, 2)}, "batch_sizes"),
        ({"batch_sizes": (0, 2)}, "batch_sizes"),
        ({"lengths": (64, 16)}, "lengths"),
        ({"steps": 0}, "steps"),
        ({"repeats": 0}, "repeats"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(wrong, word):
    with pytest.raises(ValueError, match=word):
        measure_service_times(None, **wrong)


def test_times_that_are_none():
    with pytest.raises(ValueError, match="lengths"):
        ServiceTimes((1, 2), (8,), ((0.1,), (0.2,)), (0.1, 0.2))
    for times in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="times"):
            TIMES.faster(times)
    falling = ServiceTimes((1, 2), (8, 9), ((0.1, 0.1), (0.1, 0.1)), (0.2, 0.1))
    assert falling.seconds(8, 8, 5) == pytest.approx(0.1)  # a step below zero seconds there is not
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="batch of 1"):
            simulate(trace_of(1), BatchPolicy(), lambda batch, seconds=seconds: seconds)
    with pytest.raises(ValueError, match="no time"):
        outcome(simulate(trace_of(1), BatchPolicy(max_wait_s=0.0), lambda batch: 0.0))


def test_nobody_was_served():
    with pytest.raises(ValueError, match="nobody"):
        outcome([])
