"""Exercises 9.7 and 9.8: judged by concatenation, and by whose memory it is."""

import pytest
import torch
from torch import Tensor

from chapters.ch09_kv_cache import kv_cache
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal, expect_parts, expect_raises

SHAPES = "k and v are [batch, n_kv_heads, n, head_dim], and so are the cache's tensors with the capacity for n"


def step(n: int, seed: int = 0, batch: int = 2, heads: int = 3, dim: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, heads, n, dim, generator=generator) for _ in range(2))


def cache_of(capacity: int = 8, batch: int = 2, heads: int = 3, dim: int = 4) -> kv_cache.KVCache:
    """A cache whose memory holds a number that nobody stores: what was never written shows."""
    cache = kv_cache.KVCache(batch, heads, dim, capacity)
    cache._keys.fill_(777.0)
    cache._values.fill_(888.0)
    return cache


def update(cache, k, v, because: str = SHAPES) -> tuple[Tensor, Tensor]:
    with crash_means(because):
        got = cache.update(k, v)
    expect_parts(got, ("keys", "values"), because="update returns the keys and the values of all tokens so far")
    return got


# 9.7 update


@exercise("9.7")
def test_the_first_tokens():
    cache = cache_of()
    k, v = step(3)
    got_k, got_v = update(cache, k, v)
    expect(
        got_k.shape[2] != 8,
        because="the whole capacity came back, with what was never written: only the first `length` tokens",
    )
    expect_equal(list(got_k.shape), [2, 3, 3, 4], because=f"three tokens are stored, three come back. {SHAPES}")
    expect(not torch.equal(got_k, v), because="keys and values are swapped: (keys, values)")
    expect_close(got_k, k, because="the keys that come back are not those that were stored")
    expect_close(got_v, v, because="the values that come back are not those that were stored")
    expect_equal(cache.length, 3, because="three tokens were stored: the cursor, `length`, moves on by three")


@exercise("9.7")
def test_everything_so_far():
    cache, keys, values = cache_of(12), [], []
    for seed, n in enumerate((3, 1, 1, 4, 1)):
        k, v = step(n, seed)
        keys.append(k)
        values.append(v)
        stored = sum(part.shape[2] for part in keys)
        because = (
            f"after {[part.shape[2] for part in keys]} tokens there are {stored}: the new ones stand behind the old"
        )
        got_k, got_v = update(cache, k, v, because)
        expect_equal(cache.length, stored, because=f"{because}, and `length` counts all of them")
        expect(
            got_k.shape[2] == stored,
            because=f"{got_k.shape[2]} tokens came back of {stored}: update returns everything so far, the new with "
            "the old",
        )
        expect_close(got_k, torch.cat(keys, dim=2), because=f"the keys are wrong: {because}")
        expect_close(got_v, torch.cat(values, dim=2), because=f"the values are wrong: {because}")


@exercise("9.7")
def test_nothing_is_copied():
    cache = cache_of()
    before = cache._keys.data_ptr(), cache._values.data_ptr()
    update(cache, *step(2))
    got_k, got_v = update(cache, *step(1, 1))
    expect_equal(
        (got_k.data_ptr(), got_v.data_ptr()),
        before,
        because="what comes back is the cache's own memory, a view of it: no torch.cat, no clone. Copying everything "
        "for each new token costs more the longer the text is",
    )
    expect_equal(list(cache._keys.shape), [2, 3, 8, 4], because="the memory stays as it was set aside: capacity for 8")


@exercise("9.7")
def test_what_was_handed_in_is_copied():
    cache = cache_of()
    k, v = step(2)
    kept = k.clone()
    update(cache, k, v)
    k.zero_()
    got_k, _ = update(cache, *step(1, 1))
    expect_close(got_k[:, :, :2], kept, because="the cache holds its own copy: the model's tensors are used again")


@exercise("9.7")
def test_full():
    cache = cache_of(4)
    k, v = step(3)
    update(cache, k, v)
    because = "2 more tokens after 3 don't fit into 4: CacheFull, and not an error of torch's, or silence"
    with expect_raises(kv_cache.CacheFull, because=because):
        cache.update(*step(2, 1))
    expect_equal(
        cache.length, 3, because="a refused update stores nothing, and `length` stays: check before anything else"
    )
    because = "the fourth token fits into a cache of 4"
    last = step(1, 2)
    got_k, _ = update(cache, *last, because)
    expect_close(got_k, torch.cat((k, last[0]), dim=2), because=f"a refused update left something behind; {because}")
    with expect_raises(kv_cache.CacheFull, because="a full cache has no room for one more"):
        cache.update(*step(1, 3))


@exercise("9.7")
@pytest.mark.parametrize(
    ("keys", "values", "what"),
    [
        ((1, 3, 1, 4), (1, 3, 1, 4), "a batch of one for a cache of two: assignment would spread it over both"),
        ((2, 1, 1, 4), (2, 1, 1, 4), "one head for a cache of three: assignment would spread it over all"),
        ((2, 3, 1, 1), (2, 3, 1, 1), "heads of one number for a cache of four: assignment would spread it"),
        ((2, 3, 2, 4), (2, 3, 1, 4), "keys of two tokens and values of one"),
        ((2, 5, 1, 4), (2, 5, 1, 4), "five heads for a cache of three"),
        ((2, 3, 1, 5), (2, 3, 1, 5), "heads of five numbers for a cache of four"),
        ((3, 3, 1, 4), (3, 3, 1, 4), "a batch of three for a cache of two"),
        ((3, 2, 1, 4), (3, 2, 1, 4), "batch and heads the other way round, as many numbers as a token has"),
    ],
)
def test_other_shapes(keys, values, what):
    cache = cache_of()
    with expect_raises(ValueError, because=f"{what}. ValueError for shapes that aren't the cache's"):
        cache.update(torch.zeros(keys), torch.zeros(values))
    expect_equal(cache.length, 0, because="a refused update stores nothing")


# 9.8 rewind


@exercise("9.8")
def test_rewind_and_overwrite():
    cache = cache_of(6)
    k, v = step(5)
    cache.update(k, v)
    with crash_means("rewind(2) of 5 tokens is allowed"):
        cache.rewind(2)
    expect_equal(
        cache.length, 3, because="5 tokens less the last 2 are 3: n is how many to forget, not how many to keep"
    )
    new = step(3, 1)
    because = "after the rewind there is room for three more: the memory stays, only the cursor goes back"
    got_k, got_v = update(cache, *new, because)
    expect_close(
        got_k, torch.cat((k[:, :, :3], new[0]), dim=2), because="the first three stay, and new ones come behind"
    )
    expect_close(got_v, torch.cat((v[:, :, :3], new[1]), dim=2), because="the values follow the keys")


@exercise("9.8")
def test_rewind_to_the_ends():
    cache = cache_of()
    cache.update(*step(5))
    with crash_means("rewind(0) is allowed, and forgets nothing"):
        cache.rewind(0)
    expect_equal(cache.length, 5, because="rewind(0) forgets nothing")
    with crash_means("all 5 of 5 tokens may be forgotten: the limit is more than `length`"):
        cache.rewind(5)
    expect_equal(cache.length, 0, because="rewind(5) of 5 tokens leaves an empty cache")
    with expect_raises(ValueError, because="an empty cache has nothing to forget: ValueError"):
        cache.rewind(1)


@exercise("9.8")
def test_rewind_refuses():
    for n, what in (
        (6, "6 of 5 tokens can't be forgotten"),
        (-1, "a negative n would bring back what was never stored"),
    ):
        cache = cache_of()
        cache.update(*step(5))
        with expect_raises(ValueError, because=f"{what}: ValueError. Silence would hide a mistake of the caller's"):
            cache.rewind(n)
        expect_equal(cache.length, 5, because="a refused rewind forgets nothing: check before the cursor moves")


@exercise("9.8")
def test_rewind_copies_nothing():
    cache = cache_of()
    k, v = step(5)
    cache.update(k, v)
    before = [(t.data_ptr(), t.shape, t.clone()) for t in (cache._keys, cache._values)]
    cache.rewind(2)
    for name, tensor, (at, shape, whole) in zip(("keys", "values"), (cache._keys, cache._values), before, strict=True):
        expect(
            (tensor.data_ptr(), tensor.shape) == (at, shape),
            because=f"the memory of the {name} is neither replaced nor cut: only the cursor moves",
        )
        expect(
            torch.equal(tensor, whole),
            because=f"{name} were overwritten, with zeros perhaps: that is work for nothing, the next update "
            "overwrites the forgotten tokens anyway, and nobody can see them before",
        )
