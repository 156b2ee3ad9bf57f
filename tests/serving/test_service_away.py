"""The service when its engine goes away, or when the server is to end: nobody waits for ever, and all are told why."""

import asyncio

import pytest

from shared.inference.sampling import SamplingParams
from tests.serving.simulated import (
    SimulatedEngine,
    ask,
    counted,
    nothing_left,
    now,
    request,
    service_over,
    tasks,
    virtual,
)

# ---- the engine goes away


@virtual
async def test_requests_wait_for_an_engine_that_is_away():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine)
    engine.away()
    long, short = tasks(ask(service, 10, timeout=20), ask(service, 10, timeout=2))
    overdue = await short
    assert (overdue.status, overdue.error.code) == (503, "engine_away")
    assert "Retry-After" in overdue.error.headers
    await asyncio.sleep(3)
    engine.returns()
    assert (await long).status == 200
    assert now() == pytest.approx(6, abs=0.01)
    nothing_left(service, engine)


@virtual
async def test_an_engine_that_hangs_is_not_blamed_on_the_request():
    engine = SimulatedEngine(max_num_seqs=2, step_s=lambda running: 1000.0)
    service = service_over(engine)
    overdue = await ask(service, 10, timeout=3)  # it has its place, and no step comes to its end
    assert now() == pytest.approx(3, abs=0.01)
    assert (overdue.status, overdue.error.code) == (503, "engine_away")
    assert "Retry-After" in overdue.error.headers
    assert counted(service, "llm_timeouts_total") == 0


@virtual
async def test_an_engine_that_goes_away_in_the_middle_is_not_either():
    engine = SimulatedEngine(max_num_seqs=2)
    service = service_over(engine)
    asking = asyncio.ensure_future(ask(service, 100, timeout=3))
    await asyncio.sleep(1)
    engine.away()
    overdue = await asking
    assert overdue.text
    assert (overdue.status, overdue.error.code) == (503, "engine_away")


@virtual
async def test_an_engine_that_will_not_come_back():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine)
    engine.away()
    waiting = asyncio.ensure_future(ask(service, 10))
    await asyncio.sleep(1)
    engine.returns("failed")
    assert ((await waiting).status, (await waiting).error.code) == (503, "engine_failed")
    assert (await ask(service, 10)).error.code == "engine_failed"
    nothing_left(service, engine)


# ---- the end


@virtual
async def test_draining_lets_those_finish_who_are_in():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine)
    inside = tasks(ask(service, 50), ask(service, 50))  # the second waits
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(service.stop(30))
    await asyncio.sleep(0.1)
    assert not service.health.ready
    assert service.status()["status"] == "shutting down"
    late = await ask(service, 1)
    assert (late.status, late.error.code) == (503, "shutting_down")
    assert [call.status for call in await asyncio.gather(*inside)] == [200, 200]
    await stopping
    assert now() == pytest.approx(10, abs=0.1)
    assert engine.state == "stopped"
    nothing_left(service, engine)


@pytest.mark.parametrize("hurried", [False, True])
def test_what_is_not_done_in_time_is_told_so(hurried):
    @virtual
    async def run():
        engine = SimulatedEngine(max_num_seqs=1)
        service = service_over(engine)
        computed, waiting = tasks(ask(service, 1000), ask(service, 1000))
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(service.stop(20))
        await asyncio.sleep(1)
        if hurried:
            service.hurry()
        for call in await asyncio.gather(computed, waiting):
            assert (call.status, call.error.code) == (503, "shutting_down")
        assert computed.result().text
        await stopping
        assert now() == pytest.approx(2 if hurried else 21, abs=0.05)
        assert engine.state == "stopped"
        nothing_left(service, engine)

    run()


@virtual
async def test_the_end_does_not_wait_long_for_a_caller_who_does_not_read():
    engine = SimulatedEngine()
    service = service_over(engine)
    call = service.begin(request(), "big")
    await service.outputs(call, [1], SamplingParams(max_tokens=1000))
    await service.stop(0)
    assert now() < 2
    assert engine.state == "stopped"
