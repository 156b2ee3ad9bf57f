"""Exercises 8.4 and 8.5: judged by numbers done by hand, by error bounds, and by torch's fake quantisation."""

import itertools
from numbers import Integral

import torch

from chapters.ch08_weights import quantization
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# 8.4 quantize_symmetric


@exercise("8.4")
def test_the_largest_gets_the_highest_level():
    x = torch.tensor([[0.5, -2.54, 1.0]])
    before = x.clone()
    got = quantization.quantize_symmetric(x)
    expect_parts(got, ("levels", "scale"), because="two results: the levels, and the scale that brings them back")
    levels, scale = got
    expect(
        torch.is_tensor(levels) and not levels.is_floating_point(),
        because="the first result are the levels, whole numbers (int8); the scale comes second",
    )
    expect(
        torch.is_tensor(scale) and scale.shape == (),
        because="without dim there is one scale, a tensor with the shape []: x.abs().max(), without .item() (a Python "
        "number has no dtype) and without keepdim",
    )
    expect_equal(x, before, because="x itself was changed: div_, abs_ and the like write into the caller's weights")
    expect_close(
        scale,
        0.02,
        because="the scale is the largest absolute value over 127: over 255 or 256 half of the levels stay "
        "unused, and without abs a negative largest is missed",
        rtol=1e-5,
    )
    expect_equal(levels.tolist(), [[25, -127, 50]], because="levels are x / scale, rounded to the nearest")


@exercise("8.4")
def test_a_scale_for_each_row():
    x = torch.tensor([[1.27, 0.0, -0.5], [0.0, -127.0, 3.0], [2.54, 1.0, 0.0]])  # square: every scale broadcasts
    levels, scale = quantization.quantize_symmetric(x, dim=-1)
    expect_equal(
        list(scale.shape),
        [3, 1],
        because="keepdim=True is missing: a scale of the shape [3] is laid along the rows, one number to each column"
        if list(scale.shape) == [3]
        else "dim=-1 gives each row its own scale: the maximum goes along dim, keepdim=True",
    )
    expect_close(scale.flatten(), [0.01, 1.0, 0.02], because="each row is divided by its own largest value", rtol=1e-5)
    expect_equal(levels.tolist(), [[127, 0, -50], [0, -127, 3], [127, 50, 0]], because="each row has its own levels")


@exercise("8.4")
def test_another_axis():
    x = numbers(4, 6)
    _, scale = quantization.quantize_symmetric(x, dim=0)
    expect_close(
        scale,
        x.abs().max(dim=0, keepdim=True).values / 127,
        because="with dim=0 the maximum is over the rows; you may have the axes fixed or the other way round",
    )


@exercise("8.4")
def test_half_a_step():
    for highest, dim in itertools.product((1, 7, 64, 127), (None, 0, -1)):
        x = numbers(5, 33, seed=highest)
        levels, scale = quantization.quantize_symmetric(x, highest, dim)
        error = (levels.double() * scale.double() - x.double()).abs()
        expect(
            bool((error <= scale.double() * 0.5 * (1 + 1e-4)).all()),
            because="a number moves by half a scale at most: round to the nearest; cutting off digits (a cast alone, "
            "or floor) moves it by up to a whole one",
        )
        expect(
            int(levels.abs().max()) == highest,
            because=f"the levels must reach from -{highest} to {highest}, and not beyond",
        )


@exercise("8.4")
def test_as_torch_does_it():
    x = numbers(8, 40)
    levels, scale = quantization.quantize_symmetric(x, dim=-1)
    zeros = torch.zeros(8, dtype=torch.int32)
    want = torch.fake_quantize_per_channel_affine(x, x.abs().amax(dim=1) / 127, zeros, 0, -127, 127)
    expect_close(
        levels * scale,
        want,
        because="torch's fake_quantize_per_channel_affine, with each row's largest over 127, gives other numbers",
        rtol=1e-4,
        atol=1e-6,
    )


@exercise("8.4")
def test_zero_stays_zero():
    levels, scale = quantization.quantize_symmetric(torch.tensor([[0.0, 0.0], [0.0, 3.0]]), dim=-1)
    expect_close(
        scale.flatten(),
        [1.0, 3 / 127],
        because="a row of zeros gets the scale 1: divided by a scale of 0 it would be nan",
    )
    expect_equal(levels.tolist(), [[0, 0], [0, 127]], because="0 must be level 0")


@exercise("8.4")
def test_types():
    levels, scale = quantization.quantize_symmetric(numbers(3, 4).double(), dim=-1)
    expect_equal((levels.dtype, scale.dtype), (torch.int8, torch.float64), because="int8 levels, a scale in x's dtype")


@exercise("8.4")
def test_bfloat16_does_not_wrap():
    for seed in range(40):
        x = numbers(64, seed=seed).bfloat16()
        levels, scale = quantization.quantize_symmetric(x)
        expect_equal(scale.dtype, torch.bfloat16, because="the scale has x's dtype")
        error = float((levels.double() * scale.double() - x.double()).abs().max())
        expect(
            error <= float(scale),
            because=f"the largest comes back wrong by {error / float(scale):.0f} scales: in bfloat16 x / scale may "
            "round to 128, and int8 wraps it around to -128. Clamp to -highest..highest before the cast",
        )


# 8.5 affine_range


@exercise("8.5")
def test_by_hand():
    got = quantization.affine_range(-1.0, 3.0, bits=2)
    expect_parts(got, ("scale", "zero_point"), because="two results: the scale, and the level that means 0")
    scale, zero = got
    expect(
        not (scale == 1 and zero != 1),
        because="the scale comes first, then the zero point",
    )
    expect_close(
        scale,
        4 / 3,
        because="two bits have four levels and three steps between them: the range is divided by 2**bits - 1",
    )
    expect(
        isinstance(zero, Integral) and not isinstance(zero, bool),
        because=f"the zero point is one of the levels, a whole number (int), not {zero!r}: round it, "
        "or zero isn't exact",
    )
    expect_equal(
        zero, 1, because="level 0 means low, so zero is -low / scale levels above it: -(-1) / 1.33 = 0.75, so 1"
    )
    expect_equal(
        quantization.affine_range(-1.0, 9.0, bits=2)[1],
        0,
        because="-(-1) / 3.33 = 0.3, and the nearest level is 0: round, neither up nor down",
    )


@exercise("8.5")
def test_a_range_that_ends_at_zero():
    expect_close(
        quantization.affine_range(-5.0, 0.0),
        (5 / 255, 255),
        because="a range that ends at 0 is as good as any: (1.0, 0) is for nothing but zero",
    )


@exercise("8.5")
def test_the_range_is_stretched_to_zero():
    expect_close(
        quantization.affine_range(2.0, 12.2)[0],
        12.2 / 255,
        because="a range above zero must be stretched down to it, or nothing stands for 0",
    )
    expect_equal(quantization.affine_range(2.0, 12.2)[1], 0, because="with low = 0 the zero point is level 0")
    expect_equal(
        quantization.affine_range(-5.0, -1.0)[1],
        255,
        because="a range below zero is stretched up to it, and zero gets the highest level",
    )
    expect_close(
        quantization.affine_range(-5.0, -1.0)[0],
        5 / 255,
        because="a range below zero is stretched up to it: high becomes 0, and the scale is (0 - low) / 255",
    )


@exercise("8.5")
def test_a_single_number():
    for value, zero_point in ((5.0, 0), (-5.0, 255)):
        expect_close(
            quantization.affine_range(value, value),
            (5 / 255, zero_point),
            because=f"from {value:g} to {value:g} is a range, too, once it is stretched to zero; (1.0, 0) is for "
            "nothing but zero",
        )


@exercise("8.5")
def test_small_numbers():
    expect_close(
        quantization.affine_range(-1e-6, 1e-6)[0],
        2e-6 / 255,
        because="small numbers have a small scale; only a scale of exactly 0 is replaced",
        atol=0,
    )


@exercise("8.5")
def test_nothing_but_zero():
    try:
        got = quantization.affine_range(0.0, 0.0)
    except ZeroDivisionError:
        got = None
    expect(got == (1.0, 0), because="a range of nothing but zero gets (1.0, 0): a scale of 0 can't be divided by")


@exercise("8.5")
def test_error_and_ends():
    for low, high in ((-0.3, 2.0), (-7.0, 0.1), (0.0, 1.0), (-1.0, 1.0), (-1e-3, 1e-3), (-5.0, -1.0), (-3.0, 0.0)):
        for bits in (2, 4, 8):
            scale, zero = quantization.affine_range(low, high, bits)
            expect(0 <= zero <= 2**bits - 1, because="the zero point is a level, from 0 to 2**bits - 1")
            x = torch.linspace(low, high, 301)
            back = quantization.dequantize_affine(quantization.quantize_affine(x, scale, zero, bits), scale, zero)
            expect(
                float((back - x).abs().max()) <= scale * 1.001,
                because="numbers in the range come back within a step; is -low / scale, with its sign, the zero point?",
            )
            nought = quantization.dequantize_affine(
                quantization.quantize_affine(torch.zeros(1), scale, zero, bits), scale, zero
            )
            expect_equal(nought.item(), 0.0, because="0 must come back as exactly 0")


@exercise("8.5")
def test_torch_agrees():
    x = numbers(200) + 0.7
    low, high = float(x.min()), float(x.max())
    scale, zero = quantization.affine_range(low, high)
    got = quantization.dequantize_affine(quantization.quantize_affine(x, scale, zero), scale, zero)
    want = torch.fake_quantize_per_tensor_affine(x, (high - low) / 255, round(-low * 255 / (high - low)), 0, 255)
    expect_close(got, want, because="torch's fake_quantize_per_tensor_affine gives other numbers", rtol=1e-4, atol=1e-6)
