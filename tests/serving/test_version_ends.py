"""Versions that fail or leave: nobody else is disturbed, streams come to their end, and what serves is kept."""

import asyncio
from pathlib import Path

from shared.inference.sampling import SamplingParams
from shared.serving.engines.engine import EngineFailed
from tests.inference.scripted import Turnstile
from tests.serving.scripted_versions import MODEL, answer, refusal, run


def test_a_version_whose_engine_does_not_start_or_fails_its_warm_up_is_told_and_disturbs_nobody():
    async def test(bench):
        v1 = await bench.load()
        make = bench.versions._make_engine

        def broken(path, name):
            engine = make(path, name)
            if name == "v2":
                engine.start = _cannot_start
            elif name == "v3":
                bench.models[name].garbled = [[*b"Hi:"]]
            return engine

        bench.versions._make_engine = broken
        told, engines = bench.telemetry.event, []

        def event(kind, text, **fields):
            if kind == "version_failed":
                engines.append(bench.versions.get(fields["version"]).engine.state)
            told(kind, text, **fields)

        bench.telemetry.event = event
        v2 = await bench.load()
        assert (v2.state, v2.error) == ("failed", "weights.bin is not a model")
        assert isinstance(v2.failure, EngineFailed)
        v3 = await bench.load()
        assert v3.state == "failed"
        assert engines == ["stopped", "stopped"]  # no step may follow: its numbers are forgotten
        assert v3.engine.state == "stopped"
        for name in ("v2", "v3"):
            assert refusal(bench.versions.promote, name, force=True).status == 409
            await bench.versions.start_unload(name)
        assert bench.versions.list() == [v1]
        assert await answer(bench.versions.pick(MODEL, "r")) == "yes"

    async def _cannot_start():
        raise EngineFailed("weights.bin is not a model")

    run(test)


def test_a_stream_keeps_its_version_and_traffic_flows_while_another_loads():
    async def test(bench):
        v1 = await bench.load()
        turnstile = bench.models["v1"].before_step = Turnstile(2)
        version = bench.versions.pick(MODEL, "r")
        version.enter()
        stream = version.engine.generate([1, 2], SamplingParams(max_tokens=50), "stream")
        first = await anext(stream)
        slow = asyncio.Event()
        make = bench.versions._make_engine

        def make_slow(path, name):
            engine = make(path, name)
            start = engine.start

            async def start_slowly():
                await slow.wait()
                await start()

            engine.start = start_slowly
            return engine

        bench.versions._make_engine = make_slow
        v2 = bench.versions.load(Path("folder"), MODEL)
        second = await anext(stream)  # v2 is still loading
        assert v2.state == "loading"
        slow.set()
        await v2.settled
        bench.versions.promote("v2")
        assert bench.versions.pick(MODEL, "r") is v2
        leaving = bench.versions.start_unload("v1")
        await asyncio.sleep(0.02)
        assert (v1.state, v1.engine.state) == ("unloading", "ready")
        assert refusal(bench.versions.pick, f"{MODEL}@v1", "r").status == 503
        turnstile.allow(50)
        rest = [token async for output in stream for token in output.token_ids]
        assert bytes([*first.token_ids, *second.token_ids, *rest[:-1]]) == b"abcdefgh"
        assert not leaving.done()
        version.leave(8)
        await leaving
        assert v1.engine.state == "stopped"
        assert bench.versions.list() == [v2]
        assert refusal(bench.versions.rollback).status == 409  # no way back to what isn't there
        assert bench.telemetry.kinds[-2:] == ["version_unloading", "version_unloaded"]

    run(test, {"v1": "abcdefgh", "v2": "two"})


def test_the_version_that_serves_is_not_unloaded_and_one_that_loads_is_stopped():
    async def test(bench):
        v1 = await bench.load()
        error = refusal(bench.versions.start_unload, "v1")
        assert error.status == 409
        assert "100%" in str(error)
        v2 = bench.versions.load(Path("folder"), MODEL)
        bench.models["v2"].before_step = Turnstile(0)  # its warm-up doesn't end
        while v2.state != "warming":
            await asyncio.sleep(0.005)
        leaving = bench.versions.start_unload("v2")
        assert refusal(bench.versions.start_unload, "v2").status == 409
        bench.models["v2"].before_step.allow(1)
        await leaving
        assert bench.versions.list() == [v1]
        assert bench.telemetry.kinds[-2:] == ["version_unloading", "version_unloaded"]
        assert refusal(bench.versions.start_unload, "v2").status == 404

    run(test)


def test_what_is_stopped_while_it_loads_has_not_failed():
    async def test(bench):
        await bench.load()
        v2 = bench.versions.load(Path("folder"), MODEL)
        bench.models["v2"].before_step = Turnstile(0)
        while v2.state != "warming":
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(bench.versions.stop())
        await asyncio.sleep(0)
        bench.models["v2"].before_step.allow(1)
        await stopping
        assert bench.telemetry.kinds[-1] == "version_unloaded"
        assert v2.error == "it was stopped while it was being loaded"
        assert "version_failed" not in bench.telemetry.kinds

    run(test)


def test_the_only_version_of_a_model_takes_the_model_with_it_but_not_the_servers_own():
    async def test(bench):
        await bench.load()
        other = await bench.load("small", model="other")
        other.enter()
        leaving = bench.versions.start_unload("small")
        assert refusal(bench.versions.pick, "other", "r").status == 404
        assert [model["id"] for model in bench.versions.models()] == [MODEL, "scripted@v1"]
        assert refusal(bench.versions.start_unload, "v1").status == 409
        other.leave()
        await leaving
        again = await bench.load("small", model="other")
        assert bench.versions.pick("other", "r") is again
        third = await bench.load("third", model="other")
        assert "promote another" in str(refusal(bench.versions.start_unload, "small"))
        assert bench.versions.pick("other", "r") is again
        bench.versions.promote("third")
        await bench.versions.start_unload("small")
        assert bench.versions.pick("other", "r") is third

    run(test)


def test_a_version_whose_engine_has_failed_since_is_not_promoted():
    async def test(bench):
        await bench.load()
        v2 = await bench.load()
        assert (v2.status, v2.trouble) == ("ready", "")
        await v2.engine.engine.stop()
        assert (v2.state, v2.engine.state) == ("ready", "failed")
        assert (v2.status, v2.trouble) == ("failed", "the engine was stopped")
        error = refusal(bench.versions.promote, "v2", force=True)
        assert (error.status, error.body["error"]["code"]) == (409, "engine_failed")
        assert bench.versions.shares(MODEL) == {"v1": 1}

    run(test)
