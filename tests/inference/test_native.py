"""The hand-written kernels, each against torch in float64 or the int8 path that chapter 8 teaches."""

import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
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


@pytest.mark.parametrize("rows", [1, 8, 12])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_row_with_nan_or_infinity_is_nan_in_int8_and_the_others_are_as_ever(kernels, rows, value):
    weight = Int8Weight(torch.randn(24, 32))
    x = torch.randn(rows, 32)
    x[-1, 7] = value
    got = NativeInt8Weight(weight, kernels).linear(x)
    assert bool(got[-1].isnan().all())
    assert torch.equal(got[:-1], int8_linear(x[:-1], weight.levels, weight.scale))


def test_other_numbers_than_float32_and_other_sizes_are_refused(kernels):
    w = torch.randn(24, 16)
    for weight in (NativeWeight(w, kernels), NativeInt8Weight(Int8Weight(w), kernels)):
        for x in (torch.ones(1, 16, dtype=torch.float64), torch.ones(9, 16).bfloat16(), torch.ones(1, 32)):
            with pytest.raises(ValueError, match=r"x: float32 \[\.\.\., 16\] is wanted"):
                weight.linear(x)
    with pytest.raises(ValueError, match="float64 on cpu"):
        NativeWeight(w.double(), kernels)
    turned = torch.randn(16, 24)
    x = torch.randn(1, 16)
    torch.testing.assert_close(NativeWeight(turned.T, kernels).linear(x), x @ turned)


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


@pytest.mark.parametrize(
    ("head_dim", "block", "heads", "threads"), [(8, 4, (6, 2), 2), (6, 3, (4, 4), 1), (64, 1, (9, 3), 2)]
)
def test_attention_of_other_sizes_and_on_two_threads(kernels, head_dim, block, heads, threads):
    config = replace(TINY, head_dim=head_dim, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    chunks = [Chunk(i, 1, list(range(10 * i, 10 * i + 10))) for i in range(10)] + [Chunk(1, 4, list(range(100, 110)))]
    q, k, v = (torch.randn(1, count, 14, head_dim) for count in (heads[0], heads[1], heads[1]))
    before, outs = torch.get_num_threads(), []
    for name in ("reference", "native"):
        torch.manual_seed(0)
        pool = KVPool(config, 110, block)
        pool.keys.normal_()
        pool.values.normal_()
        torch.set_num_threads(threads)
        try:
            step = make_backend(name, config, block, torch.float32).begin(pool, chunks)
            outs.append(step.layers[0].attend(q, k, v, 0.3))
        finally:
            torch.set_num_threads(before)
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=2e-6)


def test_scores_of_minus_infinity(kernels):
    pool = KVPool(TINY, 3, BLOCK)
    pool.keys[:, 1], pool.values[:] = -1e38, 5.0
    backend, q, k = (
        make_backend("native", TINY, BLOCK, torch.float32),
        torch.full((1, 6, 1, 8), 1e3),
        torch.zeros(1, 2, 1, 8),
    )
    step = backend.begin(pool, [Chunk(4, 1, [1, 2])])
    assert torch.equal(step.layers[0].attend(q, k, k + 1, 1.0), torch.ones(1, 6, 1, 8))
    nothing = backend.begin(pool, [Chunk(0, 1, [0])]).layers[0].attend(q, k - 1e38, k, 1.0)
    assert bool(nothing.isnan().all())  # as in torch's softmax


def test_queries_of_another_dtype_are_converted_as_in_gather(kernels):
    chunks, outs = [Chunk(3, 1, [2]), Chunk(1, 3, [1])], []
    q, k, v = (torch.randn(1, heads, 4, HEAD_DIM).bfloat16() for heads in (6, 2, 2))
    for name in ("gather", "native"):
        pool = KVPool(TINY, 3, BLOCK)
        outs.append(make_backend(name, TINY, BLOCK, torch.float32).begin(pool, chunks).layers[0].attend(q, k, v, 0.3))
        assert outs[-1].dtype == torch.bfloat16
    torch.testing.assert_close(outs[1], outs[0])


def test_what_would_read_or_write_elsewhere_is_refused(kernels):
    backend = make_backend("native", TINY, BLOCK, torch.float32)
    for pool in (KVPool(TINY, 3, 2), KVPool(TINY, 3, BLOCK, torch.float64)):
        with pytest.raises(ValueError, match=r"this backend is for float32 and \(2, 4, 8\)"):
            backend.begin(pool, [Chunk(0, 1, [0])])
    pool = KVPool(TINY, 3, BLOCK)
    for chunk in (Chunk(3, 1, [3]), Chunk(5, 1, [10**9, 1]), Chunk(4, 2, [0, 3]), Chunk(5, 1, [-1, 1])):
        with pytest.raises(IndexError):
            backend.begin(pool, [chunk])
    layer = backend.begin(pool, [Chunk(0, 1, [0])]).layers[0]
    q, k = torch.ones(1, 6, 1, 8), torch.ones(1, 2, 1, 8)
    for bad_q, bad_k in ((q, q), (q, torch.ones(1, 2, 2, 8)), (torch.ones(1, 200, 1, 8), k), (q.repeat(1, 1, 2, 1), k)):
        with pytest.raises(ValueError, match="are wanted, not"):
            layer.attend(bad_q, bad_k, k, 1.0)


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
    with pytest.raises(BackendUnavailable, match="may be up to 4096, not 8 and 8192"):
        make_backend("native", TINY, 8192, torch.float32)


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("/nowhere/g++", "can't be built"),
        ("false", "failed"),
        ("'g++", "CXX can't be read"),
        (None, "no C\\+\\+ compiler"),
    ],
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


def test_built_once_though_many_threads_ask_and_again_when_it_was_emptied(kernels, monkeypatch, tmp_path):
    compiler = native._compiler()[0]
    monkeypatch.setenv("CXX", f"{compiler} -DSOMETHING='1 2'")
    monkeypatch.setattr(native, "FOLDER", tmp_path / "a")
    monkeypatch.setattr(native, "FLAGS", native.FLAGS.replace("-O3", "-O0"))  # sooner done
    compiled, compile_it = [], native._compile
    monkeypatch.setattr(native, "_compile", lambda command: compiled.append(command) or compile_it(command))
    native.load.cache_clear()
    try:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda _: native.load(HEAD_DIM, BLOCK), range(6)))
        assert len(compiled) == 1
        assert "-DSOMETHING=1 2" in compiled[0]
        [library] = (tmp_path / "a").iterdir()
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / library.name).write_bytes(b"")
        monkeypatch.setattr(native, "FOLDER", tmp_path / "b")
        native.load.cache_clear()
        native.load(HEAD_DIM, BLOCK)
        assert len(compiled) == 2
        native.load.cache_clear()
        native.load(HEAD_DIM, BLOCK)
        assert len(compiled) == 2
    finally:
        native.load.cache_clear()
