"""What the kernels by hand share: single tokens for the kernel, pieces of prompts for torch.

A decode step reads each sequence's keys once for one query: a kernel that reads the blocks where they lie has nothing
to copy. A piece of a prompt has many queries for the same keys, and copying them once is cheap beside the products.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.inference.attention import Chunk, StepAttention
from shared.inference.attention_gather import GatherBackend, GatherStep
from shared.inference.paged_kv_cache import KVPool


class SinglesStep(GatherStep):
    """A step whose single tokens go to a kernel.

    pieces: the chunks of several tokens, each with its place in the step. tokens: [n], where the single ones are;
    tables: [n, n_blocks]; lengths: [n], how many tokens each sees.
    """

    def __init__(self, backend: GatherBackend, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        StepAttention.__init__(self, pool, chunks)
        self.backend, self.pieces = backend, []
        singles, first = [], 0
        for chunk in chunks:
            if chunk.n > 1:
                self.pieces.append((slice(first, first + chunk.n), self._group([(first, chunk)])))
            else:
                singles.append((first, chunk))
            first += chunk.n
        width = max((len(chunk.block_table) for _, chunk in singles), default=0)
        tables = [[*chunk.block_table, *[0] * (width - len(chunk.block_table))] for _, chunk in singles]
        device = pool.keys.device
        self.tokens = torch.tensor([first for first, _ in singles], dtype=torch.long, device=device)
        self.tables = torch.tensor(tables, dtype=torch.long, device=device).view(len(singles), width)
        self.lengths = torch.tensor([chunk.end for _, chunk in singles], dtype=torch.long, device=device)

    def attend(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """q: [1, heads, tokens, head_dim]. Returns the same shape and dtype; the kernel sees the pool's dtype."""
        flat = q[0].transpose(0, 1).to(self.pool.keys.dtype)  # [tokens, heads, head_dim]
        out = torch.empty_like(flat, memory_format=torch.contiguous_format)
        for own, group in self.pieces:
            picked = flat[own].transpose(0, 1)[None]  # [1, heads, queries, head_dim]
            out[own] = self.attend_group(layer, picked, group, scale)[0].transpose(0, 1)
        if len(self.tokens):
            self.attend_singles(layer, flat if flat.stride(2) == 1 else flat.contiguous(), out, scale)
        return out.transpose(0, 1)[None].to(q.dtype)  # [1, heads, tokens, head_dim]

    @abstractmethod
    def attend_singles(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """Fill the rows `tokens` of out, contiguous. q, out: [tokens, heads, head_dim], q's last axis in one piece."""
