"""Decoding without a gather: the blocks are read where they lie, in the loops that `torch.compile` makes of a formula.

Compiling takes some seconds, when the backend is made, and on a CPU it needs a C++ compiler. Chunks of several tokens
are attended as in `attention_gather`: there products of matrices are what counts, and adding up one by one loses.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.inference.attention import BackendUnavailable, Chunk
from shared.inference.attention_gather import GatherBackend, GatherStep, Group
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig


def fused_attention(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, last: Tensor) -> Tensor:
    """softmax(q k^T) v for one token of each of n sequences, as products and sums of single numbers.

    q: [n, kv_heads, group, head_dim]; keys, values: [num_blocks, kv_heads, block_size, head_dim];
    tables: [n, n_blocks]; last: [n], the position of the last key that each may see. Returns q's shape.
    """
    k, v = (
        pool[tables].transpose(1, 2)[:, :, None] for pool in (keys, values)
    )  # [n, kv_heads, 1, n_blocks, size, dim]
    scores = (q[:, :, :, None, None] * k).sum(dim=-1)  # [n, kv_heads, group, n_blocks, block_size]
    flat = scores.flatten(3)  # [n, kv_heads, group, n_blocks * block_size]
    hidden = torch.arange(flat.shape[3], device=q.device) > last[:, None]  # [n, n_blocks * block_size]
    weights = flat.masked_fill(hidden[:, None, None], -torch.inf).softmax(dim=-1).view(scores.shape)
    return (weights[..., None] * v).sum(dim=(3, 4))


class FusedBackend(GatherBackend):
    """Compiles the formula when it is made. Raises BackendUnavailable where `torch.compile` can't."""

    name = "fused"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, block_size, dtype, device)
        # fullgraph: an error rather than a silent return to eager, which is several times slower here.
        self.attention = torch.compile(fused_attention, fullgraph=True)
        kv_heads, dim = config.num_key_value_heads, config.head_dim
        keys, values = (torch.zeros(5, kv_heads, block_size, dim, dtype=dtype, device=device) for _ in range(2))
        with torch.inference_mode():
            q = torch.zeros(3, kv_heads, self.heads_per_group, dim, dtype=dtype, device=device)
            tables, last = (torch.zeros(shape, dtype=torch.int64, device=device) for shape in ((3, 2), (3,)))
        for tensor, sizes in ((q, [0]), (keys, [0]), (values, [0]), (tables, [0, 1]), (last, [0])):
            torch._dynamo.mark_dynamic(tensor, sizes)  # these change from step to step; the others are the model's
        try:  # now, and not in the middle of somebody's answer
            with torch.inference_mode():
                self.attention(q, keys, values, tables, last)
        except Exception as error:  # whatever the compiler raises
            raise BackendUnavailable.because("torch.compile failed", error) from error

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "FusedStep":
        """A FusedStep over these chunks; see AttentionBackend."""
        return FusedStep(self, pool, chunks)


class FusedStep(GatherStep):
    """Groups of decodes go to the compiled formula; pieces of prompts, and whatever has a size of 1, to the gather."""

    backend: FusedBackend

    def attend_group(self, layer: int, q: Tensor, group: Group, scale: float) -> Tensor:
        """q: [n, heads, queries, head_dim]. Returns the same shape."""
        n, heads, queries, head_dim = q.shape
        # A size of 1 is a case of its own to the compiler, and would be compiled anew.
        if queries > 1 or n == 1 or group.tables.shape[1] == 1:
            return super().attend_group(layer, q, group, scale)
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        folded = (q * scale).reshape(n, keys.shape[1], -1, head_dim)  # [n, kv_heads, group, head_dim]
        last = self.positions[group.tokens]  # [n]
        return self.backend.attention(folded, keys, values, group.tables, last).view(n, heads, 1, head_dim)
