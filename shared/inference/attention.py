"""Attention over a paged pool: what a step is made of, and the backends that can compute it, all with one interface.

A backend's `begin` looks at a step's chunks once and prepares what every layer needs (slots, indices, masks); then each
layer's `attend` stores its new keys and values and attends. `Transformer.forward` takes the layers as its caches.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from shared.inference.paged_kv_cache import KVPool, slot_mapping
from shared.model.config import ModelConfig

log = logging.getLogger(__name__)


class BackendUnavailable(RuntimeError):
    """This backend can't run here; the message says why."""

    @classmethod
    def because(cls, what: str, error: Exception) -> "BackendUnavailable":
        """What went wrong, and the first line of what others said about it."""
        return cls(f"{what}: {(str(error).strip() or type(error).__name__).splitlines()[0]}")


@dataclass(frozen=True)
class Chunk:
    """One sequence's part of a step: its tokens start to start + n - 1. Those before are in the pool already."""

    start: int
    n: int
    block_table: Sequence[int]  # reaches to the last of the tokens at least

    @property
    def end(self) -> int:
        """The position after its last token: so many tokens of the sequence are seen."""
        return self.start + self.n


def padded_tables(chunks: Sequence[Chunk], block_size: int) -> list[list[int]]:
    """The chunks' blocks up to their last tokens, all tables as long as the longest.

    They are filled up with a block of their own: what is read there is masked, but another's might hold NaN.

    >>> padded_tables([Chunk(9, 1, [7, 2, 5]), Chunk(0, 3, [4, 6])], block_size=4)
    [[7, 2, 5], [4, 4, 4]]
    """
    tables = [list(chunk.block_table[: -(-chunk.end // block_size)]) for chunk in chunks]
    longest = max(map(len, tables))
    return [table + table[:1] * (longest - len(table)) for table in tables]


@dataclass(frozen=True)
class LayerAttention:
    """One layer's share of a step; an `AttendingCache` for the model."""

    step: "StepAttention"
    layer: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store k and v, then attend. q: [1, heads, tokens, head_dim]; k, v: [1, kv_heads, tokens, head_dim]."""
        step = self.step
        step.pool.store(self.layer, step.blocks, step.offsets, k[0], v[0])
        return step.attend(self.layer, q, scale)


class StepAttention(ABC):
    """What the layers of one step share. The batch is flat: the chunks' tokens one after the other.

    A block that begins in this step, and isn't filled, is cleared. Raises ValueError for a chunk without tokens, or one
    that isn't within its table.
    positions: [tokens], each token's place in its own sequence. layers: one object with `attend` for each layer.
    """

    def __init__(self, pool: KVPool, chunks: Sequence[Chunk]) -> None:
        block_size, device = pool.block_size, pool.keys.device
        if not chunks or any(chunk.n < 1 for chunk in chunks):
            raise ValueError("a step needs chunks of at least one token each")
        for chunk in chunks:
            if chunk.start < 0 or chunk.end > len(chunk.block_table) * block_size:
                raise ValueError(
                    f"tokens {chunk.start} to {chunk.end - 1} aren't in a table of {len(chunk.block_table)} blocks of "
                    f"{block_size} tokens"
                )
        positions = [p for chunk in chunks for p in range(chunk.start, chunk.end)]
        slots = [s for chunk in chunks for s in slot_mapping(chunk.block_table, chunk.start, chunk.n, block_size)]
        self.pool, self.chunks = pool, chunks
        # What lies behind a sequence's end is masked, but 0 times a NaN that somebody left there would still be NaN.
        last = [(chunk, chunk.end // block_size) for chunk in chunks if chunk.end % block_size]
        pool.clear([chunk.block_table[index] for chunk, index in last if chunk.start <= index * block_size])
        self.positions = torch.tensor(positions, device=device)  # [tokens]
        self.slots = torch.tensor(slots, device=device)  # [tokens]
        self.blocks, self.offsets = self.slots // block_size, self.slots % block_size
        self.layers = [LayerAttention(self, layer) for layer in range(pool.num_layers)]

    @abstractmethod
    def attend(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """The step's keys and values are in the pool. q: [1, heads, tokens, head_dim]. Returns the same shape."""


class AttentionBackend(Protocol):
    """One way to attend over the pool. It may keep scratch memory and compiled code, and nothing of a request."""

    name: str

    def begin(self, pool: KVPool, chunks: Sequence[Chunk]) -> StepAttention:
        """Prepare what all layers of a step share. chunks: in the order of their tokens in the flat batch."""


# name -> module and class. A class takes (config, block_size, dtype, device) and raises BackendUnavailable where it
# can't run; its module is imported only when it is asked for.
BACKENDS = {
    "reference": ("shared.inference.attention_reference", "ReferenceBackend"),
    "gather": ("shared.inference.attention_gather", "GatherBackend"),
    "native": ("shared.inference.attention_native", "NativeBackend"),
    "fused": ("shared.inference.attention_fused", "FusedBackend"),
    "varlen": ("shared.inference.attention_varlen", "VarlenBackend"),
    "triton": ("shared.inference.attention_triton", "TritonBackend"),
}
AUTO = {"cpu": ("native", "gather"), "cuda": ("varlen", "gather")}  # the first that can run here


def make_backend(
    name: str, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> AttentionBackend:
    """The backend of this name, or with "auto" the fastest that can run here; `backend.name` says which that is.

    Raises ValueError for an unknown name and BackendUnavailable, with the reason, for one that can't run here.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    if name == "auto":
        for candidate in AUTO.get(torch.device(device).type, ("gather",)):
            if candidate not in BACKENDS:
                continue
            try:
                backend = make_backend(candidate, config, block_size, dtype, device)
            except BackendUnavailable as why:
                log.warning("attention: %s can't run here (%s)", candidate, why)
                continue
            log.info("attention: %s", backend.name)
            return backend
    if name not in BACKENDS:
        raise ValueError(f"no attention backend is called {name!r}; there are {', '.join([*BACKENDS, 'auto'])}")
    module, constructor = BACKENDS[name]
    return cast(AttentionBackend, getattr(import_module(module), constructor)(config, block_size, dtype, device))
