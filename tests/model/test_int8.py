"""The int8 model against exact products, and against the float model that it was made from."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

from shared.evaluation.bench_int8 import process_memory
from shared.model import int8
from shared.model.calibration import ChannelMax
from shared.model.int8 import Int8Weight, highest_weight, int_matmul, memory_bytes, quantize_int8
from shared.model.linear import Embedding, Linear
from shared.model.weight_only import GroupedWeight, quantize_weight_only
from tests.tiny import TINY, tiny_model

IDS = torch.tensor([[5, 17, 3, 88, 41, 2, 60, 9]])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 576, 192), (8, 576, 576), (8, 1536, 576), (17, 40, 7), (130, 577, 33)])
def test_the_kernel_adds_up_exactly(shape):
    """At the extremes, where sums of pairs would saturate, and at random; up to the weight this machine allows."""
    n, n_in, n_out = shape
    top = highest_weight()
    generator = torch.Generator().manual_seed(0)
    most = torch.full((n, n_in), 127, dtype=torch.int8)
    weights = torch.full((n_out, n_in), top, dtype=torch.int8)
    weights[1::2] *= -1
    some = torch.randint(-127, 128, (n, n_in), dtype=torch.int8, generator=generator)
    others = torch.randint(-top, top + 1, (n_out, n_in), dtype=torch.int8, generator=generator)
    for a, w in ((most, weights), (-most, weights), (some, others)):
        assert torch.equal(int_matmul(a, w), (a.double() @ w.double().T).int())


def test_a_machine_that_saturates_gets_seven_bits(monkeypatch):
    """Bytes multiplied in pairs and added in 16 bits, as AVX2 does it: wrong with 127, exact with 64."""

    def saturating(a, w):
        shifted, w = a.int() + 128, w.int()
        pairs = (shifted[:, None, :] * w[None]).unflatten(-1, (-1, 2)).sum(-1).clamp(-32768, 32767)  # [n, out, in / 2]
        return pairs.sum(-1) - 128 * w.sum(-1)

    monkeypatch.setattr(int8, "int_matmul", saturating)
    highest_weight.cache_clear()
    try:
        assert highest_weight() == 64
        most, weights = torch.full((4, 32), 127, dtype=torch.int8), torch.full((6, 32), 64, dtype=torch.int8)
        assert (saturating(most, weights) == 127 * 64 * 32).all()
        weight = numbers(12, 32)
        assert int(Int8Weight(weight).levels.abs().max()) == 64
        x = numbers(5, 32, seed=1)
        torch.testing.assert_close(Int8Weight(weight).linear(x), x @ weight.T, rtol=0.05, atol=0.2)
    finally:
        highest_weight.cache_clear()


def test_the_error_is_that_of_two_roundings():
    x, weight = numbers(40, 256), numbers(64, 256, seed=1)
    own = Int8Weight(weight)
    want = x.double() @ weight.double().T
    error = (own.linear(x).double() - want).abs()
    step_x, step_w = x.abs().amax(1, keepdim=True).double() / 127, weight.abs().amax(1).double() / highest_weight()
    bound = step_x / 2 * weight.abs().sum(1).double() + step_w / 2 * x.abs().sum(1, keepdim=True).double()
    assert (error <= bound + 256 * step_x * step_w).all()
    assert float(error.norm() / want.norm()) < 0.02


def test_rows_and_head_share_one_table_even_when_it_is_smoothed():
    weight, columns = numbers(30, 16), numbers(16, seed=1).abs() + 0.1
    own = Int8Weight(weight, columns)
    ids = torch.tensor([[3, 29], [0, 3]])
    torch.testing.assert_close(own.rows(ids), weight[ids], rtol=0.02, atol=0.05)
    x = numbers(4, 16, seed=2)
    torch.testing.assert_close(own.linear(x / columns), x @ weight.T, rtol=0.05, atol=0.25)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [8, None])
def test_weight_only_multiplies_what_it_hands_out(bits, group_size):
    weight = numbers(30, 16)
    own = GroupedWeight(weight, bits, group_size)
    floats = own.rows(torch.arange(30))
    step = weight.view(30, -1, group_size or 16).abs().amax(-1) / (2 ** (bits - 1) - 1)
    assert ((floats - weight).abs().view(30, -1, group_size or 16) <= step[..., None] / 2 + 1e-6).all()
    x = numbers(2, 3, 16, seed=1)
    torch.testing.assert_close(own.linear(x), x @ floats.T)
    assert own.linear(x.bfloat16()).dtype == torch.bfloat16
    assert own.levels.nbytes == 30 * 16 * bits // 8


def own_modules(model):
    return [module for module in model.modules() if not isinstance(module, GroupedWeight)]


VARIANTS = [
    {},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": False, "attention_bias": True},
    {"qk_norm": True},
]
MAKERS = {
    "int8": quantize_int8,
    "int8 weights": lambda m: quantize_weight_only(m, 8, None),
    "int4": quantize_weight_only,
}


@pytest.mark.parametrize("change", VARIANTS, ids=str)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_quantised_model_computes_nearly_the_same(change, make):
    config = dataclasses.replace(
        TINY, hidden_size=64, intermediate_size=96, head_dim=8, num_attention_heads=8, **change
    )
    model = tiny_model(dtype=torch.float32, config=config)
    before = copy.deepcopy(model.state_dict())
    quantized = make(model)
    want, got = model(IDS), quantized(IDS)
    if make is quantize_int8:
        assert float((got - want).norm() / want.norm()) < 0.15
    else:  # the float model whose weights are what is left of them
        rounded = copy.deepcopy(model)
        for module, twin in zip(rounded.modules(), own_modules(quantized), strict=True):
            if isinstance(module, Linear | Embedding):
                module.weight.data = twin.weight.rows(torch.arange(len(module.weight)))
        torch.testing.assert_close(got, rounded(IDS), rtol=1e-3, atol=1e-3)
    assert not torch.equal(got, want)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    with pytest.raises(ValueError, match="quantised already"):
        make(quantized)


def test_calibration_text_is_used():
    model = tiny_model(dtype=torch.float32)
    one, other = quantize_int8(model), quantize_int8(model, IDS)
    assert not torch.equal(one.model.norm.weight, other.model.norm.weight)
    assert torch.equal(quantize_int8(model)(IDS), one(IDS))


def test_calibration_text_may_be_longer_than_the_context():
    model, context = tiny_model(dtype=torch.float32), TINY.max_position_embeddings
    ids = torch.randint(97, (1, context + 50), generator=torch.Generator().manual_seed(0))
    long, cut = quantize_int8(model, ids), quantize_int8(model, ids[:, :context])
    assert all(torch.equal(a, b) for a, b in zip(long.buffers(), cut.buffers(), strict=True))


def test_a_copy_and_a_state_dict_carry_the_levels():
    quantized = quantize_int8(tiny_model(dtype=torch.float32))
    assert torch.equal(copy.deepcopy(quantized)(IDS), quantized(IDS))
    assert quantized.state_dict()["model.embed_tokens.weight.levels"].dtype == torch.int8


def test_memory_is_counted_once():
    model = tiny_model(dtype=torch.float32)
    n = sum(p.numel() for p in model.parameters())
    assert memory_bytes(model) == 4 * n
    norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
    rows = sum(len(p) for p in model.parameters() if p.dim() == 2)
    columns = model.config.hidden_size
    assert memory_bytes(quantize_int8(model)) == (n - norms) + 4 * (norms + rows + columns)
    layer = torch.nn.Linear(10, 10, bias=False)
    layer.register_buffer("same", layer.weight.data[:5])
    assert memory_bytes(layer) == 400


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(ValueError, match="int8 is made from float32 weights on the CPU"):
        quantize_int8(tiny_model(dtype=dtype))


def test_other_impossible_wishes():
    with pytest.raises(ValueError, match="4 or 8 bits, not 3"):
        quantize_weight_only(tiny_model(), bits=3)
    with pytest.raises(ValueError, match="rows of 48 can't be cut into groups of 32"):
        quantize_weight_only(tiny_model(), bits=4, group_size=32)


WIDER = dataclasses.replace(TINY, hidden_size=64, intermediate_size=96, head_dim=8, num_attention_heads=8)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("channel", [None, 0.0, 1e-6], ids=["sound", "dead", "nearly dead"])
def test_a_channel_that_the_last_norm_switches_off_harms_no_other(channel, tied):
    """The embedding's rows of a tied model are divided by the head's columns, and with them their rounding error."""
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(WIDER, tie_word_embeddings=tied))
    if channel is not None:
        model.model.norm.weight[0] = channel
    quantized = quantize_int8(model)
    want, got = model(IDS), quantized(IDS)
    assert float((got - want).norm() / want.norm()) < 0.12
    rows, table = quantized.model.embed_tokens(IDS), model.model.embed_tokens(IDS)
    assert float((rows - table).norm() / table.norm()) < 0.02


def test_columns_stay_near_their_median():
    seen = ChannelMax()
    seen.value = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    columns = torch.tensor([0.001, 0.1, 2.0, 3.0, 100.0])
    assert int8.tame(columns, seen).tolist() == [2.0, 0.5, 2.0, 3.0, 8.0]
    seen.value = torch.zeros(5)
    assert int8.tame(columns, seen).tolist() == [1.0] * 5


def test_a_long_table_is_quantised_as_a_whole_one(monkeypatch):
    weight, columns = numbers(50, 16), numbers(16, seed=1).abs() + 0.1
    monkeypatch.setattr(int8, "ROWS_AT_ONCE", 8)
    for own, all_at_once in ((Int8Weight(weight), weight), (Int8Weight(weight, columns), weight * columns)):
        scale = all_at_once.abs().amax(1) / highest_weight()
        assert torch.equal(own.scale, scale)
        assert torch.equal(own.levels, (all_at_once / scale[:, None]).round().to(torch.int8))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_named(make, bad):
    model = tiny_model(dtype=torch.float32)
    model.model.layers[1].mlp.up_proj.weight[3, 5] = bad
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds nan or infinity"):
        make(model)


def test_one_weight_of_another_dtype_is_named():
    model = tiny_model(dtype=torch.float32)
    norm = model.model.layers[1].input_layernorm
    norm.weight = torch.nn.Parameter(norm.weight.bfloat16(), requires_grad=False)
    with pytest.raises(ValueError, match=r"layers\.1\.input_layernorm\.weight is torch\.bfloat16 on cpu"):
        quantize_int8(model)


def test_the_new_model_shares_no_weight_with_the_old_one():
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(TINY, qk_norm=True, attention_bias=True))
    quantized = quantize_int8(model)
    before = quantized(IDS)
    for weight in model.parameters():
        weight.zero_()
    assert torch.equal(quantized(IDS), before)


def test_no_rows_no_products():
    assert Int8Weight(numbers(5, 8)).linear(torch.zeros(2, 0, 8)).shape == (2, 0, 5)


@pytest.mark.real
def test_quantising_takes_little_more_memory_than_both_models(model_dir):
    """In a process of its own: 1 is the float32 weights, mapped; the int8 ones are a quarter of that."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs /proc")
    memory = process_memory(model_dir)
    assert 1 < memory["peak"] < 1.45
    assert 0.24 < memory["now"] < 0.4


@pytest.mark.real
def test_the_real_model_reads_nearly_as_well_from_bytes(real_model, tokenizer):
    from shared.model.calibration import calibration_ids

    ids = torch.tensor([tokenizer.encode(__doc__ + "The int8 model is compared with the one it was made from. " * 3)])
    quantized = quantize_int8(real_model, calibration_ids(tokenizer.encode, 256))
    with torch.inference_mode():
        wide, narrow = (torch.nn.functional.cross_entropy(m(ids)[0, :-1], ids[0, 1:]) for m in (real_model, quantized))
    assert abs(float(narrow - wide)) < 0.12
    assert 3.9 < memory_bytes(real_model) / memory_bytes(quantized) < 4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_cuda_only_the_weights_are_quantised(dtype):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = tiny_model(dtype=dtype).to("cuda")
    for quantized in (quantize_int8(model), quantize_weight_only(model, bits=4, group_size=16)):
        want, got = model(IDS.cuda()).float(), quantized(IDS.cuda()).float()
        assert got.device.type == "cuda"
        assert float((got - want).norm() / want.norm()) < 0.5


def test_nearest_rounds_as_torch_does():
    x = torch.cat([numbers(5000) * 60, torch.arange(-200, 200) + 0.5, torch.tensor([0.0, -0.0, 2.0**21 + 0.5])])
    kept = x.clone()
    assert torch.equal(int8.nearest(x), x.round())
    assert torch.equal(x, kept)
