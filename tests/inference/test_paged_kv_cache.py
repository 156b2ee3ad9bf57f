"""The pool: what is written into slots is where one looks for it, and a block's size is that of real tensors."""

import time

import pytest
import torch

from shared.inference.paged_kv_cache import KVPool, bytes_per_block, slot_mapping
from tests.tiny import TINY


def test_bytes_per_block_are_those_of_the_tensors():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        pool = KVPool(TINY, num_blocks=5, block_size=4, dtype=dtype)
        assert pool.nbytes == 5 * bytes_per_block(TINY, 4, dtype)
        assert (pool.num_layers, pool.num_blocks, pool.block_size) == (TINY.num_hidden_layers, 5, 4)


def test_what_is_stored_lies_in_its_slot():
    pool = KVPool(TINY, num_blocks=6, block_size=4, dtype=torch.float64)
    slots = torch.tensor(slot_mapping([3, 5, 0], start=2, n=7, block_size=4))
    k, v = torch.randn(2, 2, 7, 8, dtype=torch.float64)
    pool.store(1, slots // 4, slots % 4, k, v)
    table = [3, 5, 0]
    for i, position in enumerate(range(2, 9)):
        block, offset = table[position // 4], position % 4
        for head in range(2):
            assert torch.equal(pool.keys[1, block, head, offset], k[head, i])
            assert torch.equal(pool.values[1, block, head, offset], v[head, i])
    assert pool.keys[1].abs().sum() == pytest.approx(float(k.abs().sum()))  # nothing else was written
    assert not pool.keys[0].any()
    assert not pool.keys[2].any()


def test_other_dtypes_are_converted():
    pool = KVPool(TINY, num_blocks=1, block_size=4, dtype=torch.bfloat16)
    k = torch.randn(2, 1, 8)
    pool.store(0, torch.tensor([0]), torch.tensor([3]), k, k)
    assert torch.equal(pool.keys[0, 0, :, 3], k[:, 0].bfloat16())


def test_copies_are_of_all_layers():
    pool = KVPool(TINY, num_blocks=5, block_size=2, dtype=torch.float64)
    pool.keys.normal_()
    pool.values.normal_()
    keys, values = pool.keys.clone(), pool.values.clone()
    pool.copy_blocks([(0, 3), (1, 4)])
    for source, target in ((0, 3), (1, 4)):
        assert torch.equal(pool.keys[:, target], keys[:, source])
        assert torch.equal(pool.values[:, target], values[:, source])
    assert torch.equal(pool.keys[:, :3], keys[:, :3])
    pool.copy_blocks([])


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        KVPool(TINY, num_blocks=0, block_size=4)
    with pytest.raises(MemoryError, match="take 1536000000.0 GB, more than there is on cpu"):
        KVPool(TINY, num_blocks=10**15, block_size=4, dtype=torch.float32)


def test_blocks_are_cleared_in_all_layers():
    pool = KVPool(TINY, num_blocks=4, block_size=2)
    for kv in (pool.keys, pool.values):
        kv.fill_(torch.nan)
    pool.clear([2, 0])
    pool.clear([])
    for kv in (pool.keys, pool.values):
        assert not kv[:, [0, 2]].any()
        assert bool(kv[:, [1, 3]].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_pool_begins_as_zeros_and_takes_no_memory_until_it_is_written(dtype):
    pool = KVPool(TINY, num_blocks=3, block_size=4, dtype=dtype)
    for numbers in (pool.keys, pool.values):
        assert not numbers.any()
        assert numbers.is_contiguous()
        assert numbers.data_ptr() % 64 == 0
    start = time.perf_counter()
    KVPool(TINY, num_blocks=2**31 // bytes_per_block(TINY, 4), block_size=4)  # 2 GiB
    assert time.perf_counter() - start < 0.2
