# Yours to finish. Generated from shared/model/rope.py (version 61fad4ab39c0).
"""Rotary position embedding: a token's place turns its queries and keys, pair by pair (Su et al. 2021).

After it the product of a query and a key depends on how far apart their tokens are, and not on where they stand.
"""

from chapters import Todo
import math

import torch
from torch import Tensor

from shared.model.config import RopeScaling


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None, device: torch.device | str | None = None
) -> Tensor:
    """How fast each pair of a head turns, in radians per position (Su et al. 2021, section 3.2.2).

    Returns [head_dim / 2], float64: 1 for the first pair, falling to nearly 1 / theta for the last. With `scaling`,
    pairs that turn less than `low_freq_factor` times in the original context turn `factor` times slower, pairs that
    turn more than `high_freq_factor` times keep their speed, and those between are blended (Llama 3.1).

    >>> inverse_frequencies(4, theta=100.0)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    speed = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)  # [head_dim / 2]
    if scaling is None:
        return speed
    turns = scaling.original_max_position_embeddings * speed / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(speed / scaling.factor, speed, keep.clamp(0, 1))


def rope_tables(positions: Tensor, speed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle, position times speed: computed once a step, used by every layer.

    positions: [length] or [batch, length], whole numbers; speed: [head_dim / 2], from inverse_frequencies; dtype: the
    activations'. Returns two tensors [..., length, head_dim / 2] on the device of `positions`, float32, or float64
    when `dtype` is: in bf16 position 257 would be 256.

    >>> rope_tables(torch.tensor([0, 2]), torch.tensor([1.0, 0.5]), torch.float32)[0]  # cos of 0, 0 and of 2, 1
    tensor([[ 1.0000,  1.0000],
            [-0.4161,  0.5403]])
    """
    # exercise 5.2: every position times every speed, in float32 at least; then the cosine and the sine of it
    raise Todo("5.2")
    # end


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of numbers in each head by its angle, anticlockwise.

    Pair i is (x[i], x[i + head_dim / 2]): Hugging Face's "half-split" layout. The paper's own has neighbours as pairs.
    x: [..., length, head_dim]; cos, sin: broadcastable to [..., length, head_dim / 2]. Returns x's shape and dtype: the
    turn is computed in the tables' dtype, which is x's or a wider one, and rounded once.

    >>> apply_rope(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.zeros(1, 2), torch.ones(1, 2))  # 90°: (1, 3), (2, 4)
    tensor([[-3., -4.,  1.,  2.]])
    """
    # exercise 5.3: split into two halves; the pair (a, b) becomes (a cos - b sin, b cos + a sin); keep x's dtype
    raise Todo("5.3")
    # end


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of x, whole: tables and turn.

    x: [..., length, head_dim]; positions: [length], or [batch, length] with x [batch, heads, length, head_dim].

    >>> rope(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), theta=10000.0)  # one pair, turned by one radian
    tensor([[0.5403, 0.8415]])
    """
    cos, sin = rope_tables(positions, inverse_frequencies(x.shape[-1], theta), x.dtype)
    if positions.dim() == 2:
        cos, sin = cos[:, None], sin[:, None]  # [batch, 1, length, head_dim / 2]: the same for every head
    return apply_rope(x, cos, sin)
