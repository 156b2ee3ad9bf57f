"""The cache against plain concatenation, alone and inside a model of several layers."""

import pytest
import torch

from shared.inference.kv_cache import CacheFull, KVCache, new_caches
from tests.tiny import TINY, tiny_model


def step(n: int, batch: int = 2, heads: int = 3, dim: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, heads, n, dim, generator=generator) for _ in range(2))


def test_update_returns_everything_so_far():
    cache, keys, values = KVCache(2, 3, 4, capacity=10), [], []
    for seed, n in enumerate((3, 1, 1, 4, 1)):
        k, v = step(n, seed=seed)
        keys.append(k)
        values.append(v)
        got_k, got_v = cache.update(k, v)
        assert torch.equal(got_k, torch.cat(keys, dim=2))
        assert torch.equal(got_v, torch.cat(values, dim=2))
    assert cache.length == cache.capacity == 10


def test_nothing_is_copied_or_moved():
    cache = KVCache(1, 1, 4, capacity=8)
    first, _ = cache.update(*step(2, 1, 1))
    then, _ = cache.update(*step(1, 1, 1))
    assert first.data_ptr() == then.data_ptr()


def test_a_full_cache_says_so_and_keeps_what_it_has():
    cache = KVCache(2, 3, 4, capacity=4)
    k, v = step(3)
    cache.update(k, v)
    with pytest.raises(CacheFull, match="2 more tokens after 3 .* cache of 4"):
        cache.update(*step(2, seed=1))
    assert cache.length == 3
    last = step(1, seed=2)
    assert torch.equal(cache.update(*last)[0], torch.cat((k, last[0]), dim=2))


def test_rewind_forgets_the_last_tokens():
    cache = KVCache(2, 3, 4, capacity=6)
    k, v = step(5)
    cache.update(k, v)
    cache.rewind(2)
    assert cache.length == 3
    new = step(3, seed=1)
    got_k, got_v = cache.update(*new)
    assert torch.equal(got_k, torch.cat((k[:, :, :3], new[0]), dim=2))
    assert torch.equal(got_v, torch.cat((v[:, :, :3], new[1]), dim=2))
    cache.rewind(0)
    cache.rewind(6)
    assert cache.length == 0
    cache.update(*step(3))
    for n in (4, -1, 1.5, 1.0, True, None):
        with pytest.raises(ValueError, match="can't forget"):
            cache.rewind(n)
    assert cache.length == 3


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ((1, 3, 1, 4), (1, 3, 1, 4)),
        ((2, 3, 1, 5), (2, 3, 1, 5)),
        ((2, 5, 1, 4), (2, 5, 1, 4)),
        ((2, 3, 2, 4), (2, 3, 1, 4)),
        ((2, 3, 4), (2, 3, 4)),
        ((2, 3, 1, 4), (3, 4)),
    ],
)
def test_other_shapes_are_refused(keys, values):
    """A batch of one would otherwise spread over both sequences without a word."""
    cache = KVCache(2, 3, 4, capacity=4)
    with pytest.raises(ValueError, match="keys"):
        cache.update(torch.zeros(keys), torch.zeros(values))
    assert cache.length == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_other_dtypes_and_devices_are_refused(dtype):
    """A large float64 would become infinity without a word."""
    cache, right = KVCache(1, 1, 2, capacity=4), torch.zeros(1, 1, 1, 2)
    for k, v in ((right.to(dtype), right), (right, right.to(dtype)), (right.to("meta"), right.to("meta"))):
        with pytest.raises(ValueError, match="weights' dtype and device: this one was made for torch.float32 on cpu"):
            cache.update(k, v)
    assert cache.length == 0


@pytest.mark.parametrize("size", [-1, 2.5, True, None])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_sizes_that_make_no_sense_are_refused(size, place):
    sizes = [1, 1, 2, 4]
    sizes[place] = size
    with pytest.raises(ValueError, match="capacity and head_dim must be whole numbers"):
        KVCache(*sizes)


def test_a_cache_keeps_no_graph():
    """Weights that want gradients would make each step hang on to those of all before."""
    cache, k = KVCache(1, 1, 2, capacity=4), torch.ones(1, 1, 1, 2, requires_grad=True)
    for _ in range(3):
        keys, values = cache.update(2 * k, 3 * k)
    assert not keys.requires_grad
    assert not values.requires_grad
    assert keys.tolist() == [[[[2, 2]] * 3]]


def test_new_caches_fit_the_model():
    caches = new_caches(TINY, 7, batch=2, dtype=torch.float64)
    assert len(caches) == TINY.num_hidden_layers
    shape = (2, TINY.num_key_value_heads, 7, TINY.head_dim)
    got, _ = caches[0].update(torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64))
    assert got.shape == shape
    assert got.dtype == torch.float64
    assert [cache.length for cache in caches[1:]] == [0, 0]  # one each, not one shared


@torch.inference_mode()
def test_a_model_with_caches_computes_what_it_does_without():
    model = tiny_model()
    ids = torch.randint(TINY.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
    whole = model(ids)
    caches = new_caches(TINY, 20, batch=2, dtype=torch.float64)
    pieces = torch.cat([model(piece, caches) for piece in ids.split([7, 1, 1, 5, 1, 4, 1], dim=1)], dim=1)
    torch.testing.assert_close(pieces, whole)


@torch.inference_mode()
def test_a_rewound_model_goes_on_as_if_nothing_had_been():
    model = tiny_model()
    ids = torch.randint(TINY.vocab_size, (1, 12), generator=torch.Generator().manual_seed(2))
    caches = new_caches(TINY, 16, dtype=torch.float64)
    model(ids, caches)
    model(torch.tensor([[1, 2, 3]]), caches)
    for cache in caches:
        cache.rewind(5)
    again = model(ids[:, 10:], caches)
    torch.testing.assert_close(again, model(ids)[:, 10:])


@torch.inference_mode()
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 2])
def test_caches_out_of_step_are_refused(layer, n):
    """One layer rewound, or forgotten when the others were: the answer would be wrong, without an error."""
    model, caches = tiny_model(), new_caches(TINY, 16, dtype=torch.float64)
    model(torch.tensor([[1, 2, 3, 4]]), caches)
    caches[layer].rewind(2)
    with pytest.raises(ValueError, match="out of step: they hold 2 to 4 tokens"):
        model(torch.tensor([[5] * n]), caches)
    assert sorted(cache.length for cache in caches) == [2, 4, 4]  # nothing was stored
    for cache in caches:
        cache.rewind(cache.length - 2)
    torch.testing.assert_close(model(torch.tensor([[3]]), caches), model(torch.tensor([[1, 2, 3]]))[:, -1:])
