"""Versions side by side: loading, the warm-up, the gate, shares, and the way out. The models are scripted."""

import asyncio
import json
from pathlib import Path

import pytest

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from shared.serving.engines.engine import EngineFailed
from shared.serving.errors import ApiError
from shared.serving.models import promotion
from shared.serving.models.promotion import RegressionGate, check_folder, check_memory
from shared.serving.models.version import Version
from tests.inference.scripted import EOS, Turnstile
from tests.serving.scripted_versions import MODEL, Bench, cases
from tests.tiny import tiny_model


def run(test, *arguments, **settings):
    """Run an async test with a bench, and stop its engines."""

    async def main():
        bench = Bench(*arguments, **settings)
        try:
            await asyncio.wait_for(test(bench), 20)
        finally:
            await bench.versions.stop()

    asyncio.run(main())


def refusal(work, *arguments, **more) -> ApiError:
    with pytest.raises(ApiError) as info:
        work(*arguments, **more)
    return info.value


async def answer(version, prompt="Hi", request_id="r"):
    ids = [
        token
        async for output in version.engine.generate(list(prompt.encode()), SamplingParams(max_tokens=50), request_id)
        for token in output.token_ids
    ]
    return bytes(token for token in ids if token != EOS).decode()


def test_the_first_version_serves_as_soon_as_it_is_warm():
    async def test(bench):
        version = bench.versions.load(Path("folder"), MODEL)
        assert (version.name, version.state) == ("v1", "loading")
        assert refusal(bench.versions.pick, MODEL, "r").status == 503
        await version.settled
        assert (version.state, version.error) == ("ready", "")
        assert bench.versions.pick(MODEL, "r") is version
        assert version.warm_up.keys() == {"first_s", "again_s"}
        assert await answer(version) == "yes"

    run(test)


def test_the_warm_up_reads_a_short_prompt_a_long_one_and_several_at_once():
    async def test(bench):
        await bench.load()
        model = bench.models["v1"]
        lengths = [len(prompt) for prompt in model.prompts]
        assert max(lengths) > 256, "more than one step's budget, which is 256"
        assert min(lengths) < 8
        assert any(len(batch) == 4 for batch in model.batches)
        assert {("scripted", "v1")} == set(bench.telemetry.steps)

    run(test)


def test_a_second_version_gets_nothing_until_it_is_promoted_and_a_rollback_undoes_that():
    async def test(bench):
        v1, v2 = await bench.load(), await bench.load()
        assert v2.state == "ready"
        picks = lambda: {bench.versions.pick(MODEL, f"r{i}") for i in range(100)}  # noqa: E731
        assert picks() == {v1}
        bench.versions.promote("v2")
        assert picks() == {v2}
        bench.versions.shift({"v1": 0.5, "v2": 0.5})
        assert picks() == {v1, v2}
        bench.versions.rollback()
        assert picks() == {v2}
        bench.versions.rollback(MODEL)
        assert picks() == {v1}
        assert refusal(bench.versions.rollback).status == 409
        assert bench.telemetry.kinds.count("traffic_rolled_back") == 2

    run(test, {"v1": "one", "v2": "two"})


def test_a_request_may_name_a_version():
    async def test(bench):
        v1, v2 = await bench.load(), await bench.load()
        other = await bench.load("small", model="other")
        assert bench.versions.pick(f"{MODEL}@v2", "r") is v2
        assert bench.versions.pick(f"{MODEL}@v1", "r") is v1
        assert bench.versions.pick("other", "r") is other
        for wrong in ("scripted@v3", "scripted@small", "other@v2", "@v2", "v2", "SCRIPTED", ""):
            error = refusal(bench.versions.pick, wrong, "r")
            assert error.status == 404
            assert repr(wrong) in str(error)
        names = [model["id"] for model in bench.versions.models()]
        assert names == [MODEL, "other", "scripted@v1", "scripted@v2", "other@small"]
        assert bench.versions.model("scripted@v2")["object"] == "model"
        assert refusal(bench.versions.model, "scripted@v3").status == 404

    run(test)


def test_the_first_model_stays_the_first_when_its_versions_change():
    """It is what the chat page takes for those who have chosen none."""

    async def test(bench):
        await bench.load()
        await bench.load("small", model="other")
        await bench.load("v2")
        bench.versions.promote("v2")
        await bench.versions.start_unload("v1")
        assert [model["id"] for model in bench.versions.models()][:2] == [MODEL, "other"]

    run(test)


def test_shares_are_checked_and_nothing_changes_when_they_are_wrong():
    async def test(bench):
        await bench.load()
        await bench.load()
        await bench.load("small", model="other")
        wrong = [{}, {"v1": 0.5}, {"v1": 0.7, "v2": 0.7}, {"v1": -0.5, "v2": 1.5}, {"v1": float("nan"), "v2": 1}]
        for shares in [*wrong, {"v1": 0.5, "small": 0.5}]:
            assert refusal(bench.versions.shift, shares).status == 400, shares
        assert refusal(bench.versions.shift, {"v1": 0.5, "v9": 0.5}).status == 404
        assert bench.versions.shares(MODEL) == {"v1": 1}
        assert refusal(bench.versions.rollback).body["error"]["param"] == "model"  # of which one?
        bench.versions.shift({"v2": 0.25, "v1": 0.75})
        assert bench.versions.shares(MODEL) == {"v2": 0.25, "v1": 0.75}
        assert bench.versions.shares("other") == {"small": 1}

    run(test)


def test_a_version_that_answers_worse_is_not_promoted_unless_the_operator_insists(tmp_path):
    async def test(bench):
        _, v2 = await bench.load(), await bench.load()
        assert v2.state == "rejected"
        assert v2.gate["baseline"] == "v1"
        assert v2.gate["cases"] == 12
        assert [case["id"] for case in v2.gate["newly_failing"]] == [f"case-{i}" for i in range(12)]
        assert (v2.gate["newly_failing"][0]["baseline"], v2.gate["newly_failing"][0]["candidate"]) == ("yes", "no")
        for refused in (bench.versions.promote, lambda name: bench.versions.shift({"v1": 0.5, name: 0.5})):
            error = refusal(refused, "v2")
            assert error.status == 409
            assert "case-0" in str(error)
            assert "force" in str(error)
        assert bench.versions.shares(MODEL) == {"v1": 1}
        assert refusal(bench.versions.pick, f"{MODEL}@v2", "r").status == 503
        bench.versions.promote("v2", force=True)
        assert bench.versions.pick(MODEL, "r") is v2
        assert v2.state == "ready"
        assert bench.telemetry.kinds[-2:] == ["version_forced", "version_promoted"]

    run(test, {"v1": "yes", "v2": "no"}, RegressionGate(cases(tmp_path)))


def test_a_version_that_answers_as_well_passes_and_the_baseline_is_asked_once(tmp_path):
    async def test(bench):
        _, v2 = await bench.load(), await bench.load()
        assert (v2.state, v2.gate["reasons"], v2.gate["newly_failing"]) == ("ready", [], [])
        asked = lambda name: sum(b"question" in bytes(p) for p in bench.models[name].prompts)  # noqa: E731
        assert asked("v1") == asked("v2") == 12
        v3 = await bench.load()
        assert v3.state == "ready"
        assert asked("v1") == 12
        assert asked("v3") == 12

    run(test, {"v1": "yes", "v2": "oh yes", "v3": "yes"}, RegressionGate(cases(tmp_path)))


def test_a_few_worse_answers_are_noise(tmp_path):
    """The gate is chapter 7's: two of twelve could be luck."""

    async def test(bench):
        await bench.load()
        candidate = bench.versions.load(Path("folder"), MODEL)
        model = bench.models["v2"]
        say = model._logits  # scripted models answer all alike; this one stumbles twice
        model._logits = lambda done, prompt: say(
            9 if bytes(prompt) in (b"question 0:", b"question 1:") else done, prompt
        )
        await candidate.settled
        assert [case["id"] for case in candidate.gate["newly_failing"]] == ["case-0", "case-1"]
        assert candidate.state == "ready"

    run(test, {}, RegressionGate(cases(tmp_path)))


def test_cases_that_one_of_the_two_cannot_take_are_left_out_and_no_case_at_all_is_no_pass(tmp_path):
    file = cases(tmp_path, 3)
    long = {"id": "long", "messages": [{"role": "user", "content": "x" * 500}], "max_tokens": 8, "tags": ["quick"],
            "expect": {"contains": ["yes"]}}  # fmt: skip
    file.write_text(f"{file.read_text()}\n{json.dumps(long)}")

    async def test(bench):
        await bench.load()
        v2 = await bench.load()
        assert (v2.state, v2.gate["cases"]) == ("ready", 3)
        assert "1 cases" in v2.gate["left_out"][0]
        file.write_text(json.dumps(long))
        v3 = await bench.load()
        assert v3.state == "rejected"
        assert "no case" in v3.error

    run(test, {}, RegressionGate(file))


def test_a_gate_that_breaks_is_no_pass(tmp_path):
    async def test(bench):
        await bench.load()
        v2 = await bench.load()
        assert v2.state == "rejected"
        assert "cases.jsonl is missing" in v2.error

    run(test, {}, RegressionGate(tmp_path / "cases.jsonl"))


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
        assert refusal(bench.versions.start_unload, "v2").status == 404

    run(test)


def test_when_the_one_that_serves_is_dead_another_may_take_over_without_force(tmp_path):
    async def test(bench):
        v1 = await bench.load()
        await v1.engine.engine.stop()
        v2 = await bench.load()
        assert (v2.state, v2.gate["reasons"], v2.gate["baseline"]) == ("ready", [], "v1")
        assert "the engine of v1 has failed" in v2.gate["left_out"][0]
        bench.versions.promote("v2")
        assert bench.versions.pick(MODEL, "r") is v2

    run(test, {"v1": "yes", "v2": "no"}, RegressionGate(cases(tmp_path)))


def test_when_an_engine_fails_in_the_gate_it_is_told_whose(tmp_path):
    async def test(bench):
        v1 = await bench.load()
        v2 = bench.versions.load(Path("folder"), MODEL)
        bench.models["v1"].before_step = Turnstile(0)
        while v2.state != "checking":
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(v1.engine.engine.stop())
        bench.models["v1"].before_step.allow(10)
        await stopping
        await v2.settled
        assert v2.state == "rejected"
        assert "v1 could not answer case-" in v2.error

    run(test, {}, RegressionGate(cases(tmp_path)))


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


def test_refused_loads_take_no_number():
    async def test(bench):
        assert (await bench.load()).name == "v1"
        for _ in range(3):
            refusal(bench.versions.load, Path("folder"), "a@b")
        assert (await bench.load()).name == "v2"

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


def test_names_are_checked():
    async def test(bench):
        await bench.load()
        assert refusal(bench.versions.load, Path("folder"), MODEL, "v1").status == 409
        for name in ("", "a b", "a/b", "v@2", "x" * 65, "é", "a\n"):
            assert refusal(bench.versions.load, Path("folder"), MODEL, name).body["error"]["param"] == "name"
        for model in ("", "a@b", "a\nb", "x" * 200):
            assert refusal(bench.versions.load, Path("folder"), model).body["error"]["param"] == "model"
        assert len(bench.versions.list()) == 1

    run(test)


def test_a_ready_version_may_be_added():
    async def test(bench):
        engine = bench.make_engine(Path("folder"), "mine")
        await engine.start()
        version = Version("mine", MODEL, Path("folder"), engine, bench.text(None, MODEL))
        bench.versions.add(version)
        assert bench.versions.pick(MODEL, "r") is version
        assert await answer(version) == "yes"
        assert bench.telemetry.steps

    run(test)


def test_versions_share_no_prefix_cache():
    """The same prompt in two versions: the same tokens, and keys and values that are not the same."""
    prompt = [5, 3, 8, 1] * 10
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    engines = {name: LLMEngine(tiny_model(seed=i), block_size=4, num_blocks=64, attention="gather", version=name)
               for i, name in enumerate(("v1", "v2"))}  # fmt: skip
    for engine in engines.values():
        engine.generate([prompt], params)
        assert engine.blocks.hit_tokens == 0
        engine.generate([prompt], params)
        assert engine.blocks.hit_tokens > 0  # what it has computed itself it finds
    names = {name: set(engine.blocks._cached) for name, engine in engines.items()}
    assert names["v1"]
    assert not names["v1"] & names["v2"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: folder.joinpath("config.json").unlink(), "no config.json"),
        (lambda folder: folder.joinpath("config.json").write_text("{"), "config.json"),
        (lambda folder: folder.joinpath("config.json").write_text("[]"), "config.json"),
        (lambda folder: folder.joinpath("config.json").write_text('{"model_type": "bert"}'), "config.json"),
        (lambda folder: folder.joinpath("model.safetensors").unlink(), "no *.safetensors"),
    ],
)
def test_a_folder_that_holds_no_model_is_told_at_once(tmp_path, spoil, says):
    config = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_folder(tmp_path)
    spoil(tmp_path)
    error = refusal(check_folder, tmp_path)
    assert (error.status, error.body["error"]["param"]) == (400, "path")
    assert says in str(error)
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("path", ["no/such/folder", "x" * 300, "a\0b"])
def test_a_path_that_is_no_folder(path):
    assert refusal(check_folder, Path(path)).status == 400


def test_a_want_of_memory_is_told_before_the_weights_are_read(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    monkeypatch.setattr(promotion, "available_memory", lambda: promotion.PROCESS_MB * 1_000_000 + 500)
    error = refusal(check_memory, tmp_path, {})
    assert (error.status, error.body["error"]["code"]) == (409, "not_enough_memory")
    check_memory(tmp_path, {tmp_path: "cpu"})  # mapped already: the pages are shared
    check_memory(tmp_path, {Path("other"): "cuda"})  # what a GPU has left is another matter
    monkeypatch.setattr(promotion, "available_memory", lambda: None)
    check_memory(tmp_path, {})
