"""The service on a clock that jumps: limits of a key, fair turns, less for all, more than it can do, a storm."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from shared.inference.sampling import SamplingParams
from shared.serving.guard.degradation import SHORT_TOKENS
from shared.serving.guard.keys import Key, KeyRing
from shared.serving.settings import Settings
from tests.serving.simulated import (
    SimulatedEngine,
    ask,
    nothing_left,
    now,
    request,
    service_over,
    tasks,
    virtual,
)

# ---- limits of a key


@virtual
async def test_tokens_are_charged_and_what_was_not_used_is_given_back():
    alice = Key("alice", "a" * 64, tokens_per_minute=100)
    engine = SimulatedEngine()
    service = service_over(engine, keys=KeyRing([alice]))
    bucket = service.limits["alice"].tokens
    call = service.begin(request(alice), "big")
    [params] = service.admit(call, [[1] * 10], [SamplingParams(max_tokens=40, n=2)])
    run = await service.outputs(call, [1] * 10, params)
    assert bucket.remaining(now()) == 10
    for _ in range(4):
        await anext(run)  # and then it leaves
    start = now()
    service.end(call, 499, "cancelled")
    assert bucket.remaining(now()) == pytest.approx(100 - 10 - 4, abs=1)  # a minute's worth comes back in a minute
    refused = await ask(service, 90, alice)
    assert (refused.status, refused.error.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.error.headers["Retry-After"]) <= 60
    assert now() == start
    never = await ask(service, 96, alice)
    assert (never.status, never.error.body["error"]["param"]) == (400, "max_tokens")  # no waiting would help
    await asyncio.sleep(30)
    assert (await ask(service, 95, alice)).status == 200
    nothing_left(service, engine)


@virtual
async def test_an_answer_of_any_length_is_as_long_as_the_keys_limit_allows():
    alice = Key("alice", "a" * 64, tokens_per_minute=100)
    service = service_over(SimulatedEngine(), keys=KeyRing([alice]))
    for n, length in ((1, 90), (4, 22)):
        call = service.begin(request(alice), "big")
        [params] = service.admit(call, [[1] * 10], [SamplingParams(max_tokens=1024, n=n)], any_length=True)
        assert params.max_tokens == length
        service.end(call, 200)


@virtual
async def test_a_refused_request_costs_no_tokens():
    alice = Key("alice", "a" * 64, tokens_per_minute=1000)
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, keys=KeyRing([alice]), settings=Settings(max_waiting=0))
    running = asyncio.ensure_future(ask(service, 100, alice))
    await asyncio.sleep(0)
    before = service.limits["alice"].tokens.remaining(now())
    assert (await ask(service, 100, alice)).status == 429
    assert service.limits["alice"].tokens.remaining(now()) == before
    await running


@virtual
async def test_callers_with_a_thousand_requests_do_not_starve_another():
    """Bob's requests wait for a turn of each other key at most, and not for the whole queue."""
    greedy, bob = [Key(name, name * 64) for name in "acd"], Key("bob", "b" * 64)
    engine = SimulatedEngine(max_num_seqs=4)
    service = service_over(engine, keys=KeyRing([*greedy, bob]), settings=Settings(max_waiting=16))
    flood = tasks(*[ask(service, 20, greedy[0]) for _ in range(1000)])
    await asyncio.sleep(0.1)
    assert service.num_waiting == 16  # alone, one key may have the whole queue
    flood += tasks(*[ask(service, 20, key) for key in greedy[1:] for _ in range(1000)])
    await asyncio.sleep(0.1)
    admission = service.admission_of(service.versions.list()[0])
    assert max(admission.waiting_by_key.values()) <= 6  # sixteen places, three keys
    for _ in range(5):
        start = now()
        answer = await ask(service, 20, bob)
        assert answer.status == 200
        assert now() - start <= 3 * 2 + 0.1  # two seconds until places are free, a turn of the others, and his own two
    statuses = [call.status for call in await asyncio.gather(*flood)]
    assert set(statuses) == {200, 429}
    nothing_left(service, engine)


# ---- degraded answers


async def fill(service, engine, waiting: int) -> list[asyncio.Task]:
    running = engine.limits.max_num_seqs
    before = tasks(*[ask(service, 300) for _ in range(running + waiting)])
    await asyncio.sleep(0.05)
    assert service.num_waiting == waiting
    return before


@virtual
async def test_answers_are_shortened_while_half_of_the_queue_is_taken():
    for degrade, waiting, tokens, marked in (
        ("off", 2, 300, {}),
        ("shorter", 1, 300, {}),
        ("shorter", 2, 128, {"max_tokens": "128"}),
    ):
        engine = SimulatedEngine(max_num_seqs=1)
        service = service_over(engine, settings=Settings(max_waiting=4, degrade=degrade))
        await fill(service, engine, waiting)
        call = await ask(service, 300)
        assert (len(call.text), call.degraded) == (tokens, marked)
        assert call.headers().get("X-Degraded") == ("max_tokens=128" if marked else None)
        assert (await ask(service, 10)).degraded == {}
    assert SHORT_TOKENS == 128


@virtual
async def test_a_smaller_model_answers_while_half_of_the_queue_is_taken():
    big, small = SimulatedEngine(max_num_seqs=1), SimulatedEngine(max_num_seqs=1)
    service = service_over(big, small, settings=Settings(max_waiting=2, degrade="folder/small"))
    assert (await ask(service, 5)).version.model == "big"
    await fill(service, big, 1)
    call = await ask(service, 5)
    assert (call.status, call.version.model, call.degraded) == (200, "small", {"model": "small"})
    assert call.trace.degraded == "model"
    assert len(small.started) == 1
    assert (await ask(service, 5, model="big@v1")).version.model == "big"  # it named a version, and gets that one
    assert service.begin(request(), "big", degrade=False).version.model == "big"
    small.limits = SimpleNamespace(max_model_len=10, max_num_seqs=1)  # it could not take every prompt
    assert (await ask(service, 5)).version.model == "big"


# ---- more than it can do


async def under_load(share: float, lengths: list[int], settings: Settings) -> tuple[set[int], float, float]:
    """Strangers come at `share` of what the engine can do. Returns the statuses, P99 of the answers, and tokens/s.

    A step takes 40 ms, and 5 ms more for each request in it, as of a small model on two cores.
    """
    rng, most = random.Random(1), settings.max_num_seqs
    engine = SimulatedEngine(most, lambda running: 0.04 + 0.005 * running)
    service = service_over(engine, settings=settings)
    rate = share * most / engine.step_s(most) / (sum(lengths) / len(lengths))
    jobs, times = [], []

    async def caller(length: int) -> SimpleNamespace:
        start = now()
        answer = await ask(service, length)
        times.append((answer.status, now() - start))
        return answer

    for length in lengths:
        jobs.append(asyncio.ensure_future(caller(length)))
        await asyncio.sleep(rng.expovariate(rate))
    answers = await asyncio.gather(*jobs)
    served = sorted(seconds for status, seconds in times if status == 200)
    nothing_left(service, engine)
    goodput = sum(len(answer.text) for answer in answers) / now()
    return {status for status, _ in times}, served[int(0.99 * len(served))], goodput


@pytest.mark.parametrize("kind", ["equal", "mixed"])
def test_half_as_much_again_as_it_can_do(kind):
    """Nobody gets anything but an answer or 429; the answers come in good time, and there are no fewer of them."""
    rng = random.Random(0)
    mixed = [min(int(rng.lognormvariate(2.5, 0.8)) + 1, 80) for _ in range(400)]
    lengths, settings, got = mixed if kind == "mixed" else [16] * 400, Settings(), {}
    for share in (0.8, 1.0, 1.5):

        @virtual
        async def run(share=share):
            got[share] = await under_load(share, lengths, settings)

        run()
    assert got[0.8][0] <= {200, 429}
    assert got[1.5][0] == {200, 429}
    assert got[1.5][1] <= 3 * got[0.8][1]
    assert got[1.5][2] >= 0.9 * got[1.0][2]


# ---- everything at once


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_leaves_nothing_behind(seed):
    """Callers who leave, deadlines, an engine that goes away, a key with limits: the books are right after it."""

    @virtual
    async def run():
        rng = random.Random(seed)
        keys = [Key("a", "a" * 64, tokens_per_minute=3000), Key("b", "b" * 64, max_waiting=2), Key("c", "c" * 64)]
        engine = SimulatedEngine(max_num_seqs=3)
        service = service_over(engine, keys=KeyRing(keys), settings=Settings(max_waiting=6))
        jobs = []
        for _ in range(150):
            timeout = rng.choice([None, None, 1.0, 4.0, 20.0])
            jobs.append(asyncio.ensure_future(ask(service, rng.randint(1, 40), rng.choice(keys), timeout)))
            await asyncio.sleep(rng.choice([0, 0, 0.3, 2.0]))
            if rng.random() < 0.2:
                rng.choice(jobs).cancel()
            if rng.random() < 0.05:
                engine.away()
            elif rng.random() < 0.2:
                engine.returns()
        engine.returns()
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        statuses = {answer.status for answer in answers if not isinstance(answer, asyncio.CancelledError)}
        assert statuses <= {200, 429, 503, 504}
        assert {200, 429} <= statuses
        nothing_left(service, engine)
        await asyncio.sleep(60)
        assert service.limits["a"].tokens.remaining(now()) == 3000
        await service.stop(5)

    run()
