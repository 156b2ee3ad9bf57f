"""Several prompts in one request: charged once, measured from the first, and no wall in front of others."""

import asyncio

import pytest

from shared.inference.sampling import SamplingParams
from shared.serving.api.fan_out import all_outputs
from shared.serving.guard.keys import Key, KeyRing
from shared.serving.guard.service import ANYONE
from shared.serving.settings import Settings
from tests.serving.simulated import SimulatedEngine, ask, counted, nothing_left, now, request, service_over, virtual


async def ask_list(service, num_prompts: int, tokens: int, key: Key = ANYONE) -> object:
    """One request for so many prompts, from begin to end."""
    call = service.begin(request(key), "big")
    prompts = [[1] * 5 for _ in range(num_prompts)]
    params = service.admit(call, prompts, [SamplingParams(max_tokens=tokens)] * num_prompts)
    texts = [""] * num_prompts
    async for batch in await all_outputs(service, call, prompts, params):
        for output in batch:
            texts[output.index] += output.text
    assert texts == ["x" * tokens] * num_prompts
    service.end(call, 200)
    return call


@virtual
async def test_a_list_is_charged_once_however_often_its_prompts_are_turned_away():
    alice, bob = Key("alice", "a" * 64, tokens_per_minute=1000), Key("bob", "b" * 64)
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, keys=KeyRing([alice, bob]), settings=Settings(max_waiting=1))
    bucket = service.limits["alice"].tokens
    listed = asyncio.ensure_future(ask_list(service, 3, 40, alice))
    await asyncio.sleep(0.01)
    assert bucket.remaining(now()) == pytest.approx(1000 - 3 * (5 + 40), abs=1)
    others = [asyncio.ensure_future(ask(service, 100, bob)) for _ in range(8)]
    await asyncio.sleep(10)  # the second prompt finds the queue full, and asks again and again
    assert bucket.remaining(now()) >= 1000 - 3 * (5 + 40)
    call = await listed
    assert call.charged == call.trace.prompt_tokens + call.trace.output_tokens == 3 * (5 + 40)
    assert len(call.runs) == call.trace.n == 3
    await asyncio.gather(*others)
    nothing_left(service, engine)


@virtual
async def test_a_list_that_is_more_than_a_minutes_tokens_is_refused_whole():
    alice = Key("alice", "a" * 64, tokens_per_minute=100)
    engine = SimulatedEngine()
    service = service_over(engine, keys=KeyRing([alice]))
    call = service.begin(request(alice), "big")
    with pytest.raises(Exception, match="may take 135 tokens"):
        service.admit(call, [[1] * 5] * 3, [SamplingParams(max_tokens=40)] * 3)
    service.end(call, 400, "request_too_large")
    assert not engine.started
    assert service.limits["alice"].tokens.remaining(now()) == 100


@virtual
async def test_no_queue_time_is_below_zero():
    engine = SimulatedEngine(max_num_seqs=2)
    service = service_over(engine)
    before = asyncio.ensure_future(ask(service, 10))
    call = await ask_list(service, 8, 10)
    assert call.trace.queue_s == pytest.approx(0, abs=0.2)
    await before
    assert counted(service, "llm_request_queue_seconds_sum", model="big", version="v1") >= 0


@virtual
async def test_a_list_does_not_wait_in_front_of_whoever_comes_later():
    """Not even of those who share its turn: it has one prompt in the queue, and they come behind that."""
    engine = SimulatedEngine(max_num_seqs=4)
    service = service_over(engine, settings=Settings(max_waiting=16))
    listed = asyncio.ensure_future(ask_list(service, 64, 20))
    await asyncio.sleep(0.1)
    assert service.num_waiting == 1 or len(engine.running) == 4
    waits = []
    for _ in range(5):
        start = now()
        assert (await ask(service, 1)).status == 200
        waits.append(now() - start)
    assert max(waits) <= 2 * 2 + 0.2  # a place is free after 2 s at most; before it is one of the list's
    await listed
    nothing_left(service, engine)


@virtual
async def test_without_keys_addresses_take_turns():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, settings=Settings(max_waiting=8))
    flood = [asyncio.ensure_future(ask(service, 10, address="10.0.0.1")) for _ in range(50)]
    await asyncio.sleep(0.05)
    start = now()
    modest = await ask(service, 10, address="10.0.0.2")
    assert modest.status == 200
    assert now() - start <= 1 + 1 + 1 + 0.1  # the one that runs, one of the others', his own
    assert modest.trace.key == modest.key.name == "anyone"  # what is counted and logged knows no addresses
    assert {call.status for call in await asyncio.gather(*flood)} == {200, 429}
    nothing_left(service, engine)


@virtual
async def test_with_keys_the_address_does_not_matter():
    alice = Key("alice", "a" * 64)
    service = service_over(SimulatedEngine(), keys=KeyRing([alice]))
    calls = [service.begin(request(alice, address=address), "big") for address in ("10.0.0.1", "10.0.0.2", "")]
    assert [call.caller for call in calls] == ["alice"] * 3
