"""What attention remembers: the keys and values of every token so far, in memory set aside beforehand.

A cache belongs to one request (or one fixed batch of them). The model keeps nothing: it gets the caches with each call.
Caches made under torch.inference_mode() can be used only there.
"""

import torch
from torch import Tensor

from shared.model.config import ModelConfig


class CacheFull(RuntimeError):
    """More tokens than the cache was made for: make it larger, or end the answer there."""


class KVCache:
    """One layer's keys and values. `length` tokens are stored; `capacity` is the most that fit.

    Memory is taken once, at the start. A cache that grew by concatenation would copy everything it holds for each new
    token, and leave a hole of every size behind.
    """

    def __init__(
        self,
        batch: int,
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (batch, n_kv_heads, capacity, head_dim)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"batch, n_kv_heads, capacity and head_dim must be whole numbers from 0 on, not {shape}")
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of n new tokens, and return those of all tokens so far.

        k, v: [batch, n_kv_heads, n, head_dim]. Returns two views [batch, n_kv_heads, length, head_dim] of the cache's
        own memory: what is old is not copied, and what was never written can't be seen. They carry no gradients.
        Raises CacheFull, with nothing stored, when n more tokens don't fit, and ValueError for any other shape, dtype
        or device.
        """
        for x in (k, v):
            if x.dim() != 4:
                raise ValueError(f"keys and values must be [batch, n_kv_heads, n, head_dim], not {list(x.shape)}")
            if (x.dtype, x.device) != (self._keys.dtype, self._keys.device):
                raise ValueError(
                    "caches have the weights' dtype and device: this one was made for "
                    f"{self._keys.dtype} on {self._keys.device}, and gets {x.dtype} on {x.device}"
                )
        k, v = k.detach(), v.detach()  # or each step would hang on to the graphs of all those before
        # exercise 9.7: refuse other shapes, refuse what doesn't fit, store behind what is there, move on, return it all
        #   assigning to a slice spreads a batch of one over a larger one without a word, so compare the shapes first
        batch, heads, n, head_dim = k.shape
        if k.shape != v.shape or (batch, heads, head_dim) != (*self._keys.shape[:2], self._keys.shape[3]):
            raise ValueError(f"keys {list(k.shape)} and values {list(v.shape)} for a cache {list(self._keys.shape)}")
        end = self.length + n
        if end > self.capacity:
            raise CacheFull(f"{n} more tokens after {self.length} are too many for a cache of {self.capacity}")
        self._keys[:, :, self.length : end] = k
        self._values[:, :, self.length : end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]  # [batch, n_kv_heads, length, head_dim] each
        # end

    def rewind(self, n: int) -> None:
        """Forget the last n tokens; the next update overwrites them. Nothing is copied or cleared.

        To be done with the caches of all layers, or they are out of step. Raises ValueError when there are fewer than
        n, or n is not a whole number from 0 on, and then forgets nothing.
        """
        if isinstance(n, bool) or not isinstance(n, int):
            raise ValueError(f"can't forget {n!r} tokens: it must be a whole number")
        # exercise 9.8: check n, and take the cursor back
        if not 0 <= n <= self.length:
            raise ValueError(f"can't forget {n} of {self.length} tokens")
        self.length -= n
        # end

    @property
    def nbytes(self) -> int:
        """The memory that is set aside, in bytes, whether it is in use or not."""
        return self._keys.nbytes + self._values.nbytes


def new_caches(
    config: ModelConfig,
    capacity: int,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[KVCache]:
    """One empty cache for each of the model's layers, each with room for `capacity` tokens of `batch` sequences."""
    return [
        KVCache(batch, config.num_key_value_heads, config.head_dim, capacity, dtype, device)
        for _ in range(config.num_hidden_layers)
    ]
