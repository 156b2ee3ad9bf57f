"""Steps for attention backends, and what they must give: torch's SDPA over keys and values in one piece."""

import random
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from shared.inference.attention import Chunk, make_backend
from shared.inference.paged_kv_cache import KVPool
from tests.tiny import TINY

HEADS, KV_HEADS, DIM = TINY.num_attention_heads, TINY.num_key_value_heads, TINY.head_dim


def backend(name: str, block_size: int, dtype=torch.float64):
    """The backend; `fused` with its formula as it stands, for compiling it takes longer than all these tests."""
    if name != "fused":
        return make_backend(name, TINY, block_size, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **settings: function)
        return make_backend(name, TINY, block_size, dtype)


def random_chunks(seed: int, block_size: int, num_blocks: int) -> list[Chunk]:
    """Decodes and chunks together, with lengths at blocks' edges, and beginnings that several share."""
    rng = random.Random(seed)
    free = rng.sample(range(num_blocks), num_blocks)
    chunks = []
    shared = [free.pop() for _ in range(2)]
    for _ in range(rng.randint(1, 8)):
        n = rng.choice([1, 1, 1, 2, block_size, block_size + 1, 7])
        start = rng.choice([0, 1, block_size - 1, block_size, 2 * block_size, rng.randint(0, 3 * block_size)])
        table = list(shared) if start >= 2 * block_size and rng.random() < 0.5 else []
        while len(table) * block_size < start + n + rng.choice([0, 0, block_size]):  # perhaps one more than is needed
            table.append(free.pop())
        chunks.append(Chunk(start, n, table))
    return chunks


def want(pool: KVPool, layer: int, chunks: Sequence[Chunk], q: torch.Tensor, scale: float) -> torch.Tensor:
    """torch's SDPA, a sequence at a time, over keys and values that are put together token by token."""
    out, row = torch.zeros_like(q), 0
    for chunk in chunks:
        size = pool.block_size
        k, v = (
            torch.stack([kv[layer, chunk.block_table[p // size], :, p % size] for p in range(chunk.start + chunk.n)], 1)
            for kv in (pool.keys, pool.values)
        )
        mask = torch.ones(chunk.n, chunk.start + chunk.n, dtype=torch.bool).tril(chunk.start)
        rows = slice(row, row + chunk.n)
        repeated = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
        out[0, :, rows] = F.scaled_dot_product_attention(q[0, :, rows], *repeated, attn_mask=mask, scale=scale)
        row += chunk.n
    return out
