"""Exercise 8.9: judged by the exact product of whole numbers, in float64, and by bounds on the error."""

import torch

from chapters.ch08_weights import int8
from chapters.judge import exercise, expect, expect_close, expect_equal


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole_weight(n_out: int, n_in: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(-60, 61, (n_out, n_in), dtype=torch.int8, generator=generator)
    return levels, torch.rand(n_out, generator=generator) + 0.01


@exercise("8.9")
def test_by_hand():
    levels = torch.tensor([[-2, 1]], dtype=torch.int8)
    got = int8.int8_linear(torch.tensor([[2.0, -254.0]]), levels, torch.tensor([0.5]))
    causes = {
        -64.5: "the row's step is missing in the result: it must be multiplied back",
        -258.0: "the channel's scale is missing in the result",
        127.0: "the sum of -129 has wrapped around: products are added in 32 bits, and int8 ends at -128",
    }
    found = round(float(got.flatten()[0]), 3) if torch.is_tensor(got) and got.numel() else None
    if found is not None and abs(found) < 10:
        causes[found] = "the row's largest is -254: without abs() a negative largest is missed, and its level wraps"
    expect_close(
        got,
        [[-129.0]],
        because=causes.get(
            found,
            "the row's step is 254 / 127 = 2, its levels are 1 and -127; -2 * 1 + 1 * -127 = -129, times 2, times 0.5",
        ),
    )


@exercise("8.9")
def test_each_row_by_itself():
    levels, scale = whole_weight(16, 32)
    x = numbers(4, 32)
    x[2] *= 5000  # an outlier among the rows
    want = x.double() @ (levels.double() * scale.double()[:, None]).T
    got = int8.int8_linear(x, levels, scale)
    for row in (0, 1, 3):
        error = float((got[row].double() - want[row]).norm() / want[row].norm())
        expect(
            error < 0.05,
            because=f"row {row} is off by {error:.0%}: one large row must not take the other rows' levels away. "
            "The step is each row's own: amax over the last axis, keepdim=True",
        )


@exercise("8.9")
def test_the_definition():
    levels, scale = whole_weight(24, 40)
    x = numbers(5, 40)
    step = x.abs().amax(dim=1, keepdim=True) / 127
    whole = (x / step).round().double()
    want = (whole @ levels.double().T) * step.double() * scale.double()
    expect_close(
        int8.int8_linear(x, levels, scale),
        want,
        because="rows rounded to whole steps, an exact product, then the row's step times the channel's scale. Without "
        "round() a cast to int8 cuts the digits off; with one factor missing all is off by it",
        rtol=1e-4,
        atol=1e-4,
    )


@exercise("8.9")
def test_seven_bit_weights_change_nothing_for_x(monkeypatch):
    monkeypatch.setattr(int8, "highest_weight", lambda: 64)  # as on a processor without VNNI
    levels, scale = whole_weight(24, 40)
    x = numbers(5, 40)
    step = x.abs().amax(dim=1, keepdim=True) / 127
    want = ((x / step).round().double() @ levels.double().T) * step.double() * scale.double()
    expect_close(
        int8.int8_linear(x, levels, scale),
        want,
        because="highest_weight() is for the weights' levels, and 64 on some machines; rows of x always go up to 127",
        rtol=1e-4,
        atol=1e-4,
    )


@exercise("8.9")
def test_the_shape_of_x():
    levels, scale = whole_weight(24, 40)
    x = numbers(2, 3, 40)
    got = int8.int8_linear(x, levels, scale)
    expect_equal(
        list(got.shape), [2, 3, 24], because="x is [..., in] and the result [..., out]: flatten, then view back"
    )
    expect_close(got[1, 2], int8.int8_linear(x[1, 2], levels, scale), because="each row has its place", rtol=1e-4)


@exercise("8.9")
def test_a_row_of_zeros():
    levels, scale = whole_weight(24, 40)
    x = numbers(3, 40)
    x[1] = 0
    got = int8.int8_linear(x, levels, scale)
    expect(
        bool((got[1] == 0).all()),
        because=f"a row of zeros must give zeros, and gives {got[1, 0].item()}: a step of 0 divides 0 by 0; keep it at "
        "1e-12 or more",
    )


@exercise("8.9")
def test_a_small_row():
    levels, scale = whole_weight(24, 40)
    x = numbers(3, 40)
    expect_close(
        int8.int8_linear(x * 2.0**-20, levels, scale) * 2.0**20,
        int8.int8_linear(x, levels, scale),
        because="a row of a millionth of the size must give a millionth of the result: 1e-12 is the floor of the step",
        rtol=1e-3,
        atol=1e-3,
    )


@exercise("8.9")
def test_large_sums_do_not_wrap():
    levels = torch.full((16, 64), 60, dtype=torch.int8)
    got = int8.int8_linear(torch.ones(2, 64), levels, torch.ones(16))
    expect_close(got[0, 0], 60.0 * 64, because="sums of products need 32 bits: in int8 they wrap around", rtol=1e-4)


@exercise("8.9")
def test_the_dtype_of_x():
    levels, scale = whole_weight(24, 40)
    for seed in range(20):
        x = numbers(8, 40, seed=seed).bfloat16()
        got = int8.int8_linear(x, levels, scale)
        expect_equal(got.dtype, torch.bfloat16, because="what comes in as bf16 goes out as bf16")
        step = x.float().abs().amax(dim=1, keepdim=True) / 127
        want = ((x.float() / step).round().double() @ levels.double().T) * step.double() * scale.double()
        error = float(((got.double() - want).norm(dim=1) / want.norm(dim=1)).max())
        expect(
            error < 0.006,
            because=f"a row of bf16 is off by {error:.1%}: bf16 has eight bits of precision, so the division rounds "
            "levels to wrong ones, and 127.5 to 128, which wraps in int8. Compute in float32: x...float()",
        )


@exercise("8.9")
def test_the_product_is_one_of_whole_numbers(monkeypatch):
    calls, kernel = [], torch._int_mm

    def counted(a, w):
        calls.append(a.dtype)
        return kernel(a, w)

    monkeypatch.setattr(torch, "_int_mm", counted)
    levels, scale = whole_weight(24, 40)
    int8.int8_linear(numbers(5, 40), levels, scale)
    expect(
        len(calls) == 1,
        because="the result is right, but floats were multiplied: that gains nothing. One call of int_matmul, which "
        "multiplies bytes",
    )
