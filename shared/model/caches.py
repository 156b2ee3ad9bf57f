"""What a layer asks of whatever remembers the tokens before: the interface that every KV cache has."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class Cache(Protocol):
    """What a layer remembers of the tokens before: `update` stores k and v of n new tokens and returns all of them."""

    length: int

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k, v: [batch, kv_heads, n, head_dim]. Returns all so far, [batch, kv_heads, length, head_dim] each."""


@runtime_checkable
class AttendingCache(Protocol):
    """A cache that also attends: its keys and values needn't lie in one piece, nor belong to one sequence."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q: [1, heads, n, head_dim]; k, v: [1, kv_heads, n, head_dim], to be stored first. Returns q's shape."""


LayerCache = Cache | AttendingCache
Caches = Sequence[Cache] | Sequence[AttendingCache]
