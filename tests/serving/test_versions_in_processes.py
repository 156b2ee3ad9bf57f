"""Two versions, each with an engine process of its own, over real model folders."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from shared.model.weights import load_model
from shared.observability.trace import RequestTrace
from shared.serving.engines.load_engine import EngineOptions
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.models.promotion import RegressionGate
from shared.serving.models.versions import Versions
from tests.serving.live import write_tiny_model
from tests.serving.scripted_versions import Events, cases

PROMPT = list(b"Once upon a time")
PARAMS = SamplingParams(max_tokens=200, temperature=1.0, seed=5, ignore_eos=True)
OPTIONS = EngineOptions(device="cpu", threads=1, max_num_seqs=4, kv_memory=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Two models that differ in their weights."""
    both = {name: write_tiny_model(tmp_path_factory.mktemp("models") / name) for name in ("v1", "v2")}
    file = both["v2"] / "model.safetensors"
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(1)
    save_file({k: v + 0.1 * torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in tensors.items()}, file)
    return both


def answer_of(folder: Path) -> list[int]:
    """What a model says, by an engine that has no processes, no versions and nobody beside it."""
    engine = LLMEngine(load_model(folder), num_blocks=64, attention="gather")
    return list(engine.generate([PROMPT], PARAMS)[0].token_ids)


def test_a_stream_keeps_its_version_over_a_promotion_and_the_end_of_its_engine(folders, tmp_path):
    events = Events()
    versions = Versions(lambda path, name: ProcessEngine(path, OPTIONS, name), telemetry=events,
                        gate=RegressionGate(cases(tmp_path, 3)))  # fmt: skip

    async def stream(version) -> list[int]:
        outputs = version.engine.generate(PROMPT, PARAMS, "a stream")
        return [token async for output in outputs for token in output.token_ids]

    async def main():
        v1 = versions.load(folders["v1"], "tiny")
        v2 = versions.load(folders["v2"], "tiny")
        await v2.settled
        assert (v1.state, v2.state, v2.gate["cases"]) == ("ready", "ready", 3), (v1.error, v2.error)
        assert v1.engine.pid != v2.engine.pid
        assert versions.pick("tiny", "r") is v1
        trace = RequestTrace("r", "/")
        outputs = v1.engine.generate(PROMPT, PARAMS, "first", trace=trace)
        got = [*(await anext(outputs)).token_ids]
        versions.promote("v2")
        os.kill(v1.engine.pid, signal.SIGKILL)
        got += [token async for output in outputs for token in output.token_ids]
        assert trace.resumed == 1
        assert got == answer_of(folders["v1"])
        assert await stream(versions.pick("tiny", "r")) == answer_of(folders["v2"])
        await versions.start_unload("v1")
        assert v1.engine.state == "stopped"
        assert versions.list() == [v2]

    async def and_stop():
        try:
            await asyncio.wait_for(main(), 60)
        finally:
            await versions.stop()

    asyncio.run(and_stop())
    assert answer_of(folders["v1"]) != answer_of(folders["v2"])
    assert "engine_died" in events.kinds
