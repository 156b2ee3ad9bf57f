"""Quantisation and calibration against brute force in float64, and by properties."""

import dataclasses
import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shared.model import calibration, int8, quantization, tensor_file
from shared.model.calibration import ChannelMax, MinMax, Percentile, calibration_ids, scales_for, smooth, watch
from shared.model.quantization import (
    affine_range,
    dequantize_affine,
    fake_quantize,
    in_groups,
    pack_int4,
    quantize_affine,
    quantize_symmetric,
    unpack_int4,
)
from shared.training import qat
from tests.tiny import TINY, tiny_model

FINITE = st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)
MATRICES = arrays(np.float32, st.tuples(st.integers(1, 5), st.sampled_from([2, 4, 8])), elements=FINITE)


@pytest.mark.parametrize("module", [calibration, int8, quantization, tensor_file, qat])
def test_the_examples_in_the_docstrings(module):
    assert doctest.testmod(module).failed == 0


@given(x=MATRICES, bits=st.integers(2, 8), per=st.sampled_from(["tensor", "row", "group"]))
@settings(max_examples=150, deadline=None)
def test_half_a_step_and_zero_exact(x, bits, per):
    rows = x.astype(np.float64)
    groups = {"tensor": rows.reshape(1, -1), "row": rows, "group": rows.reshape(-1, 2)}[per]
    step = np.abs(groups).max(axis=1) / (2 ** (bits - 1) - 1)
    bound = np.repeat(step, groups.shape[1]).reshape(x.shape) / 2
    got = fake_quantize(torch.from_numpy(x), bits, per, group_size=2).double().numpy()
    assert (np.abs(got - rows) <= bound * (1 + 1e-4) + 1e-12).all()
    assert (got[rows == 0] == 0).all()


@given(x=MATRICES, bits=st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_affine_round_trip(x, bits):
    low, high = float(x.min()), float(x.max())
    scale, zero = affine_range(low, high, bits)
    back = dequantize_affine(quantize_affine(torch.from_numpy(x), scale, zero, bits), scale, zero).double().numpy()
    # half a step for rounding x, and at the ends half a step more for the zero point, which was rounded, too
    assert (np.abs(back - x) <= scale * 1.001 + 1e-9).all()
    assert (back[x == 0] == 0).all()


def test_beyond_the_range_it_saturates_and_never_wraps():
    levels = quantize_affine(torch.tensor([-1e9, -1.0, 0.0, 2.0, 1e9]), *affine_range(-1.0, 2.0))
    assert levels.tolist() == [0, 0, 85, 255, 255]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_isnt_finite_is_refused(bad):
    x = torch.tensor([[1.0, bad]])
    with pytest.raises(ValueError, match="nan or infinity"):
        quantize_symmetric(x)
    with pytest.raises(ValueError, match="nan or infinity"):
        quantize_affine(x, 1.0, 0)
    with pytest.raises(ValueError, match="range must go from low to high"):
        affine_range(1.0, float("nan"))


def test_impossible_wishes():
    w = torch.ones(2, 10)
    with pytest.raises(ValueError, match="bits must be a whole number from 2 to 8, not 1"):
        fake_quantize(w, 1)
    with pytest.raises(ValueError, match='per must be "tensor", "row" or "group"'):
        fake_quantize(w, 8, per="column")
    with pytest.raises(ValueError, match="rows of 10 can't be cut into groups of 4"):
        in_groups(w, 4)
    with pytest.raises(ValueError, match="an even number of levels"):
        pack_int4(torch.zeros(3, dtype=torch.int8))
    with pytest.raises(ValueError, match="each from -8 to 7"):
        pack_int4(torch.tensor([8, 0], dtype=torch.int8))


def test_int4_against_pythons_own_arithmetic():
    levels = torch.randint(-8, 8, (4, 6), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    want = [[(row[i] % 16) + 16 * (row[i + 1] % 16) for i in (0, 2, 4)] for row in levels.tolist()]
    assert pack_int4(levels).tolist() == want
    assert torch.equal(unpack_int4(pack_int4(levels)), levels)


def test_observers():
    batches = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0))
    for observer in (low_high := MinMax(), channels := ChannelMax(), percentile := Percentile(90)):
        for batch in batches:
            observer.update(batch)
    flat = batches.flatten(0, 1)
    assert (low_high.low, low_high.high) == (float(flat.min()), float(flat.max()))
    torch.testing.assert_close(channels.value, flat.abs().max(dim=0).values)
    want = np.mean([np.sort(np.abs(b.numpy()).ravel())[179] for b in batches])
    assert percentile.value == pytest.approx(want)


def test_watching_sees_what_the_products_see_and_changes_nothing():
    model = tiny_model(dtype=torch.float32)
    ids = torch.tensor([[5, 17, 3, 88], [41, 2, 2, 60]])
    before = model(ids)
    seen = watch(model, ids, ChannelMax)
    assert torch.equal(model(ids), before)
    assert len(seen) == 3 * 7 + 1
    embedded = model.model.embed_tokens(ids).double()
    normed = embedded * torch.rsqrt(embedded.pow(2).mean(-1, keepdim=True) + 1e-5)
    want = (normed * model.model.layers[0].input_layernorm.weight.double()).abs().amax(dim=(0, 1))
    torch.testing.assert_close(seen["model.layers.0.self_attn.k_proj"].value.double(), want)


VARIANTS = [
    {},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": False, "attention_bias": True},
    {"qk_norm": True},
    {"num_key_value_heads": 6},
]


@pytest.mark.parametrize("change", VARIANTS, ids=str)
def test_smoothing_changes_the_weights_and_not_the_model(change):
    model = tiny_model(config=dataclasses.replace(TINY, **change))  # float64
    ids = torch.tensor([[5, 17, 3, 88, 41]])
    seen = watch(model, ids, ChannelMax)
    smoothed = smooth(model, seen)
    torch.testing.assert_close(smoothed(ids), model(ids), rtol=1e-9, atol=1e-9)
    name = "model.layers.1.mlp.down_proj"
    after = watch(smoothed, ids, ChannelMax)[name].value
    columns = smoothed.get_parameter(f"{name}.weight").abs().amax(dim=0)
    torch.testing.assert_close(after, columns)  # as hard as each other
    assert torch.equal(smoothed.model.norm.weight, model.model.norm.weight) == model.config.tie_word_embeddings


def test_without_observations_there_is_nothing_to_smooth_by():
    with pytest.raises(ValueError, match="nothing was observed"):
        scales_for(ChannelMax(), torch.ones(2, 2))


def test_calibration_text_has_any_length_asked_for():
    ids = calibration_ids(lambda text: list(text.encode()), 100_000)
    assert ids.shape == (1, 100_000)
    assert bytes(ids[0, :7].tolist()) == b"Command"


def test_qat_starts_from_the_trained_weights_and_ends_on_few_levels():
    model = qat.classifier((4, 6, 3))
    aware = qat.with_rounding(model, bits=2)
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    torch.testing.assert_close(aware(x), qat.rounded(model, bits=2)(x))
    losses = qat.train_classifier(aware, x, y, epochs=20, lr=0.02)
    assert losses[-1] < losses[0]
    w = aware[0].weight.detach()
    assert not torch.equal(w, model[0].weight)
    assert all(len(row.unique()) <= 3 for row in fake_quantize(w, 2))
