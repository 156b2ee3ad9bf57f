"""How memory and time of an int8 model are measured."""

import pytest
import torch

from shared.evaluation.bench_int8 import StandingCache, decode_seconds, process_memory
from shared.model.int8 import quantize_int8
from tests.tiny import tiny_model


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_process_that_cannot_quantise_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="failed"):
        process_memory(tmp_path)


def test_the_standing_cache_forgets():
    k, v = numbers(1, 2, 5, 8), numbers(1, 2, 5, 8, seed=1)
    cache = StandingCache(k, v)
    for seed in (2, 3):
        new = numbers(1, 2, 1, 8, seed=seed)
        keys, values = cache.update(new, -new)
        assert cache.length == 5
        assert torch.equal(keys, torch.cat((k, new), dim=2))
        assert torch.equal(values, torch.cat((v, -new), dim=2))


def test_timing_a_decode_step():
    model = tiny_model(dtype=torch.float32)
    seconds = decode_seconds({"fp32": model, "int8": quantize_int8(model)}, rounds=2, batch=2)
    assert set(seconds) == {"fp32", "int8"}
    assert all(0 < s < 10 for s in seconds.values())
