"""What a load balancer and whoever starts programs anew are told, and whether it is true."""

import asyncio
from pathlib import Path

from shared.serving.guard.health import AWAY_S
from shared.serving.models.version import Version
from shared.serving.settings import Settings
from tests.serving.simulated import SimulatedEngine, ask, service_over, virtual


def loaded(service, engine, name: str, model: str) -> None:
    service.versions.add(Version(name, model, Path(model), engine, state="ready"))


@virtual
async def test_while_the_engine_is_replaced_requests_are_let_in_and_wait():
    engine = SimulatedEngine()
    service = service_over(engine)
    assert service.health.ready
    engine.away()
    assert service.health.ready
    waiting = asyncio.ensure_future(ask(service, 5))
    await asyncio.sleep(AWAY_S - 1)
    assert service.health.ready
    engine.returns()
    assert (await waiting).status == 200


@virtual
async def test_an_engine_that_is_away_for_long_is_told():
    engine = SimulatedEngine()
    service = service_over(engine)
    for _ in range(2):  # and the time begins anew when it was back
        engine.away()
        assert service.health.ready
        await asyncio.sleep(AWAY_S + 1)
        assert not service.health.ready
        assert not service.health.failed
        engine.returns()
        assert service.health.ready


@virtual
async def test_a_version_without_a_share_does_not_make_the_server_ready():
    engine, other, third = SimulatedEngine(), SimulatedEngine(), SimulatedEngine()
    service = service_over(engine)
    loaded(service, other, "v2", "big")
    loaded(service, third, "v3", "another model")
    engine.returns("failed")
    assert (await ask(service, 5)).status == 503
    assert not service.health.ready
    assert service.health.failed
    service.versions.promote("v2")
    assert (await ask(service, 5)).status == 200
    assert service.health.ready
    assert not service.health.failed
    third.returns("failed")  # another model's engine isn't this server's
    assert service.health.ready


@virtual
async def test_as_long_as_one_version_can_answer_it_is_ready():
    engine, other = SimulatedEngine(), SimulatedEngine()
    service = service_over(engine)
    loaded(service, other, "v2", "big")
    service.versions.shift({"v1": 0.5, "v2": 0.5})
    engine.returns("failed")
    assert service.health.ready
    other.returns("failed")
    assert service.health.failed
    assert not service.health.ready


@virtual
async def test_the_smaller_model_answers_when_the_engine_has_failed():
    big, small = SimulatedEngine(), SimulatedEngine()
    for degrade, status in (("off", 503), ("folder/small", 200)):
        big.returns("failed")
        service = service_over(big, small, settings=Settings(degrade=degrade))
        answer = await ask(service, 5)
        assert answer.status == status
        assert service.health.ready == (status == 200)
        assert service.health.failed == (status == 503)
    assert answer.degraded == {"model": "small"}
    assert (await ask(service, 5, model="big@v1")).status == 503  # whoever names a version gets no other
    small.returns("failed")
    assert (await ask(service, 5)).status == 503
    assert service.health.failed
    assert not service.health.ready


@virtual
async def test_nothing_is_loaded_yet():
    service = service_over()
    assert not service.health.ready
    assert not service.health.failed  # it may load for a long time
