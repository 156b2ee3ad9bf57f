"""Exercise 8.3: judged by a block made by hand, by Python's own arithmetic, and by the gguf package, bit for bit."""

import numpy as np
from gguf import GGMLQuantizationType, quants

from chapters.ch08_weights import dequantize
from chapters.judge import exercise, expect_close, expect_equal


def block(scale: float, offset: float, packed: list[int]) -> np.ndarray:
    head = np.array([scale, offset], dtype="<f2").view(np.uint8)
    return np.concatenate((head, np.array(packed, dtype=np.uint8)))[None]


@exercise("8.3")
def test_scale_and_offset():
    got = dequantize.dequantize_q4_1(block(0.5, -3.0, [0x22] * 16))
    causes = {
        -5.5: "scale and offset are swapped: the scale is the first float16, the offset the second",
        2.5: "that is scale * (level - offset); here the offset is added after the scale: scale * level + offset",
        1.0: "the offset isn't added",
    }
    first = None if got is None or np.size(got) == 0 else float(np.ravel(got)[0])
    expect_close(
        got,
        np.full((1, 32), 0.5 * 2 - 3.0),
        because=causes.get(
            first, "a weight is scale * level + offset; the scale is the first float16, the offset the second"
        ),
    )


@exercise("8.3")
def test_low_half_first_and_sixteen_apart():
    got = dequantize.dequantize_q4_1(block(1.0, 0.0, [16 * (15 - i) + i for i in range(16)]))
    expect_close(
        got[0],
        [*range(16), *range(15, -1, -1)],
        because="the low four bits of byte i are level i, the high four are level i + 16. Swapped halves turn the two "
        "rows of 16 round, and a level 2i + 1 from the high half mixes them",
    )


@exercise("8.3")
def test_many_blocks():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(7, 96)).astype(np.float32)
    data = quants.quantize(weights, GGMLQuantizationType.Q4_1)
    got = dequantize.dequantize_q4_1(data.reshape(-1, 20))
    expect_equal(
        got.shape, (21, 32), because="each block becomes a row of 32, with its own scale and offset: keep them [n, 1]"
    )
    want = quants.dequantize(data, GGMLQuantizationType.Q4_1).reshape(21, 32)
    off = float(np.abs(got.astype(np.float64) - want).max())
    if np.array_equal(got[0], want[0]) and off > 0.05:
        cause = "the first block is right, others aren't: each block has its own scale and offset"
    elif off > 0.05:
        cause = "the gguf package gets other numbers"
    else:
        cause = (
            "close, but the gguf package gets other bits: float16 parts must become float32 before they are "
            "multiplied, or each product is rounded to three digits"
        )
    expect_equal(got.astype(np.float64), want.astype(np.float64), because=cause)
    expect_equal(got.dtype, np.dtype("float32"), because="the result is float32")
