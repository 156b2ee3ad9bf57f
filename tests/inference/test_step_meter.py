"""What is told of an engine's steps."""

import gc
from dataclasses import astuple

import pytest

from shared.inference.llm_engine import LLMEngine
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import StepMeter
from shared.observability.gc_pauses import GcPauses
from shared.observability.trace import StepStats
from shared.serving.engines.wire import FROM_ENGINE, FrameReader, pack
from tests.tiny import tiny_model


@pytest.fixture
def engine() -> LLMEngine:
    engine = LLMEngine(tiny_model())
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True))
    return engine


def test_garbage_collections_are_told_once_with_the_step_after_them(engine):
    pauses = GcPauses()
    meter = StepMeter(engine, gc_pauses=pauses)
    gc.collect()  # not watched yet
    pauses.start()
    gc.disable()
    try:
        assert list(meter.step().stats.gc_pauses) == []
        gc.collect(1)
        gc.collect()
        told = meter.step().stats
        assert [generation for generation, _ in told.gc_pauses] == [1, 2]
        assert all(0 < seconds < 60 for _, seconds in told.gc_pauses)
        assert list(meter.step().stats.gc_pauses) == []
    finally:
        gc.enable()
        pauses.stop()
    ((_, fields, *_),) = FrameReader(FROM_ENGINE).feed(pack("step", astuple(told), [], {}, {}))
    heard = StepStats(*fields)
    assert [tuple(pause) for pause in heard.gc_pauses] == list(told.gc_pauses)
    assert heard.generated_tokens == told.generated_tokens == 2


def test_an_engine_in_the_servers_own_process_tells_none(engine):
    """The server measures its collections itself."""
    gc.collect()
    assert StepMeter(engine).step().stats.gc_pauses == ()
