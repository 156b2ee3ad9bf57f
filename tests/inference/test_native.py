"""The hand-written kernels, each against torch in float64 or the int8 path that chapter 8 teaches."""

import math
import os
import shutil
from dataclasses import replace

import pytest
import torch

from shared.inference import native
from shared.inference.attention import BackendUnavailable, Chunk, make_backend
from shared.inference.native import NativeUnavailable
from shared.inference.native_weights import NativeInt8Weight, NativeWeight, with_native_weights
from shared.inference.paged_kv_cache import KVPool
from shared.model.int8 import Int8Weight, int8_linear, quantize_int8
from tests.tiny import TINY, tiny_model

HEAD_DIM, BLOCK = 8, 4


@pytest.fixture(scope="module")
def kernels():
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    return native.load(HEAD_DIM, BLOCK)


@pytest.mark.parametrize("n_in", [1, 15, 16, 33, 576])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_float_products_equal_float64(kernels, rows, n_in):
    generator = torch.Generator().manual_seed(rows * n_in)
    x, w = torch.randn(1, rows, n_in, generator=generator), torch.randn(13, n_in, generator=generator)
    got = NativeWeight(w, kernels).linear(x)
    assert got.shape == (1, rows, 13)
    torch.testing.assert_close(got.double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 17])
@pytest.mark.parametrize("n_in", [16, 24, 576])
def test_int8_products_equal_chapter_8s_bit_for_bit(kernels, rows, n_in):
    generator = torch.Generator().manual_seed(rows + n_in)
    x = torch.randn(rows, n_in, generator=generator)
    x[0] = 0  # a row of zeros may not be divided by zero
    weight = Int8Weight(torch.randn(24, n_in, generator=generator))
    got = NativeInt8Weight(weight, kernels).linear(x)
    assert torch.equal(got, int8_linear(x, weight.levels, weight.scale))


def test_int8_rounds_halves_to_even_and_uses_both_ends_of_the_range(kernels):
    x = torch.tensor([[127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 63.5] + [0.0] * 8])
    weight = Int8Weight(torch.eye(16))
    for rows in (1, 5):
        got = NativeInt8Weight(weight, kernels).linear(x.repeat(rows, 1))
        assert got[-1, :8].tolist() == pytest.approx([127, -127, 0, 2, 2, 0, -2, 64], abs=1e-4)


def test_no_rows_and_a_view_with_gaps(kernels):
    w = torch.randn(5, 16)
    for weight in (NativeWeight(w, kernels), NativeInt8Weight(Int8Weight(w), kernels)):
        assert weight.linear(torch.empty(1, 0, 16)).shape == (1, 0, 5)
        wide = torch.randn(2, 32)
        assert torch.equal(weight.linear(wide[:, ::2]), weight.linear(wide[:, ::2].contiguous()))


def test_nan_and_infinity_stay_what_they_are(kernels):
    w = NativeWeight(torch.ones(2, 16), kernels)
    for value in (math.nan, math.inf):
        x = torch.ones(1, 16)
        x[0, 3] = value
        assert not w.linear(x).isfinite().any()
        x = x.repeat(8, 1)
        assert not w.linear(x).isfinite().any()


def test_denormal_numbers_survive(kernels):
    """-ffast-math would switch them off for the whole process, in everyone's arithmetic."""
    assert float(torch.tensor(1e-40) * 1) != 0.0
    assert float(torch.nn.functional.linear(torch.tensor([1e-40]), torch.tensor([[1.0]]))) != 0.0


CHUNKS = [Chunk(0, 1, [7]), Chunk(3, 1, [2]), Chunk(4, 1, [5, 9]), Chunk(12, 1, [1, 3, 4, 6]), Chunk(2, 6, [0, 8]),
          Chunk(8, 1, [5, 9, 10])]  # fmt: skip


def test_attention_equals_the_reference(kernels):
    """Block edges, one token, shared blocks, and a piece of a prompt between single tokens."""
    config = replace(TINY, head_dim=HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    tokens = sum(chunk.n for chunk in CHUNKS)
    q, k, v = (
        torch.randn(1, tokens, heads, HEAD_DIM, generator=generator).transpose(1, 2)
        for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    )
    q[:, :, 1] *= 40  # scores so far apart that a careless exponential overflows
    outs, pools = [], []
    for name in ("reference", "native"):
        pool = KVPool(config, 11, BLOCK)
        pool.keys.normal_(generator=torch.Generator().manual_seed(1))
        pool.values.normal_(generator=torch.Generator().manual_seed(2))
        step = make_backend(name, config, BLOCK, torch.float32).begin(pool, CHUNKS)
        outs.append(step.layers[1].attend(q, k, v, HEAD_DIM**-0.5))
        pools.append(pool)
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=2e-6)
    assert torch.equal(pools[0].keys, pools[1].keys)
    assert torch.equal(pools[0].values, pools[1].values)


def test_what_lies_behind_the_end_does_not_count(kernels):
    pool = KVPool(TINY, 2, BLOCK)
    pool.keys.fill_(1e4)
    pool.values.fill_(1e4)
    step = make_backend("native", TINY, BLOCK, torch.float32).begin(pool, [Chunk(0, 1, [1])])
    q, k, v = torch.ones(1, 6, 1, 8), torch.ones(1, 2, 1, 8), torch.full((1, 2, 1, 8), 0.25)
    assert torch.equal(step.layers[0].attend(q, k, v, 1.0), torch.full((1, 6, 1, 8), 0.25))


@pytest.mark.parametrize("quantized", [False, True])
def test_a_model_with_native_weights_computes_the_same_and_shares_its_memory(kernels, quantized):
    model = tiny_model(dtype=torch.float32)
    if quantized:
        model = quantize_int8(model)
    fast = with_native_weights(model, kernels)
    for length in (1, 3, 40):
        ids = torch.arange(length)[None] % 97
        torch.testing.assert_close(fast(ids), model(ids), rtol=1e-4, atol=1e-4)
    table, shared = model.model.embed_tokens.weight, fast.model.embed_tokens.weight
    ours = (table.levels, shared.whole.levels) if quantized else (table, shared.whole.weight)
    assert ours[0].data_ptr() == ours[1].data_ptr()
    assert fast.model.embed_tokens.weight is not model.model.embed_tokens.weight
    ids = torch.arange(5)[None]
    assert torch.equal(model(ids), model(ids))  # the model that was given is as it was


def test_what_it_is_not_for_is_said():
    with pytest.raises(BackendUnavailable, match="float64"):
        make_backend("native", TINY, BLOCK, torch.float64)


@pytest.mark.parametrize(
    ("compiler", "words"), [("/nowhere/g++", "can't be built"), ("false", "failed"), (None, "no C\\+\\+ compiler")]
)
def test_without_a_working_compiler_it_says_so(monkeypatch, tmp_path, compiler, words):
    monkeypatch.setattr(native, "FOLDER", tmp_path / "native")
    monkeypatch.setenv("PATH", os.environ["PATH"] if compiler else str(tmp_path))
    if compiler:
        monkeypatch.setenv("CXX", compiler)
    else:
        monkeypatch.delenv("CXX", raising=False)
    native.load.cache_clear()
    with pytest.raises(NativeUnavailable, match=words):
        native.load(HEAD_DIM, BLOCK)
    assert not list(tmp_path.glob("native/*"))  # nothing half made is left
    native.load.cache_clear()


def test_built_once(kernels, monkeypatch):
    monkeypatch.setattr(native, "_compile", lambda command: pytest.fail("built again"))
    native.load.cache_clear()
    native.load(HEAD_DIM, BLOCK)
