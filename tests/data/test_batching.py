"""What surrounds the exercises in batching and in the cache: restoring, counting, and refusing bad input."""

import hashlib

import pytest
import torch

from shared.data.batching import length_buckets, pad, padded_size, restore
from shared.data.token_cache import TokenCache, sha256


def test_restore_is_the_inverse_of_buckets():
    lengths = [9, 2, 8, 1, 3]
    batches = length_buckets(lengths, 2)
    assert restore(batches, [[lengths[i] for i in batch] for batch in batches]) == lengths
    assert restore([[1], [0]], [torch.tensor([5]), torch.tensor([7])]) == [7, 5]
    assert restore([], []) == []
    with pytest.raises(ValueError, match="2 results for 3 sequences"):
        restore([[0, 1], [2]], [["a", "b"], []])


def test_padded_size():
    assert padded_size([9, 2, 8, 1, 3], [[0, 1], [2, 3], [4]]) == 2 * 9 + 2 * 8 + 3
    assert padded_size([], []) == 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        length_buckets([1], 0)
    with pytest.raises(ValueError, match="the batch is empty"):
        pad([], 0)
    with pytest.raises(ValueError, match='side must be "right" or "left", not \'middle\''):
        pad([[1]], 0, side="middle")
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        TokenCache(list, 0)


def test_digests_as_keys():
    assert sha256("中") == hashlib.sha256("中".encode()).digest()
    cache = TokenCache(lambda text: [len(text)], key=sha256)
    assert [cache.encode(text) for text in ("a", "bb", "a")] == [[1], [2], [1]]
    assert (cache.hits, cache.misses, len(cache)) == (1, 2, 2)
