"""Draws follow exact probabilities that plain Python works out another way, and depend on seed and position alone."""

import math
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shared.inference.sampling import SamplingParams, candidates, sample, uniform


def expected_distribution(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Temperature, k likeliest, smallest set of mass >= p, share of the likeliest: by sums over sorted lists."""
    weights = {i: math.exp((x - max(logits)) / params.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: -weights[i])
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = math.fsum(weights[i] for i in ranked)
    kept: list[int] = []
    for i in ranked:
        kept.append(i)
        if params.top_p < 1 and math.fsum(weights[j] for j in kept) / total >= params.top_p:
            break
    kept = [i for i in kept if weights[i] >= params.min_p * weights[ranked[0]]]
    mass = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / mass for i in kept}


CASES = {
    "temperature alone": SamplingParams(temperature=0.7),
    "hot": SamplingParams(temperature=1.8),
    "top-k": SamplingParams(temperature=1.0, top_k=3),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "top-k, then top-p of what is left": SamplingParams(temperature=1.3, top_k=5, top_p=0.75),
    "min-p": SamplingParams(temperature=1.0, min_p=0.3),
    "top-p and min-p": SamplingParams(temperature=2.0, top_p=0.9, min_p=0.35),
    "all of them": SamplingParams(temperature=1.5, top_k=6, top_p=0.95, min_p=0.2),
}
LOGITS = [0.3, 2.0, -1.0, 1.1, 0.0, 1.9, -4.0, 0.9]


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_draws_follow_the_distribution(params):
    expected = expected_distribution(LOGITS, params)
    logits, n = torch.tensor(LOGITS), 1000
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


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    temperature=st.floats(0.05, 3),
    top_k=st.sampled_from([0, 2, 17, 10**6]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 0.9)),
)
def test_candidates_on_large_vocabularies(seed, spread, temperature, top_k, top_p, min_p):
    """Rare tokens are dropped before sorting; that must never change the set."""
    generator = random.Random(seed)
    logits = [generator.gauss(0, spread) for _ in range(250)]
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, probs = candidates(torch.tensor(logits, dtype=torch.float64), params)
    got = {i: p for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0}
    assert got == pytest.approx(expected_distribution(logits, params), rel=1e-9)


@pytest.mark.parametrize(("penalty", "want"), [(1.0, 1), (1.06, 5), (2.5, 3)])
def test_the_penalty_comes_before_everything(penalty, want):
    """Of LOGITS the best are 2.0 (token 1), 1.9 (token 5) and 1.1 (token 3)."""
    there = [1, 1, 6] if penalty < 2 else [1, 5, 1]
    logits = torch.tensor(LOGITS)
    for params in (SamplingParams(repetition_penalty=penalty), SamplingParams(repetition_penalty=penalty, top_k=1),
                   SamplingParams(temperature=1e-6, repetition_penalty=penalty)):  # fmt: skip
        assert sample(logits, params, 0, there) == want
        assert sample(logits, params, 0, tuple(there)) == want
    assert logits.tolist() == torch.tensor(LOGITS).tolist()


@pytest.mark.parametrize("shape", [(), (1, 3), (2, 3), (1, 1, 3)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_several_positions_are_refused(shape, temperature):
    with pytest.raises(ValueError, match="logits must be those of one position"):
        sample(torch.zeros(shape), SamplingParams(temperature=temperature), 0)


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
    assert uniform(True, np.int64(3)) == uniform(1, 3)
    for bad in (3.0, "3"):
        with pytest.raises(TypeError, match="integer"):
            uniform(1, bad)


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


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, seed=1)])
def test_a_row_of_a_real_vocabulary_costs_little(one_thread, params):
    """Well under a millisecond on a quiet machine; in processor time, and with a wide margin."""
    logits = 3 * torch.randn(49152, generator=torch.Generator().manual_seed(0))
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        for position in range(10):
            sample(logits, params, position)
        best = min(best, (time.process_time() - start) / 10)
    assert best < (0.001 if params.temperature == 0 else 0.005)
