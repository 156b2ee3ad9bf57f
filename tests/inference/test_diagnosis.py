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
    OTHER_TOKENS,
    POSITIONS,
    SHARED,
    TOO_MANY,
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


def keeps_caches_on_the_model(model, prompt, n):
    if not hasattr(model, "kept"):
        model.kept = faulty.caches_for(model, 100)
    return loop_into(model.kept, model, prompt, n)


KEPT = {}


def keeps_caches_by_model(model, prompt, n):
    return loop_into(KEPT.setdefault(id(model), faulty.caches_for(model, 100)), model, prompt, n)


def loop_into(caches, model, prompt, n, feed=lambda token: token, extra=0, eos=None):
    """The right loop, but for what it is told."""
    answer, new = [], list(prompt)
    for _ in range(n + extra):
        token = int(model(torch.tensor([new]), caches, True)[0, -1].argmax())  # last_only by its place
        answer.append(token)
        if token == eos:
            break
        new = [feed(token)]
    return answer[:n]


def with_own_caches(**settings):
    return lambda model, prompt, n: loop_into(faulty.caches_for(model, 100), model, prompt, n, **settings)


@pytest.mark.parametrize(
    ("loop", "fault"),
    [
        (keeps_caches_on_the_model, SHARED),
        (keeps_caches_by_model, SHARED),
        (with_own_caches(feed=lambda token: 60), OTHER_TOKENS),
        (lambda model, prompt, n: faulty.right(model, prompt[::-1], n), OTHER_TOKENS),
        (with_own_caches(extra=1), TOO_MANY),
        (with_own_caches(), HEALTHY),
    ],
)
def test_loops_that_are_wrong_in_other_ways(loop, fault):
    KEPT.clear()
    assert diagnose_loop(observe(loop, tiny_model(), [11, 7, 60], 5)) == fault


def test_a_loop_may_end_early():
    model, prompt = tiny_model(), [11, 7, 60]
    third = faulty.right(model, prompt, 5)[2]
    seen = observe(with_own_caches(eos=third), model, prompt, 5)
    assert len(seen.answer) <= 3
    assert diagnose_loop(seen) == HEALTHY


@pytest.mark.parametrize(
    ("loop", "prompt", "n", "words"),
    [
        (faulty.right, [11], 5, "2 to 256 tokens, not 1"),
        (faulty.right, [11] * 257, 5, "2 to 256 tokens, not 257"),
        (faulty.right, [11, 7], 1, "at least 2, not 1"),
        (lambda *_: None, [11, 7], 5, "returned NoneType"),
        (lambda *_: [1, 2], [11, 7], 5, "never called the model"),
        (lambda model, p, n: p + faulty.right(model, p, n), [11, 7], 5, "gave 7 tokens, asked for 5"),
    ],
)
def test_what_observe_cannot_judge(loop, prompt, n, words):
    with pytest.raises(ValueError, match=words):
        observe(loop, tiny_model(), prompt, n)


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
