"""Exercise 9.13: judged by distributions with one fault each, and by faulty samplers."""

import math

import pytest
import torch
from torch import Tensor

from chapters.ch09_kv_cache import diagnosis
from chapters.judge import crash_means, exercise, expect_equal
from shared.inference import faulty


def distribution(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.double()
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    return ((logits - logits.max()) / temperature).softmax(0)


def nucleus(probs: Tensor, p: float) -> Tensor:
    """The smallest set, by plain Python."""
    kept, mass = [], 0.0
    for i in sorted(range(len(probs)), key=lambda i: -float(probs[i])):
        kept.append(i)
        mass += float(probs[i])
        if mass >= p:
            break
    out = torch.zeros_like(probs)
    out[kept] = probs[kept]
    return out / out.sum()


def right(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    return nucleus(distribution(logits, temperature), top_p)


def with_zero(at_zero):
    """A sampler that is right but at temperature 0."""
    return lambda x, t, p: at_zero(x) if t == 0 else right(x, t, p)


def hidden(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    kept = nucleus(distribution(logits, 1.0), top_p) > 0
    return distribution(logits.double().masked_fill(~kept, -math.inf), temperature)


def naked(logits: Tensor, temperature: float, top_p: float, dtype=torch.float32) -> Tensor:
    if temperature == 0:
        return distribution(logits, 0.0)
    weights = (logits.to(dtype) / temperature).exp()
    return nucleus(weights / weights.sum(), top_p)


CASES = [
    ("healthy", "right in every respect", right),
    ("healthy", "right, in float32", lambda x, t, p: right(x, t, p).float()),
    ("temperature 0 is not the largest logit", "nan at 0", with_zero(lambda x: torch.full_like(x, math.nan))),
    ("temperature 0 is not the largest logit", "0 taken for 1", with_zero(lambda x: distribution(x, 1.0))),
    ("temperature 0 is not the largest logit", "uniform at 0", with_zero(lambda x: torch.ones_like(x) / len(x))),
    ("temperature 0 is not the largest logit", "the smallest at 0", with_zero(lambda x: distribution(-x, 0.0))),
    (
        "a higher temperature is surer",
        "multiplied by the temperature",
        lambda x, t, p: nucleus(distribution(x, 1 / t if t else 0.0), p),
    ),
    ("a small temperature overflows", "exp of numbers in the thousands, in float32", naked),
    (
        "a small temperature overflows",
        "exp of numbers above 709, in float64",
        lambda x, t, p: naked(x, t, p, torch.float64),
    ),
    (
        "a high temperature is cut off",
        "above 2 taken for 2",
        lambda x, t, p: right(x, min(t, 2.0), p),
    ),
    (
        "a high temperature is cut off",
        "above 10 taken for 10",
        lambda x, t, p: right(x, min(t, 10.0), p),
    ),
    ("top-p before the temperature", "tokens chosen at temperature 1, then the temperature", hidden),
]


@exercise("9.13")
@pytest.mark.parametrize(("fault", "how", "sampler"), CASES, ids=[how for _, how, _ in CASES])
def test_samplers(fault, how, sampler):
    def asked(logits: Tensor, temperature: float, top_p: float) -> Tensor:
        return sampler(torch.as_tensor(logits), temperature, top_p)

    because = f"a sampler with this behaviour: {how}. Which question shows it, and only it?"
    with crash_means(because):
        got = diagnosis.diagnose_sampler(asked)
    expect_equal(got, fault, because=because)


@exercise("9.13")
def test_faulty_samplers():
    names = {
        "right_sampler": "healthy",
        "divides_by_zero": "temperature 0 is not the largest logit",
        "multiplies": "a higher temperature is surer",
        "exponential_first": "a small temperature overflows",
        "cut_off": "a high temperature is cut off",
        "filter_first": "top-p before the temperature",
    }
    for sampler in faulty.SAMPLERS:
        got = diagnosis.diagnose_sampler(sampler)
        name = sampler.__name__
        expect_equal(got, names[name], because=f"the sampler {name!r} in shared/inference/faulty.py")
