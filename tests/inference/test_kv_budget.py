"""The memory formula against the bytes of real tensors, and the budget against a loop that fills memory by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.inference.kv_budget import as_multi_head, kv_bytes, max_concurrent, weight_bytes
from shared.inference.kv_cache import new_caches
from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from tests.tiny import TINY

LLAMA_2_7B = ModelConfig(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [TINY, as_multi_head(TINY)])
def test_the_formula_counts_the_tensors(dtype, shape):
    caches = new_caches(shape, 9, batch=3, dtype=dtype)
    k, v = (torch.ones(3, shape.num_key_value_heads, 9, shape.head_dim, dtype=dtype) for _ in range(2))
    stored = [tensor for cache in caches for tensor in cache.update(k, v)]
    assert kv_bytes(shape, 9, 3, dtype) == sum(t.numel() * t.element_size() for t in stored)
    assert kv_bytes(shape, 9, 3, dtype) == sum(cache.nbytes for cache in caches)


def test_seven_billion_by_hand():
    assert kv_bytes(LLAMA_2_7B, 2048, 8) == 2 * 32 * 32 * 128 * 2048 * 8 * 2
    assert weight_bytes(LLAMA_2_7B) == 6_738_415_616 * 2  # the published number of parameters


def test_weights_are_those_of_the_model():
    assert weight_bytes(TINY, torch.float32) == sum(p.numel() * 4 for p in Transformer(TINY).parameters())


def test_as_multi_head_changes_the_key_heads_alone():
    assert as_multi_head(TINY).num_key_value_heads == TINY.num_attention_heads
    assert kv_bytes(as_multi_head(TINY), 5) == 3 * kv_bytes(TINY, 5)


@settings(max_examples=100, deadline=None)
@given(
    total=st.integers(0, 10**6),
    model=st.integers(0, 10**6),
    overhead=st.integers(0, 10**5),
    each=st.integers(1, 10**4),
    eighths=st.integers(0, 7),  # binary fractions, so that nothing is rounded
)
def test_one_more_would_not_fit(total, model, overhead, each, eighths):
    n = max_concurrent(total, model, overhead, each, eighths / 8)
    taken = 8 * (model + overhead) + eighths * total
    assert n >= 0
    assert n == 0 or taken + 8 * n * each <= 8 * total
    assert taken + 8 * (n + 1) * each > 8 * total


@pytest.mark.parametrize(
    "bad",
    [
        {"kv_per_request": 0},
        {"kv_per_request": -1},
        {"kv_per_request": math.nan},
        {"kv_per_request": math.inf},
        {"headroom": 1.0},
        {"headroom": -0.1},
        {"headroom": math.nan},
        {"total": -1},
        {"total": math.nan},
        {"total": math.inf},
        {"model": -1},
        {"overhead": -50},
        {"overhead": math.nan},
    ],
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        max_concurrent(**({"total": 10, "model": 1, "overhead": 1, "kv_per_request": 1} | bad))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": -5}, "tokens must be a whole number"),
        ({"tokens": 2.5}, "tokens must be a whole number"),
        ({"tokens": True}, "tokens must be a whole number"),
        ({"sequences": -1}, "sequences must be a whole number"),
        ({"sequences": None}, "sequences must be a whole number"),
        ({"dtype": "float16"}, "dtype must be one of torch's"),
        ({"dtype": 2}, "dtype must be one of torch's"),
    ],
)
def test_bad_sizes_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        kv_bytes(**({"config": TINY, "tokens": 1} | bad))


def test_nothing_takes_nothing():
    assert kv_bytes(TINY, 0) == kv_bytes(TINY, 5, 0) == 0
