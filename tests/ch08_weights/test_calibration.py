"""Exercises 8.7 and 8.8: judged by sorting in plain Python, and by products that must not change."""

import math

import torch

from chapters.ch08_weights import calibration
from chapters.judge import NO_RESULT, exercise, expect, expect_close, expect_equal


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# 8.7 clip_value


@exercise("8.7")
def test_by_hand():
    got = calibration.clip_value(torch.tensor([-5.0, 1.0, 2.0, -3.0]), 75)
    expect(
        isinstance(got, float),
        because=NO_RESULT if got is None else f"one number (float) for the whole tensor, not {type(got).__name__}",
    )
    causes = {
        1.0: "without abs the negative numbers are the smallest of all",
        3.75: "that is 75 % of the largest; what is asked for is a share of how many numbers there are",
        3.5: "that lies between 3 and 5: quantile interpolates. Asked for is one of the numbers themselves, the k-th",
        5.0: "that is the largest: kthvalue counts from 1 and a sorted list from 0, and percent is out of 100",
    }
    expect_close(
        got, 3.0, because=causes.get(round(got, 4), "of 5, 1, 2, 3 three quarters don't exceed 3: the third smallest")
    )


@exercise("8.7")
def test_all_of_them():
    x = numbers(97)
    expect_close(
        calibration.clip_value(x, 100),
        float(x.abs().max()),
        because="100 % is the largest; is k counted from 1?",
    )


@exercise("8.7")
def test_against_sorting():
    for n in (1, 10, 101, 1003):
        for percent in (0.1, 50, 90, 99, 99.9, 100):
            x = numbers(n, seed=n)
            ordered = sorted(abs(v) for v in x.tolist())
            k = max(1, math.ceil(round(percent * n / 100, 6)))
            expect_close(
                calibration.clip_value(x, percent),
                ordered[k - 1],
                because=f"of {n} numbers, {percent} % (rounded up) are {k}; the answer is the {k}. smallest |x|. "
                "The percentage is a share of how many numbers there are, not of the largest of them",
            )


@exercise("8.7")
def test_one_outlier_does_not_matter():
    x = torch.cat((numbers(9999), torch.tensor([1e6])))
    expect(
        calibration.clip_value(x, 99.9) < 10,
        because="one outlier in ten thousand numbers lies beyond 99.9 %: it must not set the range",
    )


@exercise("8.7")
def test_any_shape():
    x = numbers(3, 4, 5)
    got = calibration.clip_value(x, 80)
    expect_close(got, calibration.clip_value(x.flatten(), 80), because="the shape doesn't matter; flatten it")


# 8.8 smooth_scales


@exercise("8.8")
def test_a_channel_by_hand():
    activations, weights = torch.tensor([100.0, 1.0]), torch.tensor([0.25, 0.25])
    got = calibration.smooth_scales(activations, weights)
    causes = {
        0.05: "that is the inverse: with it the outliers grow, for activations are divided by the scale",
        5.0: "sqrt(100) * sqrt(0.25) = 5, but the weights' maximum is divided by, not multiplied with: 10 / 0.5 = 20",
        400.0: "that is the plain quotient: take the powers, alpha of the activations and 1 - alpha of the weights",
    }
    first = round(float(got[0]), 4) if torch.is_tensor(got) and got.shape == (2,) else None
    expect_close(
        got,
        [20.0, 2.0],
        because=causes.get(first, "the first channel is 100**0.5 / 0.25**0.5 = 10 / 0.5 = 20, the second 1 / 0.5 = 2"),
    )


@exercise("8.8")
def test_both_sides_become_alike():
    activations, weights = numbers(50).abs() * 30 + 0.01, numbers(50, seed=1).abs() + 0.01
    scales = calibration.smooth_scales(activations, weights)
    expect_close(
        activations / scales,
        weights * scales,
        because="with alpha 0.5 both maxima become the root of their product: activations are divided by the scale, "
        "weights multiplied. The other way round the outliers grow",
        rtol=1e-4,
    )


@exercise("8.8")
def test_alpha():
    activations, weights = torch.tensor([16.0]), torch.tensor([2.0])
    expect_close(
        calibration.smooth_scales(activations, weights, alpha=0.75),
        [16**0.75 / 2**0.25],
        because="activations to the power of alpha, weights to the power of 1 - alpha",
    )
    expect_close(
        calibration.smooth_scales(activations, weights, alpha=1.0),
        [16.0],
        because="alpha = 1 moves all of it: every channel of the activations is then at most 1",
    )


@exercise("8.8")
def test_dead_channels():
    got = calibration.smooth_scales(torch.tensor([0.0, 4.0, 0.0]), torch.tensor([1.0, 0.0, 0.0]))
    expect(
        bool(got.isfinite().all()) and bool((got > 0).all()),
        because="a channel that is zero on either side must get a scale that can be divided by: keep maxima at 1e-5 "
        f"or more; you have {got.tolist()}",
    )
    expect_close(
        got,
        [1e-5**0.5, 2 / 1e-5**0.5, 1.0],
        because="zero counts as 1e-5, in the activations and in the weights",
        rtol=1e-4,
    )
    tiny = calibration.smooth_scales(torch.tensor([0.0]), torch.tensor([1e7]))
    expect_close(tiny, [1e-5], because="no scale is below 1e-5: clamp the result, too", rtol=1e-3)


@exercise("8.8")
def test_the_maxima_stay_as_they_are():
    activations, weights = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 0.0])
    calibration.smooth_scales(activations, weights)
    expect_equal(
        (activations.tolist(), weights.tolist()),
        ([0.0, 4.0], [1.0, 0.0]),
        because="the maxima that came in were changed: clamp_ writes into the caller's tensor, clamp makes a new one",
    )


@exercise("8.8")
def test_a_scale_for_each_channel():
    got = calibration.smooth_scales(torch.tensor([1.0, 4.0, 9.0]), torch.ones(3))
    expect_equal(list(got.shape), [3], because="each channel has a scale of its own: one for all moves nothing")
    expect_close(got, [1.0, 2.0, 3.0], because="each channel's scale comes from that channel's maxima")
