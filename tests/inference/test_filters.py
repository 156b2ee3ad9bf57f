"""The filters and the penalty change logits and probabilities as plain Python's sums over sorted lists say."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.inference.filters import apply_repetition_penalty, min_p_filter, probabilities, top_k_filter
from shared.inference.sampling import SamplingParams, likely_enough, sample, top_p_filter


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 0.1, 2.0, 30.0]), p=st.floats(0, 0.9999))
def test_likely_enough_holds_the_smallest_set_and_few_others(seed, spread, p):
    generator = torch.Generator().manual_seed(seed)
    probs = (spread * torch.randn(600, generator=generator, dtype=torch.float64)).softmax(dim=-1)
    found = set(likely_enough(probs, p).tolist())
    smallest = smallest_set(probs.tolist(), p - 1e-12)
    assert smallest <= found
    edge = min(probs[i] for i in smallest)
    assert all(probs[i] >= edge / 2**0.25 / 2**0.25 - 1e-15 for i in found)  # within a step of it, or the next one


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_penalty_does_not_make_narrow_logits_infinite(dtype):
    """float16 ends at 65,504, and 700 / 0.01 is more; the other token is far below, and draws must not fail either."""
    logits = torch.tensor([1.0, 700.0, 3.0], dtype=dtype)
    for params in (SamplingParams(repetition_penalty=0.01), SamplingParams(repetition_penalty=0.01, temperature=1.0)):
        assert sample(logits, params, 0, [1]) == 1
    assert apply_repetition_penalty(logits, [0], 2.0).dtype == dtype


@pytest.mark.parametrize("there", [[1] * 5000 + [0], (1, 0), range(2), [], np.array([1, 0])])
def test_the_penalty_takes_any_sequence_and_repeats(there):
    got = apply_repetition_penalty(torch.tensor([2.0, -1.0, 3.0]), there, 2.0)
    assert got.tolist() == ([1.0, -2.0, 3.0] if len(there) else [2.0, -1.0, 3.0])


@pytest.mark.parametrize(
    ("there", "penalty", "message"),
    [
        ([0], 0, "penalty must be"),
        ([0], -1, "penalty must be"),
        ([0], math.nan, "penalty must be"),
        ([0], math.inf, "penalty must be"),
        ([0, 3], 1.1, "from 0 to 2, not 0 to 3"),
        ([-1, 2], 1.1, "from 0 to 2, not -1 to 2"),
        ([0.7], 1.1, "whole numbers"),
        ([2**70], 1.1, "whole numbers"),
        ("ab", 1.1, "whole numbers"),
    ],
)
def test_a_penalty_that_makes_no_sense_is_refused(there, penalty, message):
    with pytest.raises(ValueError, match=message):
        apply_repetition_penalty(torch.tensor([0.0, 1.0, 2.0]), there, penalty)


def test_the_penalty_of_a_long_answer_costs_little(one_thread):
    """It's due for every token, over all before it. A sorted set of these takes more than a millisecond."""
    logits, there = torch.zeros(49152), [(7919 * i) % 49152 for i in range(8000)]
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        for _ in range(5):
            apply_repetition_penalty(logits, there, 1.1)
        best = min(best, (time.process_time() - start) / 5)
        sets = time.process_time()
        for _ in range(5):
            torch.tensor(sorted(set(there)))
        sets = (time.process_time() - sets) / 5
    assert best < sets


def smallest_set(probs: list[float], p: float) -> set[int]:
    ranked = sorted(range(len(probs)), key=lambda i: -probs[i])
    for n in range(1, len(ranked) + 1):
        if math.fsum(probs[i] for i in ranked[:n]) >= p:
            return set(ranked[:n])
    return set(ranked)


@settings(max_examples=100, deadline=None)
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


def test_filters_refuse_what_makes_no_sense():
    x = torch.tensor([0.25, 0.75])
    for call, bad in ((probabilities, -1.0), (probabilities, math.nan), (top_k_filter, -1), (top_k_filter, 1.5),
                      (top_k_filter, True), (min_p_filter, 1.5), (min_p_filter, -0.1),
                      (top_p_filter, math.nan)):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            call(x, bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filters_keep_the_dtype(dtype):
    probs = torch.tensor([0.5, 0.25, 0.25], dtype=dtype)
    for got in (top_p_filter(probs, 0.7), min_p_filter(probs, 0.3), top_k_filter(probs, 2)):
        assert got.dtype == dtype


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=12), share=st.floats(0, 1))
def test_min_p_keeps_what_is_near_the_best(weights, share):
    probs = [w / sum(weights) for w in weights]
    kept = [x if x >= share * max(probs) else 0.0 for x in probs]
    got = min_p_filter(torch.tensor(probs, dtype=torch.float64), share)
    assert got.tolist() == pytest.approx([x / math.fsum(kept) for x in kept])


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=12), k=st.integers(0, 14))
def test_top_k_keeps_k_of_the_largest(values, k):
    got = top_k_filter(torch.tensor(values, dtype=torch.float64), k)
    kept = [x for x in got.tolist() if x > -math.inf]
    n = len(values) if k == 0 else min(k, len(values))
    assert sorted(kept) == sorted(values)[-n:]
    assert all(x in (float(v), -math.inf) for x, v in zip(got.tolist(), values, strict=True))
