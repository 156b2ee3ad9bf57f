"""Quantisation by hand: numbers as small integers and a scale, symmetric and affine, a tensor, a row or a group each.

A quantised number is `scale * (level - zero_point)`. Symmetric quantisation has no zero point: its levels run from
-limit to limit, 127 for eight bits, and 0 is 0. (Jacob et al. 2018, section 2.1; Nagel et al. 2021, section 2.)
"""

import torch
from torch import Tensor


def limit(bits: int) -> int:
    """The highest level of a symmetric quantiser: 127 for 8 bits, 7 for 4. Raises ValueError outside 2 to 8 bits."""
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ValueError(f"bits must be a whole number from 2 to 8, not {bits!r}")
    return 2 ** (bits - 1) - 1


def check_finite(x: Tensor) -> None:
    """Raise ValueError for a tensor with nan or infinity: one such number makes every level of its row worthless."""
    if not bool(x.isfinite().all()):
        raise ValueError("a tensor with nan or infinity can't be quantised: its scale would be nan or infinite, too")


def quantize_symmetric(x: Tensor, highest: int = 127, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Levels from -highest to highest, so that the largest |x| gets the highest level.

    x: any float tensor, which stays as it is; dim: the axis that shares a scale, or None for one scale in all. For a
    weight [out, in], dim=-1 gives each output channel (row) its own: "per channel".
    Returns levels, int8, shaped as x, and the scale, in x's dtype: [..., 1] at `dim`, or [] for None. Where x is all
    zero the scale is 1. Raises ValueError for nan or infinity.
    The error of scale * levels is half a scale at most for float32 and float64. In float16 and bfloat16 the quotient
    is rounded before it becomes a level: up to a scale there, and 127 / 127 may come out as 128, so clamp.

    >>> quantize_symmetric(torch.tensor([[-1.27, 0.5], [0.0, 2.54]]), dim=-1)
    (tensor([[-127,   50],
            [   0,  127]], dtype=torch.int8), tensor([[0.0100],
            [0.0200]]))
    """
    check_finite(x)
    # exercise 8.4: the scale from the largest absolute value along dim, then divide, round, clamp
    #   amax(dim=..., keepdim=True) for an axis, max() for all; a scale of 0 must become 1 before anybody divides by it
    largest = x.abs().max() if dim is None else x.abs().amax(dim=dim, keepdim=True)
    scale = largest / highest
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    levels = (x / scale).round().clamp(-highest, highest)
    return levels.to(torch.int8), scale
    # end


def affine_range(low: float, high: float, bits: int = 8) -> tuple[float, int]:
    """Scale and zero point, so that the levels 0 to 2**bits - 1 cover the numbers from low to high.

    Zero must be exact (padding and ReLU are full of zeros), so it must lie in the range: a range without it is
    stretched to it first, and the zero point, the level that means 0, is a whole number among the levels.
    Returns (scale, zero_point). A range of nothing but zero gets (1.0, 0).

    >>> affine_range(-1.0, 3.0, bits=2)  # levels 0 to 3 mean -1.33, 0, 1.33, 2.67
    (1.3333333333333333, 1)
    """
    if not low <= high:
        raise ValueError(f"the range must go from low to high, not from {low} to {high}")
    # exercise 8.5: stretch the range to zero, share it out over the steps between levels, and round the zero point
    low, high = min(low, 0.0), max(high, 0.0)
    highest = 2**bits - 1
    scale = (high - low) / highest
    if scale == 0:
        return 1.0, 0
    return scale, min(max(round(-low / scale), 0), highest)
    # end


def quantize_affine(x: Tensor, scale: float, zero_point: int, bits: int = 8) -> Tensor:
    """Levels 0 to 2**bits - 1, uint8, shaped as x; what lies outside the range gets the nearest end: it saturates."""
    check_finite(x)
    return ((x / scale).round() + zero_point).clamp(0, 2**bits - 1).to(torch.uint8)


def dequantize_affine(levels: Tensor, scale: float, zero_point: int) -> Tensor:
    """Back to float32. levels: uint8, any shape."""
    return (levels.float() - zero_point) * scale


def in_groups(w: Tensor, size: int) -> Tensor:
    """Cut each row into groups of `size` neighbours, which may have a scale each. [out, in] -> [out, in / size, size].

    Raises ValueError when the row isn't a whole number of groups.
    """
    if size < 1 or w.shape[-1] % size:
        raise ValueError(f"rows of {w.shape[-1]} can't be cut into groups of {size}; choose a divisor")
    return w.unflatten(-1, (-1, size))


def fake_quantize(w: Tensor, bits: int, per: str = "row", group_size: int = 32) -> Tensor:
    """What is left of a weight [out, in] after symmetric quantisation and back. per: "tensor", "row" or "group"."""
    if per not in ("tensor", "row", "group"):
        raise ValueError(f'per must be "tensor", "row" or "group", not {per!r}')
    grouped = in_groups(w, group_size) if per == "group" else w
    levels, scale = quantize_symmetric(grouped, limit(bits), None if per == "tensor" else -1)
    return (levels * scale).view(w.shape)


def pack_int4(levels: Tensor) -> Tensor:
    """Two levels of four bits in each byte, as two's complement: the first in the low half, the second in the high.

    levels: int8 [..., n], each -8 to 7, n even. Returns uint8 [..., n / 2].

    >>> pack_int4(torch.tensor([1, -1, 7, -8], dtype=torch.int8))  # 0xF1, 0x87
    tensor([241, 135], dtype=torch.uint8)
    """
    if levels.shape[-1] % 2 or levels.min() < -8 or levels.max() > 7:
        raise ValueError("int4 takes an even number of levels, each from -8 to 7")
    half = (levels & 0x0F).to(torch.uint8)  # two's complement in four bits
    return half[..., 0::2] | (half[..., 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """The levels that `pack_int4` put away. packed: uint8 [..., n / 2]. Returns int8 [..., n].

    >>> unpack_int4(torch.tensor([241, 135], dtype=torch.uint8))
    tensor([ 1, -1,  7, -8], dtype=torch.int8)
    """
    # exercise 8.6: low and high half of each byte, the sign restored, and the two put alternately
    #   a half of 8 or more stands for a negative number: that number plus 16
    halves = torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2).to(torch.int8)  # [..., n], 0 to 15
    return torch.where(halves >= 8, halves - 16, halves)
    # end
