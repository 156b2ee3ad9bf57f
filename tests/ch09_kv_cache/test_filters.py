"""Exercises 9.1 to 9.5: judged by exact distributions, small ones by hand and others in plain Python."""

import math
import random

import pytest
import torch

from chapters.ch09_kv_cache import filters
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch09_kv_cache.words import likely, tensor

INF, NAN = math.inf, math.nan


def softmax(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def untouched(call, x: torch.Tensor, name: str) -> None:
    before = x.clone()
    call(x)
    expect(torch.equal(x, before), because=f"the {name} that were handed in have changed: they are the caller's; copy")


# 9.1 probabilities

HALF = [0.8, 0.2]  # logits ln 2 and 0 at temperature 0.5
TEMPERATURES = {
    "multiplied by the temperature, where it divides": [0.585786, 0.414214],
    "the temperature is missing": [0.666667, 0.333333],
    "the temperature came after the softmax: it divides logits, not probabilities": [1.333333, 0.666667],
    "softmax twice: the temperature divides logits, not probabilities": [0.660758, 0.339242],
    "these are the scaled logits: their softmax is missing": [1.386294, 0.0],
    "the scaled logits less their largest: the softmax is missing": [0.0, -1.386294],
    "these are the logarithms: log_softmax where softmax is wanted": [-0.223144, -1.609438],
}
GREEDY = [0.0, 1.0, 0.0]
ZEROS = {
    "divided by zero, and infinity minus infinity is no number: 0 needs a branch of its own": [NAN, NAN, NAN],
    "0 was taken for 'not given', as `temperature or 1.0` does": [0.244728, 0.665241, 0.090031],
    "0 was taken for infinity": [0.333333, 0.333333, 0.333333],
}


def probabilities(logits: torch.Tensor, temperature: float, because: str) -> torch.Tensor:
    with crash_means(because):
        got = filters.probabilities(logits, temperature)
    got = tensor(got, "probabilities [..., vocab]")
    expect_equal(list(got.shape), list(logits.shape), because=f"as many probabilities as logits. {because}")
    return got


@exercise("9.1")
def test_probabilities_by_hand():
    got = probabilities(torch.tensor([math.log(2), 0.0]), 0.5, "divide by the temperature, then softmax")
    expect_close(
        got,
        HALF,
        because=likely(got, TEMPERATURES) + "At temperature 0.5 the odds 2 to 1 are squared: 4 to 1, so 0.8 and 0.2",
        rtol=1e-6,
    )


@exercise("9.1")
def test_temperature_zero():
    because = "At temperature 0 the result is still a distribution: 1 for the largest logit and 0 for all others"
    got = probabilities(torch.tensor([1.0, 2.0, 0.0]), 0.0, because)
    expect_close(got, GREEDY, because=likely(got, ZEROS) + because)
    got = probabilities(torch.tensor([1.0, 1.0 + 2e-7, 0.0]), 0.0, because)
    expect_close(
        got,
        GREEDY,
        because="two nearly equal logits shared at temperature 0: a tiny temperature was put in its place, and it "
        "isn't tiny beside their difference",
    )
    got = probabilities(torch.tensor([1.0, 1.0, 0.0]), 0.0, because)
    expect_close(got, [1.0, 0.0, 0.0], because="of two equal logits the first gets everything: greedy takes one token")


@exercise("9.1")
@pytest.mark.parametrize("temperature", [5.0, 1000.0, 1e6])
def test_a_high_temperature(temperature):
    got = probabilities(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64), temperature, "as high as you like")
    expect_close(
        got,
        softmax([1.0, 2.0, 0.0], temperature),
        rtol=1e-9,
        because=f"at temperature {temperature}: it is the one that was asked for, neither cut off at a lower one nor "
        "taken for infinity",
    )


@exercise("9.1")
def test_a_low_temperature():
    logits = [1.0, 1.00001, 1.00003]
    got = probabilities(torch.tensor(logits, dtype=torch.float64), 1e-4, "a low temperature is a temperature")
    expect_close(
        got,
        softmax(logits, 1e-4),
        rtol=1e-9,
        because="at temperature 1e-4 logits that are 1e-5 apart still share: it is neither 0 nor a little more than it "
        "says",
    )


@exercise("9.1")
def test_probabilities_in_float64():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for temperature in (0.0, 0.7, INF):
            got = probabilities(torch.tensor([1.0, 2.0, 0.0], dtype=dtype), temperature, f"{dtype} logits are welcome")
            expect_equal(
                got.dtype,
                torch.float64,
                because=f"at temperature {temperature}, {dtype} logits: the probabilities are float64. Their sums "
                "decide draws and what a filter keeps, and in half precision a sum of thousands of them is worth "
                "little",
            )
    for logits, temperature in (([1.0, 2.0, 0.0], 0.7), ([1.1, 2000.3, 0.1], 700.0)):
        logits = torch.tensor(logits)
        expect_close(
            probabilities(logits, temperature, ""),
            softmax(logits.tolist(), temperature),
            rtol=1e-11,
            atol=0,
            because="float64 in name, and only as good as float32: widen the logits before the softmax, and before "
            "anything is subtracted",
        )


@exercise("9.1")
def test_a_tiny_temperature():
    for temperature in (1e-300, 5e-324):
        got = probabilities(torch.tensor([1.0, 2.0, 0.0]), temperature, "a tiny temperature is a temperature")
        expect_close(
            got,
            GREEDY,
            because=f"at temperature {temperature} the division overflowed: subtract the largest logit first, so that "
            "the largest is 0 and all others go to minus infinity",
        )
    rows = torch.tensor([[1.0, 2.0], [-1000.0, -2000.0]])
    because = "each row's own largest is subtracted: beside another row's this one overflows as a whole"
    expect_close(probabilities(rows, 1e-307, because), [[0, 1], [1, 0]], because=because)


@exercise("9.1")
def test_temperature_infinity():
    because = "At temperature infinity every token that can be chosen is equally likely"
    got = probabilities(torch.tensor([5.0, -INF, 1.0, 0.0]), INF, because)
    causes = {
        "minus infinity over infinity is no number: infinity needs a branch of its own": [NAN] * 4,
        "a token of minus infinity got a share: it can't be chosen at any temperature": [0.25] * 4,
    }
    expect_close(got, [1 / 3, 0, 1 / 3, 1 / 3], because=likely(got, causes) + because)
    logits = torch.tensor([0.0, -1e10, -INF])
    unlikely = "-1e10 is a logit like any other, and minus infinity is the one that can't be chosen"
    expect_close(probabilities(logits, INF, because), [0.5, 0.5, 0], because=f"{because}. {unlikely}")
    expect_close(probabilities(logits, 1e6, unlikely), [1, 0, 0], because=f"at temperature a million too: {unlikely}")
    got = probabilities(torch.tensor([[5.0, -INF], [1.0, 0.0]]), INF, because)
    expect_close(got, [[1, 0], [0.5, 0.5]], because=f"{because}, and each row is a distribution of its own")


@exercise("9.1")
def test_rows_of_probabilities():
    logits = torch.tensor([[1.0, 2.0, -INF], [3.0, 0.0, 1.0]])
    want = [[*softmax([1.0, 2.0], 1.5), 0.0], softmax([3.0, 0.0, 1.0], 1.5)]
    because = "each row is a distribution of its own: over the last axis, dim=-1"
    expect_close(probabilities(logits, 1.5, because), want, because=because, rtol=1e-9)
    got = probabilities(logits, 0.0, because)
    expect_close(got, [[0, 1, 0], [1, 0, 0]], because=f"at temperature 0 too: {because}")
    got = probabilities(torch.stack((logits, logits.flip(0))), 1.5, because)  # [2, 2, 3]
    expect_close(got, [want, want[::-1]], because=f"with three axes too: {because}", rtol=1e-9)


@exercise("9.1")
def test_logits_are_left_alone():
    for temperature in (0.0, 0.5, INF):
        x = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
        untouched(
            lambda x, t=temperature: filters.probabilities(x, t), x, "float64 logits (double() doesn't copy them)"
        )


# 9.2 top_k_filter

TOP_2 = [-INF, 4.0, 3.0, -INF]
TOPS = {
    "what is dropped became 0, and a logit of 0 is an ordinary one: minus infinity can't be chosen": [
        0.0,
        4.0,
        3.0,
        0.0,
    ],
    "the smallest were kept": [1.0, -INF, -INF, 2.0],
    "k + 1 were kept": [-INF, 4.0, 3.0, 2.0],
    "k - 1 were kept: the k-th largest belongs to them": [-INF, 4.0, -INF, -INF],
    "the k largest stand in front: each belongs in its own place": [4.0, 3.0, -INF, -INF],
    "the first k were kept, whatever their size": [1.0, 4.0, -INF, -INF],
    "0 times infinity is no number: a mask is filled or added, not multiplied": [-INF, NAN, NAN, -INF],
    "these are probabilities: the filter gives logits": [0.0, 0.731059, 0.268941, 0.0],
}


def top_k(
    logits: torch.Tensor, k: int, because: str = "the k largest stay, in their places: scatter puts each back"
) -> torch.Tensor:
    with crash_means(because):
        got = filters.top_k_filter(logits, k)
    got = tensor(got, "logits [..., vocab]")
    expect_equal(
        list(got.shape), list(logits.shape), because="as many logits as before: dropped ones are minus infinity"
    )
    return got


@exercise("9.2")
def test_top_k_by_hand():
    got = top_k(torch.tensor([1.0, 4.0, 3.0, 2.0]), 2)
    expect_close(got, TOP_2, because=likely(got, TOPS) + "4 and 3 are the two largest; they stay, and where they were")


@exercise("9.2")
def test_top_k_of_small_numbers():
    got = top_k(torch.tensor([-5.0, -1.0, -3.0, 2.0]), 2)
    expect_close(got, [-INF, -1, -INF, 2], because="-1 is larger than -5: it is the size with its sign that counts")
    got = top_k(torch.tensor([0.0, -1.0, -2.0]), 2)
    expect(not got.isnan().any(), because="0 times infinity is no number: a logit of 0 became nan")
    expect_close(got, [0, -1, -INF], because="0 is larger than -1, and stays what it is")
    got = top_k(torch.tensor([1.0, 1.0000001, 0.5], dtype=torch.float64), 1)
    expect_close(
        got, [-INF, 1.0000001, -INF], rtol=1e-9, because="two logits that nearly are equal aren't: the larger stays"
    )


@exercise("9.2")
def test_top_k_with_equals():
    got = top_k(torch.tensor([1.0, 1.0, 2.0, 1.0, 0.0]), 2)
    n = int((got > -INF).sum())
    expect_equal(
        n,
        2,
        because=f"three logits are equal, and {n} tokens were kept of k = 2: a threshold lets all equals through, or "
        "none. Take the places that topk gives",
    )
    expect_close(got[2], 2.0, because="the largest is among the k largest")


@exercise("9.2")
def test_top_k_that_keeps_all():
    for k, meaning in ((0, "0 is all of them"), (4, "the whole vocabulary"), (9, "more than there are")):
        because = f"k = {k}: {meaning}, so nothing is dropped"
        expect_close(top_k(torch.tensor([1.0, 4.0, 3.0, 2.0]), k, because), [1, 4, 3, 2], because=because)


@exercise("9.2")
def test_top_k_of_rows():
    got = top_k(torch.tensor([[9.0, 8.0, 7.0], [1.0, 2.0, 3.0]]), 2)
    expect_close(got, [[9, 8, -INF], [-INF, 2, 3]], because="each row keeps its own k largest: over the last axis")


@exercise("9.2")
def test_top_k_keeps_dtype_and_argument():
    for dtype in (torch.bfloat16, torch.float64):
        got = top_k(torch.tensor([1.0, 4.0, 3.0, 2.0], dtype=dtype), 2)
        expect_equal(got.dtype, dtype, because="the logits keep their dtype")
    for k in (2, 0, 9):
        untouched(lambda x, k=k: filters.top_k_filter(x, k), torch.tensor([1.0, 4.0, 3.0, 2.0]), "logits")


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
    with crash_means(because):
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
    "min_p itself was the limit, and nothing reaches it: it is a share of the largest, 0.6 * 0.4 = 0.24": [NAN] * 4,
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


# 9.5 apply_repetition_penalty

LOGITS = [2.0, -1.0, 3.0, 3.0]
PENALTIES = {
    "negative logits were divided too, which makes them larger: they are multiplied": [1.0, -0.5, 1.5, 3.0],
    "multiplied where a positive logit is divided": [4.0, -2.0, 6.0, 3.0],
    "multiplied and divided the wrong way round": [4.0, -0.5, 6.0, 3.0],
    "a token that was there twice was penalised twice; once is enough": [0.5, -2.0, 1.5, 3.0],
    "every token was penalised, the one that wasn't there too": [1.0, -2.0, 1.5, 1.5],
    "only those that weren't there were penalised": [2.0, -1.0, 3.0, 1.5],
    "the penalty was subtracted": [0.0, -3.0, 1.0, 3.0],
    "subtracted once for each time, as a frequency penalty is": [-2.0, -3.0, 1.0, 3.0],
    "the logits of what was there are forbidden outright": [-INF, -INF, -INF, 3.0],
    "only the last token was penalised": [2.0, -1.0, 1.5, 3.0],
    "nothing happened: an index returns a copy, and scatter a new tensor": LOGITS,
    "log_softmax came first, and then all are negative": [-3.7394, -9.7394, -1.7394, -0.8697],
}


def penalise(logits: torch.Tensor, ids: list[int], penalty: float, because: str = "") -> torch.Tensor:
    with crash_means(because or "the logits of the ids that were there, divided or multiplied"):
        got = filters.apply_repetition_penalty(logits, ids, penalty)
    got = tensor(got, "logits [vocab]")
    expect_equal(list(got.shape), list(logits.shape), because="a logit for every token of the vocabulary, as before")
    return got


@exercise("9.5")
def test_penalty_by_hand():
    got = penalise(torch.tensor(LOGITS), [0, 1, 0, 2], 2.0)
    expect_close(
        got,
        [1.0, -2.0, 1.5, 3.0],
        because=likely(got, PENALTIES)
        + "Tokens 0, 1 and 2 were there: 2 / 2, -1 * 2, 3 / 2; token 3 wasn't, and stays",
    )


@exercise("9.5")
def test_a_penalty_below_one_favours():
    got = penalise(torch.tensor(LOGITS), [0, 1], 0.5)
    expect_close(got, [4.0, -0.5, 3.0, 3.0], because="a penalty of 0.5 makes 2 to 4 and -1 to -0.5: the same rule")
    for penalty in (3.0, 0.2):
        got = penalise(torch.tensor(LOGITS), [0, 1], penalty)
        want = [2 / penalty, -penalty, 3, 3]
        expect_close(got, want, because=f"a penalty of {penalty} is taken as it is: 2 / {penalty} and -1 * {penalty}")
    got = penalise(torch.tensor([5e-4, -5e-4]), [0, 1], 2.0)
    expect_close(got, [2.5e-4, -1e-3], because="small logits have a sign, too: 0.0005 is divided, -0.0005 multiplied")


@exercise("9.5")
def test_all_that_was_there():
    got = penalise(torch.tensor(LOGITS), [0] + [3] * 99, 2.0)
    expect_close(got, [1.0, -1.0, 3.0, 1.5], because="100 ids, and only the first is token 0: all of them count")
    got = penalise(torch.tensor(LOGITS), (0, 0, 1), 2.0, "ids may come as a tuple: any sequence")
    expect_close(got, [1.0, -2.0, 3.0, 3.0], because="ids may come as a tuple: any sequence")


@exercise("9.5")
def test_nothing_was_there_yet():
    because = "no token was there yet, and nothing is penalised (torch.tensor([]) is float: say dtype=torch.long)"
    expect_close(penalise(torch.tensor(LOGITS), [], 2.0, because), LOGITS, because=because)


@exercise("9.5")
def test_what_cannot_be_chosen_still_cannot():
    got = penalise(torch.tensor([0.0, -INF, 1.0]), [0, 1], 2.0)
    expect_close(
        got, [0.0, -INF, 1.0], because="0 stays 0, and minus infinity minus infinity: no nan, and no 0 in its place"
    )


@exercise("9.5")
def test_penalty_keeps_dtype_and_arguments():
    got = penalise(torch.tensor(LOGITS, dtype=torch.bfloat16), [0, 1], 2.0, "bf16 logits are welcome")
    expect_equal(got.dtype, torch.bfloat16, because="the logits keep their dtype")
    untouched(lambda x: filters.apply_repetition_penalty(x, [0, 1, 0], 2.0), torch.tensor(LOGITS), "logits")
    ids = [2, 0, 2, 1]
    filters.apply_repetition_penalty(torch.tensor(LOGITS), ids, 2.0)
    expect_equal(ids, [2, 0, 2, 1], because="the ids that were handed in have changed: they are the running sequence")
