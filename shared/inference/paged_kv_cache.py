"""Memory for the keys and values of all sequences: one pool per layer, cut into blocks of a few tokens each.

A sequence's tokens lie wherever its block table says. A slot is the place of one token: `block * block_size + offset`.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shared.inference.kv_budget import kv_bytes
from shared.model.config import ModelConfig


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype = torch.float32) -> int:
    """What one block takes: keys and values, every layer, every key/value head, block_size tokens.

    SmolLM2-135M, 16 tokens, float32: 2 * 30 layers * 3 heads * 64 * 16 tokens * 4 bytes = 737,280.
    """
    return kv_bytes(config, block_size, dtype=dtype)


def slot_mapping(block_table: Sequence[int], start: int, n: int, block_size: int) -> list[int]:
    """The slots of the tokens start to start + n - 1 of a sequence.

    >>> slot_mapping([7, 2, 5], start=3, n=4, block_size=4)  # token 3 ends block 7; tokens 4 to 6 are in block 2
    [31, 8, 9, 10]
    """
    # exercise 10.9: which block of the table holds token p, and where in that block?
    return [block_table[p // block_size] * block_size + p % block_size for p in range(start, start + n)]
    # end


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.zeros; on a CPU, pages are cleared by the system when they are first written to, and not all at once."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    n_bytes = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(n_bytes + 64, dtype=np.uint8))
    first = -raw.data_ptr() % 64  # at a cache line's beginning, as torch has it
    return raw[first : first + n_bytes].view(dtype).view(shape)


class KVPool:
    """keys, values: [layers, num_blocks, kv_heads, block_size, head_dim], set aside once and never moved.

    Heads come before tokens, so that what one head needs of a block lies in one piece.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, not {num_blocks} and {block_size}")
        shape = (config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim)
        try:
            self.keys = zeros(shape, dtype, torch.device(device))
            self.values = zeros(shape, dtype, torch.device(device))
        except (RuntimeError, MemoryError, ValueError) as error:
            size = num_blocks * bytes_per_block(config, block_size, dtype)
            raise MemoryError(
                f"{num_blocks} blocks take {size / 1e9:.1f} GB, more than there is on {device}"
            ) from error

    @property
    def num_layers(self) -> int:
        """Of the model: each has keys and values of its own in every block."""
        return self.keys.shape[0]

    @property
    def num_blocks(self) -> int:
        """How many blocks were set aside; which of them are in use, the block manager knows."""
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        """In tokens."""
        return self.keys.shape[3]

    @property
    def nbytes(self) -> int:
        """The memory that is set aside, in bytes. On a CPU the system hands it over as it is written to."""
        return self.keys.nbytes + self.values.nbytes

    def store(self, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Write one layer's keys and values of the tokens of a step, each into its slot.

        blocks, offsets: [tokens], slot // block_size and slot % block_size; k, v: [kv_heads, tokens, head_dim].
        """
        self.keys[layer][blocks, :, offsets] = k.transpose(0, 1).to(self.keys.dtype)  # [tokens, kv_heads, head_dim]
        self.values[layer][blocks, :, offsets] = v.transpose(0, 1).to(self.values.dtype)

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks, of every layer."""
        if blocks:
            self.keys[:, blocks] = 0
            self.values[:, blocks] = 0

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, of every layer. pairs: (source, target), as `BlockManager.writable` gave them."""
        if pairs:
            sources, targets = (list(blocks) for blocks in zip(*pairs, strict=True))
            keys, values = self.keys[:, sources], self.values[:, sources]  # if there's no memory, nothing is written
            self.keys[:, targets] = keys
            self.values[:, targets] = values
