# Yours to finish. Generated from shared/inference/kv_budget.py (version 2d2477c41193).
"""How much memory keys and values take, and how many requests that leaves room for."""

from chapters import Todo
import math
from dataclasses import replace

import torch

from shared.model.config import ModelConfig
from shared.model.counting import parameters


def kv_bytes(config: ModelConfig, tokens: int, sequences: int = 1, dtype: torch.dtype = torch.float16) -> int:
    """The bytes that the keys and values of so many sequences of so many tokens take, in all layers together.

    By hand, for 3 layers, 2 key heads (shared by 6 query heads) of 8 numbers, float16: a token has a key and a value of
    8 numbers in 2 heads of 3 layers: 96 numbers of 2 bytes. 192 bytes a token; 4 sequences of 10 tokens take 7,680.
    Raises ValueError unless both numbers are whole and from 0 on, and dtype is a torch.dtype.
    """
    for name, value in (("tokens", tokens), ("sequences", sequences)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number from 0 on, not {value!r}")
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be one of torch's, such as torch.float16, not {dtype!r}")
    # exercise 9.10: how many numbers a token leaves behind, how large each is (dtype.itemsize), how many tokens
    raise Todo("9.10")
    # end


def max_concurrent(total: int, model: int, overhead: int, kv_per_request: int, headroom: float = 0.2) -> int:
    """How many requests fit into the memory at once, all sizes in bytes, at their longest.

    total: of the device. `headroom`, a share of total, is left alone: for fragments, for other programs, for what
    nobody thought of. model: its weights. overhead: activations, the runtime, whatever else is always there. Returns
    whole requests, 0 when not even one fits. Raises ValueError unless the sizes are finite and none negative,
    kv_per_request is above 0 and headroom in [0, 1).

    80 in all, a quarter left alone, 30 for the model and 5 besides: 80 - 20 - 30 - 5 = 25; of 10 each, 2 fit.
    """
    for name, size in (("total", total), ("model", model), ("overhead", overhead), ("kv_per_request", kv_per_request)):
        if not 0 <= size < math.inf:
            raise ValueError(f"{name} must be a number of bytes, not {size!r}")
    if kv_per_request == 0:
        raise ValueError("kv_per_request must be above 0 bytes: of nothing any number fits")
    if not 0 <= headroom < 1:
        raise ValueError(f"headroom is a share of the memory, from 0 to below 1, not {headroom!r}")
    # exercise 9.11: what is left of total, in whole requests; never fewer than none
    raise Todo("9.11")
    # end


def weight_bytes(config: ModelConfig, dtype: torch.dtype = torch.float16) -> int:
    """The bytes of the model's weights, from its config alone."""
    return sum(parameters(config).values()) * dtype.itemsize


def as_multi_head(config: ModelConfig) -> ModelConfig:
    """The same model if every query head had keys and values of its own, as before grouped queries."""
    return replace(config, num_key_value_heads=config.num_attention_heads)
