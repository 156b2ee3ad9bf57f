"""The service over an engine with fixed step times, on a clock that jumps: places in the queue, and deadlines."""

import asyncio

import pytest

from shared.inference.sampling import SamplingParams
from shared.serving.errors import ApiError
from shared.serving.guard.deadline import LONGEST_S, SHORTEST_S, UNKNOWN_S
from shared.serving.settings import Settings
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

# ---- places and the queue


@virtual
async def test_as_many_run_as_the_engine_takes_and_few_wait():
    engine = SimulatedEngine(max_num_seqs=2)
    service = service_over(engine, settings=Settings(max_waiting=1))
    first = tasks(*[ask(service, 10) for _ in range(3)])
    await asyncio.sleep(0.05)
    assert len(engine.running) == 2
    assert service.num_waiting == service.telemetry.queue_depth() == 1
    start = now()
    refused = await ask(service, 10)
    assert now() == start  # at once
    assert (refused.status, refused.error.code) == (429, "queue_full")
    assert 1 <= int(refused.error.headers["Retry-After"]) <= 60
    assert [call.status for call in await asyncio.gather(*first)] == [200] * 3
    assert now() == pytest.approx(2.0, abs=0.01)  # ten steps of 0.1 s, twice
    nothing_left(service, engine)
    assert counted(service, "llm_refusals_total", reason="queue_full") == 1
    assert counted(service, "http_requests_total", route="/v1/chat/completions", status="200") == 3
    assert counted(service, "http_requests_total", route="/v1/chat/completions", status="429") == 1


@virtual
async def test_n_answers_take_n_places():
    engine = SimulatedEngine(max_num_seqs=4)
    service = service_over(engine)
    call = service.begin(request(), "big")
    [params] = service.admit(call, [[1]], [SamplingParams(max_tokens=5, n=3)])
    await service.outputs(call, [1], params)
    admission = service.admission_of(call.version)
    assert admission.num_running == 3
    assert call.trace.n == 3
    service.end(call, 200)
    assert admission.num_running == 0


@virtual
async def test_a_place_is_free_when_the_engine_is_done_however_slowly_the_answer_is_read():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine)
    slow = service.begin(request(), "big")
    run = await service.outputs(slow, [1], SamplingParams(max_tokens=3))
    assert (await ask(service, 3)).status == 200
    assert now() == pytest.approx(0.6, abs=0.01)
    assert len([output async for output in run]) == 3  # and it is all there
    service.end(slow, 200)
    nothing_left(service, engine)


@virtual
async def test_whoever_leaves_frees_a_place():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, settings=Settings(max_waiting=2))
    running, waiting, last = tasks(ask(service, 1000), ask(service, 1000), ask(service, 10))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(1)
    assert len(engine.started) == 1
    running.cancel()
    assert (await last).status == 200
    assert now() == pytest.approx(3, abs=0.15)
    nothing_left(service, engine)
    unread = service.begin(request(), "big")
    run = await service.outputs(unread, [1], SamplingParams(max_tokens=1000))
    await run.aclose()  # not even begun
    assert not engine.running
    service.end(unread, 499, "cancelled")
    nothing_left(service, engine)


@virtual
async def test_a_prompt_that_cannot_be_served_is_a_value_error_and_holds_nothing():
    engine = SimulatedEngine()
    service = service_over(engine)
    call = service.begin(request(), "big")
    with pytest.raises(ValueError, match="too long"):
        service.admit(call, [[1] * 5000], [SamplingParams()])
    service.end(call, 400, "invalid_value")
    nothing_left(service, engine)


@virtual
async def test_an_unknown_model_and_a_bad_timeout():
    service = service_over(SimulatedEngine())
    wrong = [("nobody", None, 404, "model"), *[("big", t, 400, "timeout") for t in (0.0, -1, 601.0, float("nan"))]]
    for model, timeout, status, param in wrong:
        with pytest.raises(ApiError) as refusal:
            service.begin(request(), model, timeout)
        assert (refusal.value.status, refusal.value.body["error"]["param"]) == (status, param)
    nothing_left(service)


# ---- deadlines


@virtual
async def test_the_deadline_while_it_waits_is_a_503_and_while_it_is_computed_a_504():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, settings=Settings(max_waiting=2))
    computed, waiting = tasks(ask(service, 1000, timeout=5), ask(service, 10, timeout=3))
    overdue = await waiting
    assert now() == pytest.approx(3, abs=0.01)
    assert (overdue.status, overdue.error.code) == (503, "overloaded")
    assert 1 <= int(overdue.error.headers["Retry-After"]) <= 60
    overdue = await computed
    assert now() == pytest.approx(5, abs=0.01)
    assert (overdue.status, overdue.error.code) == (504, "deadline_passed")
    assert 45 <= len(overdue.text) <= 50  # what there was came
    assert not engine.running
    assert (await ask(service, 10)).status == 200
    nothing_left(service, engine)
    assert counted(service, "llm_timeouts_total") == 1


@virtual
async def test_what_cannot_make_its_deadline_is_refused_at_once():
    engine = SimulatedEngine(max_num_seqs=1)
    service = service_over(engine, settings=Settings(max_waiting=5))
    for _ in range(30):
        await ask(service, 100)  # 10 s each: by now the service knows
    running = asyncio.ensure_future(ask(service, 100))
    await asyncio.sleep(0.1)
    start = now()
    refused = await ask(service, 100, timeout=5)
    assert (refused.status, now()) == (429, start)
    assert (await ask(service, 100, timeout=40)).status == 200
    await running
    assert (await ask(service, 10, timeout=5)).status == 200  # there is a place: it may try


@virtual
async def test_nothing_is_said_of_a_deadline_before_an_answer_was_measured():
    engine = SimulatedEngine(max_num_seqs=1, step_s=lambda running: 0.02)
    service = service_over(engine, settings=Settings(max_waiting=5))
    running = asyncio.ensure_future(ask(service, 1))
    await asyncio.sleep(0.001)
    assert (await ask(service, 1, timeout=0.3)).status == 200
    await running
    running = asyncio.ensure_future(ask(service, 1))
    await asyncio.sleep(0.001)
    assert (await ask(service, 1, timeout=0.3)).status == 200  # and now it is known that 0.3 s are enough
    await running


@virtual
async def test_when_to_come_back_after_a_burst():
    """250 callers at once, and answers that take 0.1 s: those who are refused come back soon."""
    engine = SimulatedEngine(max_num_seqs=32)
    service = service_over(engine)
    asked = []

    async def caller() -> None:
        call = service.begin(request(), "big")
        try:
            await service.encode(call, lambda: None)
            [params] = service.admit(call, [[1]], [SamplingParams(max_tokens=1)])
            async for _ in await service.outputs(call, [1], params):
                pass
            service.end(call, 200)
        except ApiError as error:
            service.end(call, error.status, error.code)
            asked.append(int(error.headers["Retry-After"]))

    await asyncio.gather(*[caller() for _ in range(250)])
    assert len(asked) > 100
    assert max(asked) <= 4
    nothing_left(service, engine)


@virtual
async def test_a_timer_that_rings_after_the_last_token_takes_nothing_away():
    engine = SimulatedEngine()
    service = service_over(engine)
    call = service.begin(request(), "big", timeout=2.0)
    run = await service.outputs(call, [1], SamplingParams(max_tokens=10))
    await asyncio.sleep(5)  # the caller reads late
    assert len([output async for output in run]) == 10
    service.end(call, 200)


@virtual
async def test_the_default_timeout_is_three_times_the_measured_p99():
    engine = SimulatedEngine(max_num_seqs=8)
    service = service_over(engine)
    assert service.timeouts.default() == UNKNOWN_S
    assert service.begin(request(), "big").headers() == {"X-Timeout": "300"}
    for _ in range(25):
        await asyncio.gather(*[ask(service, 150) for _ in range(8)])  # 15 s each
    assert service.timeouts.default() == pytest.approx(45, rel=0.01)
    assert service.status()["default_timeout_s"] == pytest.approx(45, rel=0.01)
    assert service.begin(request(), "big", timeout=2.5).headers() == {"X-Timeout": "2.5"}
    assert service_over(engine, settings=Settings(timeout=12.0)).timeouts.default() == 12.0
    assert SHORTEST_S < 45 < LONGEST_S
