"""Exercises 7.6 and 7.7: judged by all draws there are (for three units), by the normal distribution, and by hand."""

import itertools
import math

import numpy as np

from chapters.ch07_evaluation import gate
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts

# 7.6 paired_bootstrap


def interval_of(*units, **settings):
    got = gate.paired_bootstrap(*units, **settings)
    expect_parts(got, ("difference", "low", "high"), because="the three are returned together, in an Interval(...)")
    expect(
        isinstance(got, gate.Interval),
        because=f"return an Interval(difference, low, high), not a plain {type(got).__name__}: `verdict` asks for them "
        "by name",
    )
    return got


def noisy(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Units that differ much from one another, and two models that hardly differ on any of them."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(10, 5, n)
    return hard + rng.normal(0, 0.1, n), hard + 0.05 + rng.normal(0, 0.1, n)


@exercise("7.6")
def test_the_difference():
    baseline, candidate = [1.0, 2.0, 3.0], [2.0, 2.0, 6.0]
    expect_close(
        interval_of(baseline, candidate).difference,
        4 / 3,
        because="candidate minus baseline, 1 + 0 + 3, over three units; a negative number is the other way round; and "
        "the difference is that of the units themselves, not of the draws, whose mean is only near it",
    )
    expect_close(
        interval_of(baseline, candidate, weights=[1.0, 1.0, 8.0]).difference,
        0.4,
        because="with weights it is the sum of the differences over the sum of the weights, 4 / 10, as in bits over "
        "bytes; the mean of each unit's own ratio, 0.46, lets a short document count as much as a long one",
    )


@exercise("7.6")
def test_paired():
    baseline, candidate = noisy()
    _, low, high = interval_of(baseline, candidate)
    change = candidate - baseline
    error = change.std() / math.sqrt(len(change))
    expect(low <= high, because=f"low is {low:.3g} and high is {high:.3g}: the two are swapped")
    expect(
        high - low > 0.01 * error,
        because="the interval has no width: a draw without replacement is the same units in another order",
    )
    expect(
        high - low < 10 * error,
        because=f"the interval is {high - low:.2g} wide, and {2 * 1.96 * error:.2g} would do: were the units drawn for "
        "each model on its own? Drawn together, what makes a unit hard cancels out",
    )
    expect_close(
        [low, high],
        [change.mean() - 1.96 * error, change.mean() + 1.96 * error],
        because="for 200 units the middle 95% are about 1.96 standard errors to either side; a narrower interval was "
        "cut at 5% and 95%, where 2.5% and 97.5% leave 95% between them, or its sums ran over the draws instead of "
        "each draw's n units (`axis`)",
        rtol=0,
        atol=0.25 * error,
    )


@exercise("7.6")
def test_levels():
    baseline, candidate = noisy()
    widths = []
    for level in (0.5, 0.95, 0.99):
        _, low, high = interval_of(baseline, candidate, level=level)
        widths.append(high - low)
    expect(
        widths[0] < widths[1] < widths[2],
        because="the surer one wants to be, the wider the interval: `level` decides",
    )


@exercise("7.6")
def test_resamples():
    baseline, candidate = noisy()
    _, low, high = interval_of(baseline, candidate, resamples=1)
    expect_close(
        high,
        low,
        because="one draw gives one difference, and all of its quantiles are that difference: `resamples` decides how "
        "many draws there are",
    )


@exercise("7.6")
def test_every_draw_of_three():
    baseline, candidate, weights = np.zeros(3), np.array([1.0, 5.0, -2.0]), np.array([1.0, 4.0, 2.0])
    draws = np.array(list(itertools.product(range(3), repeat=3)))  # all 27
    ratios = candidate[draws].sum(axis=1) / weights[draws].sum(axis=1)
    got = interval_of(baseline, candidate, weights, resamples=20_000, level=0.8)
    expect_close(
        got[1:],
        np.quantile(ratios, [0.1, 0.9]),
        because="of all 27 draws of three units out of three the middle 80% lie elsewhere: each draw has n units, "
        "weights are drawn along with their units, a draw's sum of differences is divided by its own weights, and the "
        "quantiles are taken of the draws as they are, not mirrored at the difference",
        rtol=1e-6,
    )


@exercise("7.6")
def test_seeded():
    baseline, candidate = noisy(30)
    first, again, other = (interval_of(baseline, candidate, seed=seed) for seed in (3, 3, 4))
    expect(first == again, because="the same seed must give the same interval, or nobody can repeat a verdict")
    expect(first[1:] != other[1:], because="another seed draws other samples")


# 7.7 verdict


def judged(difference: float, low: float, high: float, tolerance: float = 0.02) -> str:
    got = gate.verdict(gate.Interval(difference, low, high), tolerance)
    expect(got is not None, because="verdict gives None: a path ends without a return")
    expect(
        got in ("worse", "better", "even"),
        because=f'the verdicts are spelled "worse", "better" and "even"; {got!r} is none of them',
    )
    return got


@exercise("7.7")
def test_noise():
    expect_equal(
        judged(0.05, -0.01, 0.11),
        "even",
        because="0 is in the interval, so the difference may be luck, however large it looks",
    )
    expect_equal(judged(-0.05, -0.11, 0.01), "even", because="0 is in the interval: better by luck is not better")
    expect_equal(judged(0.05, 0.0, 0.1), "even", because="0 is in the interval when it is its end, too")
    expect_equal(judged(-0.05, -0.1, 0.0), "even", because="0 is in the interval when it is its end, too")


@exercise("7.7")
def test_tolerance():
    expect_equal(
        judged(0.01, 0.005, 0.015),
        "even",
        because="the difference is surely there, and too small to matter: it is within the tolerance",
    )
    expect_equal(judged(-0.01, -0.015, -0.005), "even", because="better by less than the tolerance is even, too")


@exercise("7.7")
def test_worse_and_better():
    expect_equal(
        judged(0.05, 0.03, 0.07),
        "worse",
        because="these are costs: a candidate that costs more, beyond noise and tolerance, is worse",
    )
    expect_equal(judged(-0.05, -0.07, -0.03), "better", because="a candidate that costs less is better")
    expect_equal(
        judged(0.05, 0.01, 0.09),
        "worse",
        because="the interval must be on one side of 0, and the difference itself beyond the tolerance; the interval's "
        "end may be within it",
    )
    expect_equal(judged(0.1, 0.05, 0.2, tolerance=0.0), "worse", because="without a tolerance noise alone decides")
    expect_equal(judged(-0.1, -0.2, -0.05, tolerance=0.0), "better", because="without a tolerance noise alone decides")


@exercise("7.7")
def test_what_is_held_against_the_tolerance():
    expect_equal(
        judged(0.10, 0.099, 0.101),
        "worse",
        because="the difference is five times the tolerance and hardly uncertain at all: how wide the interval is says "
        "nothing on whether the difference matters",
    )
    for sign in (1, -1):
        low, high = sorted((sign * 0.001, sign * 0.025))
        expect_equal(
            judged(sign * 0.01, low, high),
            "even",
            because="the interval's far end is beyond the tolerance, and the difference itself isn't: it is the "
            "difference that has to be",
        )
    expect_equal(
        judged(0.018, 0.01, 0.035),
        "even",
        because="the middle of the interval is beyond the tolerance, and the difference itself isn't; they needn't be "
        "the same",
    )
    expect_equal(
        judged(0.03, 0.001, 0.035),
        "worse",
        because="the difference is beyond the tolerance, though the middle of the interval isn't; it is the difference "
        "that counts",
    )


@exercise("7.7")
def test_the_tolerance_is_the_caller_s():
    for tolerance in (0.0, 0.005):
        for sign, name in ((1, "worse"), (-1, "better")):
            low, high = sorted((sign * 0.005, sign * 0.015))
            expect_equal(
                judged(sign * 0.01, low, high, tolerance),
                name,
                because=f"the caller tolerates {tolerance}, and 0.01 is more: use the parameter, not the module's "
                "TOLERANCE",
            )
    expect_equal(
        judged(0.02, 0.01, 0.03), "even", because="a difference of just the tolerance is tolerated: more than, not >="
    )
    expect_equal(
        judged(-0.02, -0.03, -0.01), "even", because="a difference of just the tolerance is tolerated on either side"
    )
