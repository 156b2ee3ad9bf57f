"""Exercise 8.6: judged by bytes packed by hand, and by every byte there is."""

import torch

from chapters.ch08_weights import quantization
from chapters.judge import exercise, expect_equal


@exercise("8.6")
def test_the_first_is_the_low_half():
    got = quantization.unpack_int4(torch.tensor([0x21], dtype=torch.uint8))
    shifted = torch.is_tensor(got) and got.tolist() == [-7, -6]
    expect_equal(
        got,
        torch.tensor([1, 2]),
        because="8 was subtracted from each: that is how Q4_0 keeps signs; here only 8 to 15 are negative, less 16"
        if shifted
        else "the first level is the low half of the byte (& 0x0F), the second the high half (>> 4)",
    )


@exercise("8.6")
def test_the_sign_comes_back():
    got = quantization.unpack_int4(torch.tensor([0xF8], dtype=torch.uint8))
    expect_equal(
        got.tolist(),
        [-8, -1],
        because="8 to 15 stand for -8 to -1 (two's complement): take 16 off; without that the sign is lost",
    )


@exercise("8.6")
def test_neighbours_stay_neighbours():
    packed = torch.tensor([[0x21, 0x43], [0x65, 0x07]], dtype=torch.uint8)
    expect_equal(
        quantization.unpack_int4(packed).tolist(),
        [[1, 2, 3, 4], [5, 6, 7, 0]],
        because="the two halves of a byte are neighbours in the row: stack them on a new last axis and flatten it; cat "
        "would put all first halves before all second ones",
    )


@exercise("8.6")
def test_every_byte():
    want = [[level - 16 if level > 7 else level for level in (byte % 16, byte // 16)] for byte in range(256)]
    got = quantization.unpack_int4(torch.arange(256, dtype=torch.uint8)[:, None])
    expect_equal(got.tolist(), want, because="each of the 256 bytes holds two numbers from -8 to 7")
    expect_equal(got.dtype, torch.int8, because="levels are int8")


@exercise("8.6")
def test_what_was_packed():
    levels = torch.randint(-8, 8, (3, 5, 14), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    got = quantization.unpack_int4(quantization.pack_int4(levels))
    expect_equal(got.tolist(), levels.tolist(), because="unpacking gives back what was packed, whatever the dimensions")
