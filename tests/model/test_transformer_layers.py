"""The model's layers against torch's own, and against their definitions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared.model import rope as rope_module
from shared.model import transformer
from shared.model.linear import linear
from shared.model.transformer import attention, causal_mask, rmsnorm, rope, swiglu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rmsnorm_is_torchs(dtype):
    x, weight = torch.randn(2, 5, 48, dtype=dtype) * 3, torch.rand(48, dtype=dtype)
    got = rmsnorm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got, F.rms_norm(x, (48,), weight, 1e-5))


def test_rmsnorm_keeps_float64_exact_and_widens_bf16():
    x = torch.randn(7, 300, dtype=torch.float64)
    by_hand = np.stack([row / math.sqrt(np.dot(row, row) / 300 + 1e-6) for row in x.numpy()])
    np.testing.assert_allclose(rmsnorm(x, torch.ones(300, dtype=torch.float64), 1e-6), by_hand, rtol=1e-14)
    big = torch.full((1, 4096), 300.0, dtype=torch.float16)  # its square is over float16's largest number
    assert torch.equal(rmsnorm(big, torch.ones(4096, dtype=torch.float16), 1e-6), torch.ones_like(big))


def test_linear_and_swiglu_by_numpy():
    x, gate, up, down = (np.random.default_rng(0).normal(size=s) for s in ((3, 4), (6, 4), (6, 4), (4, 6)))
    g = x @ gate.T
    want = (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(linear(torch.tensor(x), torch.tensor(gate)), g, rtol=1e-12)
    np.testing.assert_allclose(swiglu(*map(torch.tensor, (x, gate, up, down))), want, rtol=1e-12)


def test_rope_turns_pairs_half_a_head_apart():
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]], dtype=torch.float64)  # pairs (1, 3) and (2, 4)
    got = rope(x, torch.tensor([5]), theta=100.0).flatten()
    first, second = complex(1, 3) * np.exp(5j), complex(2, 4) * np.exp(0.5j)
    np.testing.assert_allclose(got, [first.real, second.real, first.imag, second.imag], rtol=1e-12)


def test_rope_sees_only_the_distance():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)

    def product(m, n):
        return (rope(q, torch.tensor([m]), 50.0) * rope(k, torch.tensor([n]), 50.0)).sum()

    torch.testing.assert_close(product(3, 1), product(103, 101))
    assert (product(3, 1) - product(4, 1)).abs() > 1e-3


def test_rope_takes_positions_per_row():
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 20]])
    rows = torch.stack([rope(x[b], positions[b], 100.0) for b in range(2)])
    torch.testing.assert_close(rope(x, positions, 100.0), rows)


def test_rope_at_far_positions_in_bf16():
    """bf16 cannot tell position 257 from 256; the angle must not be computed in it."""
    x = torch.ones(2, 8, dtype=torch.bfloat16)
    got = rope(x, torch.tensor([256, 257]), 10000.0)
    want = rope(x.double(), torch.tensor([256, 257]), 10000.0)
    torch.testing.assert_close(got.double(), want, atol=0.01, rtol=0)


def test_causal_mask_is_bottom_right():
    assert causal_mask(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert causal_mask(1, 4).all()


@pytest.mark.parametrize(("batch", "heads", "kv_heads", "L", "S"), [(1, 4, 4, 5, 5), (2, 6, 2, 3, 7), (3, 6, 1, 1, 9)])
def test_attention_is_torchs(batch, heads, kv_heads, L, S):
    g = torch.Generator().manual_seed(0)
    q = torch.randn(batch, L, heads, 8, generator=g, dtype=torch.float64).transpose(1, 2)  # not contiguous
    k, v = torch.randn(2, batch, kv_heads, S, 8, generator=g, dtype=torch.float64)
    wide_k, wide_v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    per_row, per_head = (torch.rand(batch, n, L, S, generator=g) < 0.7 for n in (1, heads))
    for mask in (causal_mask(L, S), None, per_row, per_head):
        if mask is not None:
            mask[..., 0] = True  # each query sees something
        want = F.scaled_dot_product_attention(q, wide_k, wide_v, attn_mask=mask, scale=0.3)
        torch.testing.assert_close(attention(q, k, v, mask, 0.3), want, rtol=1e-10, atol=1e-12)


def test_attention_survives_large_scores():
    q = torch.full((1, 1, 1, 4), 1e4)
    k = torch.tensor([1.0, -1.0]).view(1, 1, 2, 1).expand(1, 1, 2, 4)
    v = torch.tensor([[1.0], [2.0]]).expand(1, 1, 2, 4)
    assert torch.equal(attention(q, k, v, None, 1.0), torch.ones(1, 1, 1, 4))


@pytest.mark.parametrize(("module", "examples"), [(transformer, 3), (rope_module, 4)])
def test_docstring_examples(module, examples):
    import doctest

    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted >= examples


def test_llama3_scaling_by_its_definition():
    """Long waves are stretched by the factor, short ones kept, those between mixed (Llama 3.1's numbers)."""
    from shared.model.config import RopeScaling

    scaling = RopeScaling(8.0, 1.0, 4.0, 8192)
    plain = transformer.inverse_frequencies(128, 500000.0)
    got = transformer.inverse_frequencies(128, 500000.0, scaling)
    want = []
    for speed in plain.tolist():
        wavelength = 2 * math.pi / speed
        if wavelength < 8192 / 4.0:
            want.append(speed)
        elif wavelength > 8192 / 1.0:
            want.append(speed / 8.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            want.append((1 - smooth) * speed / 8.0 + smooth * speed)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert 0 < sum(a == b for a, b in zip(want, plain.tolist(), strict=True)) < 64
