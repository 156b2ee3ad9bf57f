"""GGUF's block formats against the gguf package, bit for bit."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from shared.model.dequantize import BY_HAND, dequantize


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", [*BY_HAND, GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q6_K])
def test_any_bytes(kind):
    """Every pattern of bits that a block may hold, scales that are nan or infinite among them."""
    block, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, size=(200, 8 * size), dtype=np.uint8)
    want = quants.dequantize(data, kind)
    got = dequantize(data, kind)
    assert got.shape == (200, 8 * block)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_floats_pass():
    x = np.float32([[1.5, -2.0]])
    np.testing.assert_array_equal(dequantize(x, GGMLQuantizationType.F32), x)
