"""The gate before a version serves: worse answers keep it out, noise doesn't; a gate that can't judge is no pass."""

import asyncio
import json
from pathlib import Path

from shared.serving.models.promotion import RegressionGate
from tests.inference.scripted import Turnstile
from tests.serving.scripted_versions import MODEL, cases, refusal, run


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
