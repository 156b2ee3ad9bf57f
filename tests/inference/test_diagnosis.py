"""The diagnoses on models, prompts and faults that the chapter's own tests don't use."""

import pytest
import torch

from shared.inference import faulty
from shared.inference.diagnosis import (
    FED_AGAIN,
    FORGOTTEN,
    HEALTHY,
    LOST,
    NO_MASK,
    NOT_GREEDY,
    POSITIONS,
    SHARED,
    ZERO,
    diagnose_loop,
    diagnose_sampler,
    observe,
)
from shared.inference.generate import generate
from shared.inference.sampling import SamplingParams
from tests.tiny import tiny_model

FAULTS = (HEALTHY, LOST, FED_AGAIN, FORGOTTEN, SHARED, POSITIONS, NO_MASK, NOT_GREEDY)  # in the order of LOOPS


@pytest.fixture(autouse=True)
def _forget_what_the_shared_loop_keeps():
    yield
    faulty.shared_between_requests.__defaults__[0].clear()


@pytest.mark.parametrize(("loop", "fault"), zip(faulty.LOOPS, FAULTS, strict=True))
def test_every_loop_on_another_model(loop, fault):
    assert diagnose_loop(observe(loop, tiny_model(seed=4), [11, 7, 60, 2, 93], 5)) == fault


def test_our_own_loop_is_healthy():
    def own(model, prompt, n):
        return list(generate(model, prompt, SamplingParams(max_tokens=n)))

    assert diagnose_loop(observe(own, tiny_model(), [11, 7, 60], 5)) == HEALTHY


def test_observe_sees_what_was_asked():
    seen = observe(faulty.fed_again, tiny_model(), [11, 7, 60], 3)
    assert [(call.cached, len(call.ids)) for call in seen.calls] == [(0, 3), (3, 4), (7, 5)]
    assert seen.calls[1].positions == [3, 4, 5, 6]
    assert seen.calls[1].ids == [11, 7, 60, seen.answer[0]]
    assert len(seen.truth) == 3
    assert seen.truth[0] == seen.answer[0]
    assert not torch.is_inference_mode_enabled()


def test_samplers_are_told_apart():
    found = [diagnose_sampler(sampler) for sampler in faulty.SAMPLERS]
    assert found[0] == HEALTHY
    assert found[1] == ZERO
    assert len(set(found)) == len(found)
