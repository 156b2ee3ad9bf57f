"""Exercise 9.1: judged by exact distributions, small ones by hand and others in plain Python."""

import math

import pytest
import torch

from chapters.ch09_kv_cache import filters
from chapters.judge import crash_means, exercise, expect_close, expect_equal
from tests.ch09_kv_cache.words import likely, tensor, untouched

INF, NAN = math.inf, math.nan


def softmax(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [w / math.fsum(weights) for w in weights]


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
