"""Sampling, judged by exact probabilities that plain Python works out another way."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shared.inference.sampling import SamplingParams, candidates, sample, top_p_filter, uniform


def expected_distribution(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Temperature, then the k likeliest, then the smallest set of mass >= p: sums of floats over sorted lists."""
    weights = {i: math.exp((x - max(logits)) / params.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: -weights[i])
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = math.fsum(weights[i] for i in ranked)
    kept: list[int] = []
    for i in ranked:
        kept.append(i)
        if math.fsum(weights[j] for j in kept) / total >= params.top_p:
            break
    mass = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / mass for i in kept}


CASES = {
    "temperature alone": SamplingParams(temperature=0.7),
    "hot": SamplingParams(temperature=1.8),
    "top-k": SamplingParams(temperature=1.0, top_k=3),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "top-k, then top-p of what is left": SamplingParams(temperature=1.3, top_k=5, top_p=0.75),
}
LOGITS = [0.3, 2.0, -1.0, 1.1, 0.0, 1.9, -4.0, 0.9]


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_draws_follow_the_distribution(params):
    expected = expected_distribution(LOGITS, params)
    logits, n = torch.tensor(LOGITS), 4000
    counts = np.zeros(len(LOGITS))
    for position in range(n):
        counts[sample(logits, params, position)] += 1
    never = [i for i in range(len(LOGITS)) if i not in expected]
    assert not counts[never].any(), "a token was drawn that the filters exclude"
    kept = sorted(expected)
    p_value = stats.chisquare(counts[kept], [expected[i] * n for i in kept]).pvalue
    assert p_value > 1e-3, (counts, expected)


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_candidates_have_the_exact_probabilities(params):
    ids, probs = candidates(torch.tensor(LOGITS), params)
    got = {i: p for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0}
    assert got == pytest.approx(expected_distribution(LOGITS, params), abs=1e-6)  # LOGITS are float32


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    temperature=st.floats(0.05, 3),
    top_k=st.sampled_from([0, 2, 17, 10**6]),
    top_p=st.floats(0.01, 0.999),
)
def test_candidates_on_large_vocabularies(seed, spread, temperature, top_k, top_p):
    """Rare tokens are dropped before sorting; that must never change the set."""
    generator = random.Random(seed)
    logits = [generator.gauss(0, spread) for _ in range(700)]
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    ids, probs = candidates(torch.tensor(logits, dtype=torch.float64), params)
    got = {i: p for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0}
    assert got == pytest.approx(expected_distribution(logits, params), rel=1e-9)


def test_greedy_is_the_largest_logit():
    logits = torch.tensor(LOGITS)
    assert {sample(logits, SamplingParams(seed=s), s) for s in range(20)} == {1}
    assert {sample(logits, SamplingParams(temperature=1.0, top_k=1, seed=s), s) for s in range(20)} == {1}
    assert {sample(logits, SamplingParams(temperature=1.0, top_p=0.0, seed=s), s) for s in range(20)} == {1}
    for tiny in (1e-12, 1e-300, 5e-324):
        assert {sample(logits, SamplingParams(temperature=tiny, seed=s), s) for s in range(20)} == {1}


def test_the_draw_depends_on_seed_and_position_alone():
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=1.0, seed=7)
    first = [sample(logits, params, i) for i in range(40)]
    torch.manual_seed(123)
    random.seed(1)
    np.random.seed(1)
    backwards = [sample(logits, params, i) for i in reversed(range(40))][::-1]
    assert first == backwards
    assert len(set(first)) > 20  # positions differ
    others = [[sample(logits, SamplingParams(temperature=1.0, seed=s), i) for i in range(40)] for s in range(8, 28)]
    assert all(first != other for other in others)


def test_nearly_equal_logits_give_the_same_draws():
    """A batch computes logits that differ by 1e-5 from a single request's; ranks may swap, draws must not jump."""
    logits = torch.full((500,), 1.0) + 1e-6 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    logits[::3] = -9.0
    noisy = logits + 1e-6 * torch.randn(500, generator=torch.Generator().manual_seed(1))
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=333)):
        pairs = [(sample(logits, params, i), sample(noisy, params, i)) for i in range(200)]
        assert sum(a != b for a, b in pairs) <= 2


def test_the_smallest_and_the_largest_draw(monkeypatch):
    """The ends of [0, 1) fall on the first and the last token that may be drawn, not beside them."""
    logits = torch.tensor([-math.inf, 0.3, 1.0, 0.7, -math.inf])
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.7, top_k=4, top_p=0.99)):
        for draw, token in ((0.0, 1), (1 - 2**-52, 3)):
            monkeypatch.setattr("shared.inference.sampling.uniform", lambda seed, position, draw=draw: draw)
            assert sample(logits, params, 0) == token


def test_uniform_is_uniform_and_neighbours_are_unrelated():
    numbers = np.array([[uniform(seed, position) for position in range(200)] for seed in range(50)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
    assert uniform(1, 23) != uniform(12, 3)
    assert uniform(-1, 1) != uniform(1, 1)


def test_logits_that_are_not_numbers_are_refused():
    for bad in (float("nan"), float("inf")):
        logits = torch.tensor([0.0, bad, 1.0])
        for params in (SamplingParams(), SamplingParams(temperature=1.0)):
            with pytest.raises(ValueError, match="position 3 are not finite"):
                sample(logits, params, 3)
    with pytest.raises(ValueError, match="not finite"):
        sample(torch.full((4,), -math.inf), SamplingParams(), 0)


def test_minus_infinity_is_never_drawn():
    logits = torch.tensor([0.0, -math.inf, 0.5, -math.inf])
    for params in (SamplingParams(temperature=2.0), SamplingParams(temperature=2.0, top_k=3, top_p=0.99)):
        assert {sample(logits, params, i) for i in range(300)} == {0, 2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    logits = torch.tensor(LOGITS, dtype=dtype)
    assert sample(logits, SamplingParams(), 0) == 1
    assert 0 <= sample(logits, SamplingParams(temperature=1.0, top_p=0.9, top_k=4), 0) < len(LOGITS)


# ---- top_p_filter


def smallest_set(probs: list[float], p: float) -> set[int]:
    ranked = sorted(range(len(probs)), key=lambda i: -probs[i])
    for n in range(1, len(ranked) + 1):
        if math.fsum(probs[i] for i in ranked[:n]) >= p:
            return set(ranked[:n])
    return set(ranked)


@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=12), p=st.floats(0, 1))
def test_top_p_keeps_the_smallest_set(weights, p):
    probs = [w / sum(weights) for w in weights]
    got = top_p_filter(torch.tensor(probs, dtype=torch.float64), p)
    kept = {i for i, x in enumerate(got.tolist()) if x > 0}
    ranked = sorted(probs, reverse=True)
    edges = np.cumsum(ranked)
    if np.abs(edges - p).min() > 1e-9:  # at an edge, rounding decides
        assert sorted(probs[i] for i in kept) == sorted(probs[i] for i in smallest_set(probs, p))
    mass = sum(probs[i] for i in kept)
    assert got.tolist() == pytest.approx([x / mass if i in kept else 0 for i, x in enumerate(probs)])


def test_top_p_at_the_edges():
    probs = torch.tensor([0.125, 0.5, 0.25, 0.125])
    assert top_p_filter(probs, 0.5).tolist() == [0, 1, 0, 0]  # mass >= p: exactly p is enough
    assert top_p_filter(probs, 0.500001).tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert top_p_filter(probs, 0.0).tolist() == [0, 1, 0, 0]
    assert top_p_filter(probs, 1.0).tolist() == probs.tolist()
    assert top_p_filter(probs, 0.875).tolist() == pytest.approx([1 / 7, 4 / 7, 2 / 7, 0])  # of equals the first stays
    assert probs.tolist() == [0.125, 0.5, 0.25, 0.125]  # untouched
    with pytest.raises(ValueError, match="p must be"):
        top_p_filter(probs, 1.1)


def test_top_p_works_on_rows():
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.45, 0.45]])
    got = top_p_filter(rows, 0.85)
    assert (got > 0).tolist() == [[True, True, False], [False, True, True]]
    assert got.sum(-1).tolist() == pytest.approx([1, 1])


# ---- SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("seed", 0.5),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (1,)),
    ],
)
def test_bad_params_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field} must"):
        SamplingParams(**{field: value})
