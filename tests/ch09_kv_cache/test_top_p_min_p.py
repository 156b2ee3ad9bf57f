"""Exercises 9.3 and 9.4, the filters that work on probabilities: judged by exact distributions, most by hand."""

import math
import random

import pytest
import torch

from chapters.ch09_kv_cache import filters
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch09_kv_cache.words import likely, tensor, untouched

# 9.3 top_p_filter


PROBS = [0.5, 0.125, 0.25, 0.125]
NUCLEUS = [2 / 3, 0.0, 1 / 3, 0.0]
NUCLEI = {
    "the token that reaches p was dropped, or every token rarer than 1 - p: the set is to have mass p at least": [
        1.0,
        0.0,
        0.0,
        0.0,
    ],
    "not rescaled: what is kept has to sum to 1": [0.5, 0.0, 0.25, 0.0],
    "one token too many was kept, or added up in the order of the ids": [0.571429, 0.142857, 0.285714, 0.0],
    "the kept probabilities stand in the order of the sort: put each back in its place": [2 / 3, 1 / 3, 0.0, 0.0],
    "nothing was dropped, as when adding up from the smallest": PROBS,
    "the dropped ones are what was kept": [0.0, 0.5, 0.0, 0.5],
}


def top_p(probs: torch.Tensor, p: float, because: str = "the smallest set with mass p, rescaled") -> torch.Tensor:
    call = "a call doesn't take these arguments; sort with stable=True takes its dimension by name: dim=-1"
    with crash_means(because), crash_means(call, TypeError):
        got = filters.top_p_filter(probs, p)
    got = tensor(got, "probabilities [..., vocab]")
    expect_equal(list(got.shape), list(probs.shape), because="as many probabilities as before: dropped ones are 0")
    return got


@exercise("9.3")
def test_top_p_by_hand():
    got = top_p(torch.tensor(PROBS), 0.7)
    expect_close(
        got,
        NUCLEUS,
        because=likely(got, NUCLEI) + "0.5 isn't 0.7 yet, 0.5 + 0.25 is enough; rescaled, 2/3 and 1/3",
    )
    expect(got[1] == got[3] == 0, because="what is dropped is 0 exactly, so that no draw can fall on it")


@exercise("9.3")
def test_top_p_adds_up_from_the_largest():
    got = top_p(torch.tensor([0.125, 0.125, 0.25, 0.5]), 0.7)
    expect_close(
        got,
        [0, 0, 1 / 3, 2 / 3],
        because="the likeliest come last here, and are first to be added up: 0.5, then 0.25. Added up in the order of "
        "the ids, or without putting each back in its place, others are kept",
    )
    got = top_p(torch.tensor([0.25, 0.25, 0.25, 0.25]), 0.7)
    backwards = {"equal tokens were taken from the back: sort(descending=True, stable=True)": [0, 1 / 3, 1 / 3, 1 / 3]}
    expect_close(
        got,
        [1 / 3, 1 / 3, 1 / 3, 0],
        because=likely(got, backwards)
        + "Four equal tokens: three of them have mass 0.75, which is enough. It is the sum that counts, and no token's "
        "own probability; of equal tokens the first stay",
    )
    got = top_p(torch.full((4096,), 1 / 4096, dtype=torch.float64), 0.4999)
    expect(
        bool((got[:2048] > 0).all()) and not got[2048:].any(),
        because="4096 equal tokens, p = 0.4999: the first 2048 stay. Of equal tokens the first stay: a stable sort",
    )


@exercise("9.3")
def test_top_p_keeps_the_dtype():
    for dtype in (torch.float32, torch.float64):
        for p in (0.7, 1.0):
            got = top_p(torch.tensor(PROBS, dtype=dtype), p)
            expect_equal(got.dtype, dtype, because=f"{dtype} probabilities stay {dtype}, at p = {p}")


@exercise("9.3")
def test_top_p_leaves_its_argument():
    untouched(lambda x: filters.top_p_filter(x, 0.7), torch.tensor(PROBS), "probabilities")


@exercise("9.3")
def test_top_p_at_the_edges():
    probs = torch.tensor(PROBS, dtype=torch.float64)
    got = top_p(probs, 0.75)
    expect_close(got, NUCLEUS, because="mass >= p: 0.5 + 0.25 is exactly 0.75, and that is enough")
    got = top_p(probs, 0.1)
    expect(
        not got.isnan().any(),
        because="the likeliest token alone is more than p, and nothing was kept: one always stays",
    )
    expect_close(got, [1, 0, 0, 0], because="p = 0.1: the likeliest token alone is more than enough, and it stays")
    expect_close(top_p(probs, 0.0), [1, 0, 0, 0], because="p = 0 keeps the likeliest token: one always stays")
    expect_close(
        top_p(probs, 0.8), [4 / 7, 1 / 7, 2 / 7, 0], because="of two equal tokens the first stays: a stable sort"
    )


@exercise("9.3")
def test_top_p_of_one_keeps_all():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(5000, generator=generator, dtype=torch.float64)
    probs /= probs.sum() * (1 - 1e-6)  # what rounding does, and a little more: the sum is above 1
    got = top_p(probs, 1.0)
    expect_equal(
        int((got == 0).sum()),
        0,
        because="p = 1 dropped tokens: rounding can bring the sum to 1 before the last one. 1 means everything",
    )
    expect_close(got.sum(), 1.0, because="the result sums to 1, for p = 1 too", rtol=1e-12)
    got = top_p(torch.tensor([PROBS, PROBS], dtype=torch.float64), 1.0)
    expect_close(got, [PROBS, PROBS], because="each row sums to 1 by itself, for p = 1 too")
    got = top_p(torch.arange(1.0, 1001.0, dtype=torch.float64) / 500_500, 0.995)
    expect_equal(
        int((got == 0).sum()),
        70,
        because="1000 tokens, p = 0.995: the rarest 70 hold less than 0.005 together, and go. Only 1 keeps everything",
    )


@exercise("9.3")
def test_top_p_of_rows():
    got = top_p(torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.45, 0.45]]), 0.85)
    want = [[2 / 3, 1 / 3, 0], [0, 0.5, 0.5]]
    expect_close(got, want, because="each row is a distribution of its own: sort, sum and rescale over the last axis")


@exercise("9.3")
@pytest.mark.parametrize("p", [0.2, 0.5, 0.9, 0.99])
def test_top_p_keeps_the_smallest_set(p):
    rng = random.Random(int(p * 100))
    weights = [rng.random() ** 3 for _ in range(40)]
    probs = [w / sum(weights) for w in weights]
    ranked = sorted(range(40), key=lambda i: -probs[i])
    n = next(n for n in range(1, 41) if math.fsum(probs[i] for i in ranked[:n]) >= p)
    mass = math.fsum(probs[i] for i in ranked[:n])
    want = [probs[i] / mass if i in ranked[:n] else 0.0 for i in range(40)]
    got = top_p(torch.tensor(probs, dtype=torch.float64), p)
    expect_close(got, want, because=f"40 tokens, p = {p}: the {n} likeliest are the smallest set with that mass")


# 9.4 min_p_filter


SHARES = {
    "min_p itself was the limit, and nothing reaches it: it is a share of the largest, 0.6 * 0.4 = 0.24": [math.nan]
    * 4,
    "a share of the mean, or 1 - min_p of the largest, or min_p squared, was the limit": [4 / 9, 1 / 3, 2 / 9, 0.0],
    "not rescaled: what is kept has to sum to 1": [0.4, 0.3, 0.0, 0.0],
    "the rare ones were kept": [0.0, 0.0, 2 / 3, 1 / 3],
    "nothing was dropped, as when the limit is the largest less min_p": [0.4, 0.3, 0.2, 0.1],
}
MIN_PS = {
    "not rescaled: what is kept has to sum to 1": [0.5, 0.0, 0.25, 0.0],
    "the token exactly at the limit was dropped: 'at least min_p times as likely' keeps it": [1.0, 0.0, 0.0, 0.0],
    "the rare ones were kept": [0.0, 0.5, 0.0, 0.5],
    "nothing was dropped": PROBS,
}


def min_p(probs: torch.Tensor, share: float, because: str = "compare, zero, rescale") -> torch.Tensor:
    with crash_means(because):
        got = filters.min_p_filter(probs, share)
    got = tensor(got, "probabilities [..., vocab]")
    expect_equal(list(got.shape), list(probs.shape), because="as many probabilities as before: dropped ones are 0")
    return got


@exercise("9.4")
def test_min_p_is_a_share_of_the_largest():
    got = min_p(torch.tensor([0.4, 0.3, 0.2, 0.1]), 0.6)
    expect_close(
        got, [4 / 7, 3 / 7, 0, 0], because=likely(got, SHARES) + "The limit is 0.6 * 0.4 = 0.24: 0.4 and 0.3 stay"
    )
    got = min_p(torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.6)
    expect_close(
        got,
        [0, 0, 3 / 7, 4 / 7],
        because="the same four the other way round: the largest is the last one here. It may stand anywhere: amax",
    )
    got = min_p(torch.tensor([0.4, 0.2399, 0.2401, 0.12], dtype=torch.float64), 0.6)
    expect_close(got, [0.4 / 0.6401, 0, 0.2401 / 0.6401, 0], because="0.2399 is below 0.24, and 0.2401 isn't")


@exercise("9.4")
def test_min_p_keeps_the_dtype():
    for dtype in (torch.float32, torch.float64):
        got = min_p(torch.tensor(PROBS, dtype=dtype), 0.5)
        expect_equal(got.dtype, dtype, because=f"{dtype} probabilities stay {dtype}")


@exercise("9.4")
def test_min_p_by_hand():
    got = min_p(torch.tensor(PROBS), 0.5)
    expect_close(got, NUCLEUS, because=likely(got, MIN_PS) + "The limit is 0.5 * 0.5 = 0.25, and 0.25 is just enough")


@exercise("9.4")
def test_min_p_at_the_ends():
    probs = torch.tensor(PROBS, dtype=torch.float64)
    expect_close(min_p(probs, 0.0), PROBS, because="min_p = 0 drops nothing")
    got = min_p(probs, 1.0)
    expect(not got.isnan().any(), because="min_p = 1: the likeliest is as likely as itself and stays; `<`, not `<=`")
    expect_close(got, [1, 0, 0, 0], because="min_p = 1 leaves the likeliest alone")


@exercise("9.4")
def test_min_p_of_rows():
    got = min_p(torch.tensor([[0.9, 0.08, 0.02], [0.4, 0.35, 0.25]]), 0.5)
    expect_close(
        got,
        [[1, 0, 0], [0.4, 0.35, 0.25]],
        because="each row has a largest of its own (amax over the last axis, keepdim=True), and a sum of its own",
    )
    rows = [[0.9, 0.08, 0.02], [0.25, 0.4, 0.35]]
    got = min_p(torch.tensor([rows, rows[::-1]]), 0.5)  # [2, 2, 3]
    want = [[1, 0, 0], [0.25, 0.4, 0.35]]
    expect_close(got, [want, want[::-1]], because="with three axes too: over the last one")


@exercise("9.4")
def test_min_p_leaves_its_argument():
    untouched(lambda x: filters.min_p_filter(x, 0.5), torch.tensor(PROBS), "probabilities")
