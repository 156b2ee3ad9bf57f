# Yours to finish. Generated from shared/inference/attention_gather.py (version b40e30d6637d).
"""Paged attention in plain torch: copy the blocks that a query sees next to each other, then attend as usual.

Three things make it fast. The pool is laid out heads first, so a block's share for one head is one row and copying is
one `index_select`. Rows go into room that is kept: fresh memory costs more than the copy, page by page. And what
depends on the step alone (rows, masks) is made once a step, not in every layer.
"""

from chapters import Todo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.inference.attention import Chunk, StepAttention, padded_tables
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig

GROUP_ROWS = 1024  # rows copied at a time: of 16 tokens with 64 float32 numbers, 4 MB of keys and as much of values
GROUP_ROWS_GPU = 64 * GROUP_ROWS  # no cache to stay within, and every group is another few launches


def pool_rows(tables: Tensor, kv_heads: int) -> Tensor:
    """Where each head's share of each block lies, if the pool is seen as rows of block_size * head_dim numbers.

    tables: [n, n_blocks]. Returns [n * kv_heads * n_blocks]: one head after another, each with its blocks in order.

    >>> pool_rows(torch.tensor([[7, 2]]), kv_heads=3)
    tensor([21,  6, 22,  7, 23,  8])
    """
    return (tables[:, None] * kv_heads + torch.arange(kv_heads)[:, None]).flatten()


def gather_attention(
    q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, mask: Tensor | None, scale: float, room: Tensor
) -> Tensor:
    """softmax(q k^T * scale + mask) v for n sequences, each over the blocks of its table.

    q: [n, heads, queries, head_dim]; keys, values: one layer's pool, [num_blocks, kv_heads, block_size, head_dim];
    rows: [n * kv_heads * n_blocks], from `pool_rows`; mask: [n, 1, group * queries, n_blocks * block_size], 0 or minus
    infinity, or None; group = heads / kv_heads, and the queries of a group's first head come first. room: [2, rows,
    block_size * head_dim], where the rows of keys and of values are copied to. Returns [n, heads, queries, head_dim].
    q may be a view with its axes turned, as the model makes it. Nothing as large as the room is made anew.

    >>> keys, values = torch.zeros(3, 1, 1, 1), torch.tensor([1.0, 2.0, 6.0]).view(3, 1, 1, 1)
    >>> rows, room = pool_rows(torch.tensor([[2, 0]]), kv_heads=1), torch.empty(2, 2, 1)
    >>> gather_attention(torch.ones(1, 1, 1, 1), keys, values, rows, None, 1.0, room)  # equal weights: (6 + 1) / 2
    tensor([[[[3.5000]]]])
    """
    # exercise 10.10: copy the rows into the room, put a group's queries into one matrix, attend
    #   torch.index_select(…, out=room[0]), and room[1]; then torch's scaled dot product attention (SDPA), in F
    raise Todo("10.10")
    # end


@dataclass(frozen=True)
class Group:
    """Chunks that are attended together: each has as many tokens, and their tables are filled up to one length."""

    tokens: Tensor  # [n * queries], which of the step's tokens these are
    tables: Tensor  # [n, n_blocks]
    rows: Tensor  # [n * kv_heads * n_blocks]
    mask: Tensor | None  # [n, 1, group * queries, n_blocks * block_size], or None where every token may be seen


class GatherBackend:
    """The default where nothing faster can run. It keeps the room that rows are copied to; that only grows."""

    name = "gather"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self.heads_per_group = config.num_attention_heads // config.num_key_value_heads
        self._width = block_size * config.head_dim
        self._room = torch.empty(0, dtype=dtype, device=device)

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "GatherStep":
        """A GatherStep over these chunks; see AttentionBackend."""
        return GatherStep(self, pool, chunks)

    def room(self, n_rows: int) -> Tensor:
        """[2, n_rows, block_size * head_dim], not cleared."""
        n = 2 * n_rows * self._width
        if len(self._room) < n:
            self._room = self._room.new_empty(n)
        return self._room[:n].view(2, n_rows, self._width)


class GatherStep(StepAttention):
    """Masks grow with the square of a chunk: one of 1,000 tokens has heads_per_group times a million numbers. So read
    long prompts in pieces."""

    def __init__(self, backend: GatherBackend, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        super().__init__(pool, chunks)
        self.backend = backend
        self.groups = [self._group(members) for members in in_groups(chunks, pool)]

    def _group(self, members: Sequence[tuple[int, Chunk]]) -> Group:
        """members: (the number of its first token in the step, chunk), all with the same number of tokens."""
        pool, queries = self.pool, members[0][1].n
        kv_heads, size, device = pool.keys.shape[2], pool.block_size, pool.keys.device
        tables = torch.tensor(padded_tables([chunk for _, chunk in members], size))  # [n, n_blocks]
        n_blocks = tables.shape[1]
        own = torch.arange(queries)
        tokens = torch.tensor([first for first, _ in members])[:, None] + own  # [n, queries]
        at = torch.tensor([chunk.start for _, chunk in members])[:, None] + own  # [n, queries], in their sequences
        hidden = torch.arange(n_blocks * size) > at[:, :, None]  # [n, queries, n_blocks * size]
        mask = None
        if hidden.any():  # numbers, for SDPA would make them of a bool mask in every layer
            mask = torch.zeros(hidden.shape, dtype=pool.keys.dtype).masked_fill_(hidden, -torch.inf)
            mask = mask.repeat(1, self.backend.heads_per_group, 1)[:, None].to(device)
        rows = pool_rows(tables, kv_heads)
        return Group(tokens.flatten().to(device), tables.to(device), rows.to(device), mask)

    def attend(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """Group by group, in the pool's dtype. q: [1, heads, tokens, head_dim]. Returns the same shape and dtype."""
        flat = q[0].transpose(0, 1)  # [tokens, heads, head_dim]: so the model made it, and so it wants it back
        out = torch.empty_like(flat)
        for group in self.groups:
            picked = flat[group.tokens].view(len(group.tables), -1, *flat.shape[1:]).transpose(1, 2)
            attended = self.attend_group(layer, picked.to(self.pool.keys.dtype), group, scale)
            out[group.tokens] = attended.transpose(1, 2).reshape(-1, *flat.shape[1:]).to(flat.dtype)
        return out.transpose(0, 1)[None]

    def attend_group(self, layer: int, q: Tensor, group: Group, scale: float) -> Tensor:
        """q: [n, heads, queries, head_dim]. Returns the same shape."""
        room = self.backend.room(len(group.rows))
        pool = self.pool
        return gather_attention(q, pool.keys[layer], pool.values[layer], group.rows, group.mask, scale, room)


def in_groups(chunks: Sequence[Chunk], pool: KVPool) -> Iterator[list[tuple[int, Chunk]]]:
    """Each chunk with the number of its first token in the step. Several tokens: a group by itself.

    Single tokens (decodes) go together, longest first, as many as fill GROUP_ROWS, so that little is filled up.
    """
    most = GROUP_ROWS if pool.keys.device.type == "cpu" else GROUP_ROWS_GPU
    first, singles = 0, []
    for chunk in chunks:
        if chunk.n > 1:
            yield [(first, chunk)]
        else:
            singles.append((first, chunk))
        first += chunk.n
    singles.sort(key=lambda single: single[1].end, reverse=True)
    while singles:
        n_blocks = -(-singles[0][1].end // pool.block_size)
        fit = max(1, most // (n_blocks * pool.keys.shape[2]))
        yield singles[:fit]
        singles = singles[fit:]
