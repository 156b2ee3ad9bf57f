"""The kernel's twin on a GPU: the same loop over a sequence's blocks, written in Triton.

One program takes one token and one key head, with all queries that share that head. It runs on any CUDA GPU that
Triton compiles for, whatever the pool's numbers; sums are in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shared.inference.attention import BackendUnavailable, Chunk
from shared.inference.attention_gather import GatherBackend
from shared.inference.attention_singles import SinglesStep
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with torch's CUDA builds
    triton = tl = None
constexpr: Any = Any if tl is None else tl.constexpr  # an argument that is known when the kernel is compiled


class TritonBackend(GatherBackend):
    """For CUDA. Raises BackendUnavailable without it, without Triton, and for sizes that aren't powers of two."""

    name = "triton"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, block_size, dtype, device)
        if torch.device(device).type != "cuda" or not torch.cuda.is_available():
            raise BackendUnavailable(f"triton needs a CUDA device, and this is {device}")
        if triton is None:
            raise BackendUnavailable("triton isn't installed; it comes with torch's CUDA builds")
        for name, size in (("head_dim", config.head_dim), ("block_size", block_size)):
            if size & (size - 1):
                raise BackendUnavailable(f"triton works on powers of two, and {name} is {size}")

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "TritonStep":
        """A TritonStep over these chunks; see AttentionBackend."""
        return TritonStep(self, pool, chunks)


class TritonStep(SinglesStep):
    """A step whose single tokens are attended in one launch: a program for each token and key head."""

    def attend_singles(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """Launches the kernel, and doesn't wait for it. q, out: [tokens, heads, head_dim]."""
        keys, values = self.pool.keys[layer], self.pool.values[layer]  # [num_blocks, kv_heads, block_size, head_dim]
        _, kv_heads, block_size, head_dim = keys.shape
        group = q.shape[1] // kv_heads
        _paged_attention[(len(self.tokens), kv_heads)](
            q, keys, values, self.tokens, self.tables, self.lengths, out, scale,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), kv_heads, self.tables.shape[1],
            GROUP=group, GROUP_ROOM=triton.next_power_of_2(group), HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        )  # fmt: skip


def _kernel(
    q: Any, keys: Any, values: Any, tokens: Any, tables: Any, lengths: Any, out: Any, scale: Any,
    q_token: Any, q_head: Any, out_token: Any, out_head: Any, kv_heads: Any, max_blocks: Any,
    GROUP: constexpr, GROUP_ROOM: constexpr, HEAD_DIM: constexpr, BLOCK_SIZE: constexpr,
) -> None:  # fmt: skip
    i, head = tl.program_id(0), tl.program_id(1)
    token, length = tl.load(tokens + i), tl.load(lengths + i)
    g, d, j = tl.arange(0, GROUP_ROOM)[:, None], tl.arange(0, HEAD_DIM)[None, :], tl.arange(0, BLOCK_SIZE)
    own = g < GROUP  # Triton's arrays have powers of two; a group of three has room for four
    queries = tl.load(q + token * q_token + (head * GROUP + g) * q_head + d, mask=own, other=0.0).to(tl.float32)
    top = tl.full([GROUP_ROOM], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROOM], tl.float32)
    sums = tl.zeros([GROUP_ROOM, HEAD_DIM], tl.float32)
    for index in range(0, tl.cdiv(length, BLOCK_SIZE)):
        block = tl.load(tables + i * max_blocks + index)
        at = ((block * kv_heads + head) * BLOCK_SIZE + j[:, None]) * HEAD_DIM + d
        seen = index * BLOCK_SIZE + j < length
        k = tl.load(keys + at).to(tl.float32)  # [BLOCK_SIZE, HEAD_DIM]
        scores = tl.sum(queries[:, None, :] * k[None, :, :], axis=2) * scale  # [GROUP_ROOM, BLOCK_SIZE]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        shrink, weights = tl.exp(top - highest), tl.exp(scores - highest[:, None])
        v = tl.load(values + at).to(tl.float32)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], axis=1)
        top = highest
    tl.store(out + token * out_token + (head * GROUP + g) * out_head + d, sums / total[:, None], mask=own)


_paged_attention: Any = triton.jit(_kernel) if triton is not None else None
