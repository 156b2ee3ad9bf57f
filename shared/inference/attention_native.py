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

MAX_GROUP = 64  # queries of one key head that the kernel has room for …
MAX_SIZE = 4096  # … and numbers of a head, or tokens of a block: they are on its stack


class NativeBackend(GatherBackend):
    """float32 on a CPU. Raises BackendUnavailable for any other, for sizes the kernel has no room for, and where it
    can't be built.
    """

    name = "native"

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, block_size, dtype, device)
        if dtype != torch.float32 or torch.device(device).type != "cpu":
            raise BackendUnavailable(f"the kernels are for float32 on the CPU, not {dtype} on {device}")
        if self.heads_per_group > MAX_GROUP:
            raise BackendUnavailable(f"{self.heads_per_group} heads share keys, and there is room for {MAX_GROUP}")
        if max(config.head_dim, block_size) > MAX_SIZE:
            raise BackendUnavailable(
                f"head_dim and block_size may be up to {MAX_SIZE}, not {config.head_dim} and {block_size}"
            )
        self.heads = config.num_attention_heads
        self.sizes = config.num_key_value_heads, block_size, config.head_dim
        try:
            self.kernels = load(config.head_dim, block_size)
        except NativeUnavailable as why:
            raise BackendUnavailable(str(why)) from None

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> "NativeStep":
        """A NativeStep over these chunks; see AttentionBackend."""
        return NativeStep(self, pool, chunks)


class NativeStep(SinglesStep):
    """The kernels write wherever they are told to, so what they are given is checked here: the pool and the tables once
    a step, queries, keys and values in each layer. Raises ValueError, and IndexError for a block that isn't there."""

    backend: NativeBackend

    def __init__(self, backend: NativeBackend, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        if pool.keys.dtype != torch.float32 or pool.keys.shape[2:] != backend.sizes:
            raise ValueError(
                f"the pool is {pool.keys.dtype} with (kv_heads, block_size, head_dim) {tuple(pool.keys.shape[2:])}; "
                f"this backend is for float32 and {backend.sizes}"
            )
        super().__init__(backend, pool, chunks)
        for blocks in (self.blocks, self.tables):
            low, high = map(int, torch.aminmax(blocks)) if blocks.numel() else (0, 0)
            if low < 0 or high >= pool.num_blocks:
                strange = low if low < 0 else high
                raise IndexError(f"a table names block {strange}; the pool has 0 to {pool.num_blocks - 1}")
        tokens, head_dim = len(self.slots), backend.sizes[2]
        self.q_shape, self.kv_shape = (tokens, backend.heads, head_dim), (1, backend.sizes[0], tokens, head_dim)
        self.layers = [NativeLayer(self, layer) for layer in range(pool.num_layers)]
        self.threads = torch.get_num_threads()

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """k, v: [1, kv_heads, tokens, head_dim]."""
        for x, pool in ((k, self.pool.keys[layer]), (v, self.pool.values[layer])):
            if x.shape != self.kv_shape:
                raise ValueError(f"keys and values of {list(self.kv_shape)} are wanted, not {list(x.shape)}")
            _, heads, tokens, _ = self.kv_shape
            if x.dtype is not torch.float32 or x.stride(3) != 1:
                x = x.float().contiguous()
            slots = self.slots.data_ptr()
            self.backend.kernels.store(x.data_ptr(), x.stride(2), x.stride(1), slots, pool.data_ptr(), tokens, heads)

    def attend_singles(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        """One call of the kernel for all single tokens; it writes their rows of out, [tokens, heads, head_dim]."""
        if q.shape != self.q_shape:
            raise ValueError(f"queries of [tokens, heads, head_dim] {self.q_shape} are wanted, not {tuple(q.shape)}")
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        arrays = (keys, values, self.tokens, self.tables, self.lengths, out)
        self.backend.kernels.paged_attention(
            q.data_ptr(), q.stride(0), q.stride(1), *(array.data_ptr() for array in arrays),
            len(self.tokens), q.shape[1], keys.shape[1], self.tables.shape[1], scale, self.threads,
        )  # fmt: skip


class NativeLayer(LayerAttention):
    """One layer's share of a step, with keys and values stored by the kernel too."""

    step: NativeStep

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """As LayerAttention's. Raises ValueError for another shape than the step's."""
        self.step.store(self.layer, k, v)
        return self.step.attend(self.layer, q, scale)
