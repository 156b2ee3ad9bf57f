"""The oracle among the backends: slow, in float64, one query at a time. Every other backend is held against it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.inference.attention import Chunk, StepAttention
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig


class ReferenceBackend:
    """Computes every query by itself, in float64, whatever the pool's dtype; see AttentionBackend."""

    name = "reference"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """Runs everywhere, and needs nothing prepared."""

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "ReferenceStep":
        """A ReferenceStep over these chunks."""
        return ReferenceStep(pool, chunks)


class ReferenceStep(StepAttention):
    """Reads each sequence's keys and values token by token from its table, in each layer anew."""

    def attend(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """q: [1, heads, tokens, head_dim]. Returns the same shape and dtype."""
        out = torch.empty_like(q)
        row = 0
        for chunk in self.chunks:
            k, v = (self._tokens(pool[layer], chunk) for pool in (self.pool.keys, self.pool.values))
            for end in range(chunk.start + 1, chunk.end + 1):  # the query at end - 1 sees the tokens before end
                out[0, :, row] = _attend_one(q[0, :, row], k[:, :end], v[:, :end], scale).to(out.dtype)
                row += 1
        return out

    def _tokens(self, pool: Tensor, chunk: Chunk) -> Tensor:
        """pool: [num_blocks, kv_heads, block_size, head_dim]. Returns the sequence's, [kv_heads, end, head_dim]."""
        size = self.pool.block_size
        return torch.stack([pool[chunk.block_table[p // size], :, p % size] for p in range(chunk.end)], dim=1).double()


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q: [heads, head_dim]; k, v: [kv_heads, length, head_dim]. Returns [heads, head_dim], in float64."""
    group = len(q) // len(k)
    heads = []
    for head, query in enumerate(q.double()):
        weights = (k[head // group] @ query * scale).softmax(dim=0)  # [length]
        heads.append(weights @ v[head // group])
    return torch.stack(heads)
