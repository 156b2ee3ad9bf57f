"""Exercises 9.10 and 9.11: judged by hand, by published shapes, and by the bytes of tensors that really are made."""

import pytest
import torch

from chapters.ch09_kv_cache import kv_budget
from chapters.judge import crash_means, exercise, expect_equal
from shared.inference.kv_cache import new_caches
from shared.model.config import ModelConfig
from tests.ch09_kv_cache.words import expect_kind


def config(**changes) -> ModelConfig:
    """Every size another number, so that none can stand in for another; the heads' size isn't hidden / heads."""
    sizes = {
        "vocab_size": 101,
        "hidden_size": 60,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
    }
    return ModelConfig(**(sizes | changes))


ONE_TOKEN = 192
COSTS = {
    96: "only keys, or only values: both are stored",
    576: "a key and a value for every query head: with grouped queries only the key heads have them",
    64: "the layers are missing: each has keys and values of its own",
    24: "head_dim is missing: a head has that many numbers",
    384: "4 bytes a number, where float16 has 2: dtype.itemsize",
    1536: "these are bits: itemsize counts bytes",
    720: "hidden_size was taken for all the heads' width: it is the key heads' times head_dim that counts",
    240: "hidden_size / heads was taken for head_dim: they differ in some models, and the config says which it is",
}


def cost(*args, **settings) -> int:
    with crash_means("numbers a token leaves behind, times bytes a number, times tokens, times sequences"):
        got = kv_budget.kv_bytes(*args, **settings)
    expect_kind(got, int, "a whole number of bytes, an int")
    return got


# 9.10 kv_bytes


@exercise("9.10")
def test_one_token():
    got = cost(config(), 1)
    because = "3 layers, 2 key heads, 8 numbers each, a key and a value: 96 numbers of 2 bytes"
    expect_equal(got, ONE_TOKEN, because=f"likely: {COSTS[got]}. {because}" if got in COSTS else because)


@exercise("9.10")
def test_tokens_and_sequences():
    expect_equal(cost(config(), 10), 1920, because="10 tokens take 10 times as much as one: they are all kept")
    expect_equal(
        cost(config(), 10, 4), 7680, because="4 sequences of 10 tokens have 40 between them: nothing is shared"
    )


@exercise("9.10")
@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 2), (torch.bfloat16, 1), (torch.float64, 4)])
def test_dtypes(dtype, factor):
    got = cost(config(), 5, 1, dtype)
    expect_equal(got, factor * 960, because=f"{dtype} has {dtype.itemsize} bytes a number: dtype.itemsize")


@exercise("9.10")
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 6}, {"num_key_value_heads": 1}, {"hidden_size": 48}])
def test_equal_to_real_tensors(changes):
    caches = new_caches(config(**changes), 7, batch=3)
    want = sum(t.nbytes for cache in caches for t in (cache._keys, cache._values))
    got = cost(config(**changes), 7, 3, torch.float32)
    expect_equal(
        got, want, because=f"the tensors that new_caches makes for {changes or 'this config'} have {want} bytes"
    )


@exercise("9.10")
def test_seven_billion():
    llama = config(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, head_dim=128, hidden_size=4096)
    grouped = config(
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128, hidden_size=4096
    )
    because = "Llama-2-7B, 8 sequences of 2048 tokens in float16: 2 * 32 * 32 * 128 * 2 * 2048 * 8 bytes"
    expect_equal(cost(llama, 2048, 8), 8_589_934_592, because=because)
    because = "the same with 8 key heads, as Llama-3-8B has: a quarter. Count num_key_value_heads"
    expect_equal(cost(grouped, 2048, 8), 2_147_483_648, because=because)


# 9.11 max_concurrent


def fit(*args, **settings) -> int:
    with crash_means("what is left of total, divided by kv_per_request"):
        got = kv_budget.max_concurrent(*args, **settings)
    expect_kind(got, int, "a whole number of requests, an int")
    return got


FITS = {
    25: "rounded up: a request that doesn't fit whole doesn't fit",
    30: "the overhead was left out",
    32: "head-room was taken of what the weights leave, and not of total",
    33: "head-room was taken of what was left, and not of total",
    44: "head-room was left out, or taken for a percentage: it is a share of total",
    54: "the weights were left out",
    64: "head-room was added",
    60: "only the head-room was subtracted",
}


@exercise("9.11")
def test_budget_by_hand():
    got = fit(800, 300, 55, 10, headroom=0.25)
    because = "800 - 200 (a quarter of 800) - 300 - 55 = 245 are left; of 10 each, 24 fit"
    expect_equal(got, 24, because=f"likely: {FITS[got]}. {because}" if got in FITS else because)


@exercise("9.11")
def test_each_part_counts():
    expect_equal(fit(1000, 0, 0, 10, headroom=0), 100, because="with nothing else in memory, 1000 / 10 = 100 fit")
    expect_equal(fit(1000, 300, 0, 10, headroom=0), 70, because="the weights take 300 of 1000")
    expect_equal(fit(1000, 0, 200, 10, headroom=0), 80, because="the overhead takes 200 of 1000")
    expect_equal(
        fit(1000, 0, 0, 10, headroom=0.5),
        50,
        because="half of 1000 is left alone: headroom is a share, not a percentage",
    )
    expect_equal(
        fit(1000, 600, 0, 10, headroom=0.25),
        15,
        because="a quarter of *total* is left alone, 250 of 1000, and not a quarter of what the weights leave: 150 are "
        "left",
    )
    expect_equal(fit(1005, 0, 0, 10), 80, because="head-room is 0.2 when nothing else is said: 804 of 1005 are left")
    for total, headroom, left in ((1600, 1 / 16, 1500), (3200, 1 / 32, 3100)):
        got = fit(total, 0, 0, 1, headroom=headroom)
        expect_equal(got, left, because=f"{headroom} of {total} is left alone, as it is: not in whole per cent")


@exercise("9.11")
def test_whole_requests():
    expect_equal(
        fit(39, 0, 0, 10, headroom=0), 3, because="39 / 10 is 3 requests and some memory: round down, never up"
    )
    expect_equal(fit(9, 0, 0, 10, headroom=0), 0, because="not even one fits into 9: none")
    because = "the weights alone are more than there is: 0 requests, and not a negative number of them"
    expect_equal(fit(100, 150, 0, 10), 0, because=because)


@exercise("9.11")
def test_large_numbers():
    gib = 2**30
    got = fit(80 * gib, 13_476_831_232, 2 * gib, 2048 * 524_288, headroom=0.125)
    expect_equal(got, 55, because="an 80 GiB GPU, Llama-2-7B, 2 GiB besides, an eighth left alone, 1 GiB a request")
