"""Paged attention by torch's own CUDA kernel: `varlen_attn` takes the block tables as they are, and nothing is copied.

Paging is a matter of FlashAttention 3, which torch calls but doesn't bring along: the package `flash_attn_interface`
must be installed, on a Hopper GPU, and the pool must be float16 or bfloat16. (torch 2.13, torch/nn/attention/_fa3.py;
with the FlashAttention 2 that torch is built with, `block_table` is an error.)
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.inference.attention import BackendUnavailable, Chunk, StepAttention, padded_tables
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig


class VarlenBackend:
    """Switches the whole process to FlashAttention 3, and tries it. Raises BackendUnavailable where it's missing."""

    name = "varlen"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        if torch.device(device).type != "cuda" or not torch.cuda.is_available():
            raise BackendUnavailable(f"varlen needs a CUDA device, and this is {device}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise BackendUnavailable(f"varlen needs a pool of float16 or bfloat16, not {dtype}")
        from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

        try:
            activate_flash_attention_impl("FA3")  # for the whole process
            self._probe(config, block_size, dtype, device)
        except (ImportError, RuntimeError, ValueError, TypeError) as error:
            restore_flash_attention_impl()
            raise BackendUnavailable.because("torch can't call a paged kernel here", error) from error

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "VarlenStep":
        """A VarlenStep over these chunks; see AttentionBackend."""
        return VarlenStep(pool, chunks)

    def _probe(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        """A first call, on random numbers, held against plain attention. Raises RuntimeError where they differ."""
        pool = KVPool(config, 4, block_size, dtype, device)
        pool.keys.normal_()
        pool.values.normal_()
        length = block_size + 1  # into the second block
        q = torch.randn(1, config.num_attention_heads, 1, config.head_dim, dtype=dtype, device=device)
        step = VarlenStep(pool, [Chunk(length - 1, 1, [2, 1])])
        k, v = (kv[0, [2, 1]].transpose(0, 1).flatten(1, 2)[None, :, :length] for kv in (pool.keys, pool.values))
        want = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), enable_gqa=True)
        error = float((step.attend(0, q, config.head_dim**-0.5).float() - want).abs().max())
        if not error < 0.05:
            raise RuntimeError(f"the kernel's first answer is off by {error:.2g}")


class VarlenStep(StepAttention):
    """The step's tables, ends and borders, as the kernel wants them: int32, on the device."""

    def __init__(self, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        super().__init__(pool, chunks)
        device = pool.keys.device
        ends = [chunk.end for chunk in chunks]
        counts = torch.tensor([0, *(chunk.n for chunk in chunks)])
        self.tables = torch.tensor(
            padded_tables(chunks, pool.block_size), dtype=torch.int32, device=device
        )  # [n, n_blocks]
        self.ends = torch.tensor(ends, dtype=torch.int32, device=device)  # [n]
        self.borders = counts.cumsum(0).to(device, torch.int32)  # [n + 1], where each chunk's tokens begin
        self.longest, self.most = max(ends), int(counts.max())

    def attend(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """All chunks in one call. q: [1, heads, tokens, head_dim]. Returns the same shape and dtype."""
        from torch.nn.attention.varlen import varlen_attn

        # The kernel wants [num_blocks, block_size, kv_heads, head_dim], and only the last axis in one piece.
        keys, values = (kv[layer].transpose(1, 2) for kv in (self.pool.keys, self.pool.values))
        flat = q[0].transpose(0, 1).to(keys.dtype)  # [tokens, heads, head_dim]
        out: Any = varlen_attn(
            flat,
            keys,
            values,
            self.borders,
            None,
            self.most,
            self.longest,
            scale=scale,
            window_size=(-1, 0),  # causal, aligned bottom-right: the last query sees the last key
            enable_gqa=True,
            seqused_k=self.ends,
            block_table=self.tables,
        )
        attended: Tensor = out.transpose(0, 1)[None].to(q.dtype)
        return attended
