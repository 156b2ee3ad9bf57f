"""Exercise 13.3, a quantile out of buckets: judged by its documentation, and by the values themselves."""

import math

import numpy as np
import pytest

from chapters.ch13_observability import metrics as own
from chapters.judge import crash_means, exercise, expect, expect_close, no_result


def estimated(q: float, bounds: tuple[float, ...], cumulative: list[int]) -> float:
    with crash_means(
        "without values there is no quantile (NaN); the bucket without end has no upper bound to interpolate to, and "
        "the first has none below it: 0 stands for that",
        ZeroDivisionError,
        IndexError,
    ):
        counts = list(cumulative)
        got = own.histogram_quantile(q, bounds, counts)
        expect(counts == cumulative, because="the counts are the caller's: they are read, and stay as they are")
        return got


@exercise("13.3")
def test_half_way_up():
    bounds, cumulative = (1.0, 2.0, 4.0), [2, 2, 6, 6]
    expect_close(
        estimated(0.5, bounds, cumulative),
        2.5,
        because="rank 3 is the first of the four values between 2 and 4: a quarter of the way up from 2",
    )
    expect_close(estimated(1.0, bounds, cumulative), 4.0, because="the last of the values is at its bucket's upper end")


@exercise("13.3")
def test_a_rank_between_two_values():
    expect_close(
        estimated(0.75, (1.0, 2.0, 4.0), [2, 2, 6, 6]),
        3.25,
        because="rank 0.75 * 6 = 4.5 is not rounded: it lies two and a half of the four values up from 2",
    )


@exercise("13.3")
def test_the_first_bucket_begins_at_zero():
    expect_close(
        estimated(0.5, (1.0, 2.0), [8, 8, 8]),
        0.5,
        because="below the first bound is 0: half of the values in the first bucket are half of the way up from there",
    )


@exercise("13.3")
def test_a_rank_on_a_bound():
    expect_close(
        estimated(0.5, (1.0, 2.0, 4.0), [4, 4, 8, 8]),
        1.0,
        because="rank 4 is reached in the first bucket, where the cumulative count equals it; empty buckets behind it "
        "have nothing to do with it",
    )


@exercise("13.3")
def test_above_all_bounds():
    expect_close(
        estimated(0.99, (1.0, 2.0), [1, 2, 10]),
        2.0,
        because="of the bucket without end nobody knows how far up it goes; the highest bound is all that can be said",
    )


@exercise("13.3")
def test_no_values():
    got = estimated(0.5, (1.0, 2.0), [0, 0, 0])
    expect(got is not None and math.isnan(got), because=no_result("without any value there is no quantile: NaN, not 0"))


def documented(q: float, bounds: tuple[float, ...], cumulative: list[int]) -> float:
    """The same from Prometheus's documentation of histogram_quantile, bucket by bucket, in its words."""
    observations = float(cumulative[-1])
    wanted_rank = q * observations
    for number, upper in enumerate([*bounds, math.inf]):
        if cumulative[number] < wanted_rank:
            continue
        if upper == math.inf:
            return bounds[-1]
        start = 0.0 if number == 0 else bounds[number - 1]
        before = 0 if number == 0 else cumulative[number - 1]
        return start + (upper - start) * ((wanted_rank - before) / (cumulative[number] - before))
    raise AssertionError("the last bucket holds them all")


@exercise("13.3")
@pytest.mark.parametrize("seed", range(3))
def test_as_documented_and_near_the_truth(seed):
    values = np.sort(np.random.default_rng(seed).lognormal(-1.5, 1.2, 500))
    bounds = own.LATENCY_BOUNDS
    cumulative = [int((values <= bound).sum()) for bound in bounds] + [len(values)]
    for q in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        got = estimated(q, bounds, cumulative)
        expect_close(
            got, documented(q, bounds, cumulative), because=f"this is not what Prometheus would say for q = {q}"
        )
        true = float(np.quantile(values, q, method="inverted_cdf"))
        ratio = bounds[1] / bounds[0]
        expect(
            true / ratio * 0.999 <= got <= true * ratio * 1.001,
            because="the estimate lies in the bucket that holds the true quantile, so it is off by a bucket at most",
        )
