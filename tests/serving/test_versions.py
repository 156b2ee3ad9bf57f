"""Versions side by side, over scripted models: loading, the warm-up, names, shares, and which one a request gets."""

from pathlib import Path

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from shared.serving.models.version import Version
from tests.serving.scripted_versions import MODEL, answer, refusal, run
from tests.tiny import tiny_model


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


def test_refused_loads_take_no_number():
    async def test(bench):
        assert (await bench.load()).name == "v1"
        for _ in range(3):
            refusal(bench.versions.load, Path("folder"), "a@b")
        assert (await bench.load()).name == "v2"

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
