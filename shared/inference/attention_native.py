"""Paged attention by our own kernel in C++: single tokens read their blocks where they lie; nothing is gathered."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.inference.attention import BackendUnavailable, Chunk, LayerAttention
from shared.inference.attention_gather import GatherBackend
from shared.inference.attention_singles import SinglesStep
from shared.inference.native import NativeUnavailable, load
from shared.inference.paged_kv_cache import KVPool
from shared.model.config import ModelConfig

MAX_GROUP = 64  # queries of one key head that the kernel has room for


class NativeBackend(GatherBackend):
    name = "native"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, block_size, dtype, device)
        if dtype != torch.float32 or torch.device(device).type != "cpu":
            raise BackendUnavailable(f"the kernels are for float32 on the CPU, not {dtype} on {device}")
        if self.heads_per_group > MAX_GROUP:
            raise BackendUnavailable(f"{self.heads_per_group} heads share keys, and there is room for {MAX_GROUP}")
        try:
            self.kernels = load(config.head_dim, block_size)
        except NativeUnavailable as why:
            raise BackendUnavailable(str(why)) from None

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "NativeStep":
        return NativeStep(self, pool, chunks)


class NativeStep(SinglesStep):
    backend: NativeBackend

    def __init__(self, backend: NativeBackend, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        super().__init__(backend, pool, chunks)
        self.layers = [NativeLayer(self, layer) for layer in range(pool.num_layers)]
        self.threads = torch.get_num_threads()

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """k, v: [1, kv_heads, tokens, head_dim]."""
        for x, pool in ((k, self.pool.keys[layer]), (v, self.pool.values[layer])):
            _, heads, tokens, _ = x.shape
            x = x if x.stride(3) == 1 else x.contiguous()
            slots = self.slots.data_ptr()
            self.backend.kernels.store(x.data_ptr(), x.stride(2), x.stride(1), slots, pool.data_ptr(), tokens, heads)

    def attend_singles(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        arrays = (keys, values, self.tokens, self.tables, self.lengths, out)
        self.backend.kernels.paged_attention(
            q.data_ptr(), q.stride(0), q.stride(1), *(array.data_ptr() for array in arrays),
            len(self.tokens), q.shape[1], keys.shape[1], self.tables.shape[1], scale, self.threads,
        )  # fmt: skip


class NativeLayer(LayerAttention):
    step: NativeStep

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.step.store(self.layer, k, v)
        return self.step.attend(self.layer, q, scale)
