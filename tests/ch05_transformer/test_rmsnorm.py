"""Exercise 5.1: judged by numbers worked out by hand and torch's own rms_norm in float64."""

import pytest
import torch
import torch.nn.functional as F

from chapters.ch05_transformer.transformer import rmsnorm
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch05_transformer.oracle import likely, normal

# 5.1 rmsnorm

BY_HAND = [0.848528, 1.131371]
SIZES = {  # what usual mistakes make of [3, 4]
    "the sum of the squares was taken, where their mean belongs": [0.6, 0.8],
    "this is LayerNorm: RMSNorm subtracts no mean": [-1.0, 1.0],
    "this is LayerNorm, with std's n - 1 besides: RMSNorm subtracts no mean": [-0.707107, 0.707107],
    "it was divided by the standard deviation, or the variance, which subtract the mean": [6.0, 8.0],
    "it was divided by std, which subtracts the mean (and divides by n - 1)": [4.242641, 5.656854],
    "the root is missing: it was divided by the mean square itself": [0.24, 0.32],
    "it was multiplied by the root-mean-square; it is divided by it": [10.606602, 14.142136],
    "it was scaled by 1 + weight, as Gemma does; here it is weight alone": [1.697056, 2.262742],
    "it was not divided at all": [3.0, 4.0],
}


@exercise("5.1")
def test_by_hand():
    got = rmsnorm(torch.tensor([3.0, 4.0]), torch.ones(2), eps=0.0)
    expect_close(
        got,
        BY_HAND,
        because=likely(got, SIZES) + "[3, 4] has a mean square of (9 + 16) / 2 = 12.5, and each number is divided by "
        "its root, 3.5355",
    )


WITH_EPS = [0.5]
EPS = {  # what usual mistakes make of 0.01 with an eps of 0.0003
    "eps was added after the root; it goes under it": [0.970874],
    "eps is missing, or was added to the root's inverse": [1.0],
    "eps was a number of your own (1e-5); use the argument": [0.953463],
    "eps was a number of your own (1e-6); use the argument": [0.995037],
    "eps was squared; it is added as it is": [0.999550],
}


@exercise("5.1")
def test_eps_is_under_the_root():
    got = rmsnorm(torch.full((1,), 0.01), torch.ones(1), eps=3e-4)
    expect_close(
        got,
        WITH_EPS,
        rtol=1e-4,
        because=likely(got, EPS) + "eps is added to the mean square, before the root: 0.01 / sqrt(0.0001 + 0.0003)",
    )


@exercise("5.1")
def test_a_vector_of_nothing():
    got = rmsnorm(torch.zeros(4), torch.ones(4), eps=1e-6)
    expect_close(got, torch.zeros(4), because="a vector of zeros stays zeros; without eps it is 0 / 0")


@exercise("5.1")
def test_each_vector_by_itself():
    rows = [[[1.0, 1.0], [100.0, 100.0], [2.0, -2.0]], [[0.5, -0.5], [7.0, 7.0], [3.0, 3.0]]]
    x = torch.tensor(rows)  # [batch 2, length 3, dim 2]
    with crash_means("the mean lost its axis, and [2, 3] doesn't fit [2, 3, 2]: mean(dim=-1, keepdim=True)"):
        got = rmsnorm(x, torch.ones(2), eps=0.0)
    expect_equal(
        list(got.shape),
        [2, 3, 2],
        because="the result has x's shape; keepdim=True keeps the mean broadcastable to each vector",
    )
    expect_close(
        got,
        x.sign(),
        because="each vector along the last axis has a root-mean-square of its own. If a small vector came out tiny, "
        "the mean ran over the whole tensor, or over another axis: mean(dim=-1, keepdim=True)",
    )


@exercise("5.1")
def test_weight_scales_each_place():
    got = rmsnorm(torch.tensor([[2.0, -2.0]]), torch.tensor([0.5, 3.0]), eps=0.0)
    expect_close(got, [[0.5, -3.0]], because="after the division, place i is multiplied by weight[i]; nothing is added")


@exercise("5.1")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    x = normal(2, 3, 64, dtype=dtype)
    got = rmsnorm(x, torch.ones(64, dtype=dtype), eps=1e-5)
    expect_equal(
        got.dtype,
        dtype,
        because=f"{dtype} goes in and {dtype} comes out: the mean is taken in float32, and the result goes back to x's "
        "dtype before it is scaled",
    )


@exercise("5.1")
def test_squares_are_taken_in_float32():
    big = torch.full((1, 64), 300.0, dtype=torch.float16)
    got = rmsnorm(big, torch.ones(64, dtype=torch.float16), eps=1e-6)
    expect_close(
        got,
        torch.ones(1, 64),
        rtol=1e-3,
        because="300 squared is more than float16 can hold (65504), and 300 / infinity is 0: widen x to float32 before "
        "squaring",
    )


@exercise("5.1")
@pytest.mark.parametrize("shape", [(5,), (3, 8), (2, 7, 576)])
def test_equal_to_torch(shape):
    x, weight = 3 * normal(*shape, seed=1), normal(shape[-1], seed=2)
    want = F.rms_norm(x, shape[-1:], weight, 1e-5)
    for dtype, rtol in ((torch.float64, 1e-5), (torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        got = rmsnorm(x.to(dtype), weight.to(dtype), 1e-5)
        expect_close(got.double(), want, rtol=rtol, atol=rtol, because=f"not what torch's rms_norm gives, in {dtype}")
    expect_close(
        rmsnorm(x, weight, 1e-5),
        want,
        rtol=1e-10,
        because="float64 was narrowed to float32 on the way: float32 is the least, and float64 stays float64. "
        "torch.promote_types(x.dtype, torch.float32) is the wider of the two",
    )


@exercise("5.1")
def test_x_is_left_as_it_was():
    x = normal(2, 8)
    before = x.clone()
    rmsnorm(x, torch.ones(8, dtype=torch.float64), 1e-5)
    expect(
        torch.equal(x, before), because="x was changed in place, and the residual still needs it: x / rms, not x /= rms"
    )
