"""Activations times a weight: plain tensors, and weights that are stored in another way and multiply by themselves."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.config import ModelConfig


class PackedWeight(Protocol):
    """A weight that isn't a plain tensor, a quantised one for instance, and multiplies by itself."""

    def linear(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns [..., out]."""


Weight = Tensor | PackedWeight


def linear(x: Tensor, w: Weight) -> Tensor:
    """Multiply by a weight stored as [out, in], the way torch and every checkpoint store it.

    x: [..., in]; w: [out, in], or an object with a `linear` of its own. Returns [..., out]. Every product of
    activations and weights comes here.
    """
    return F.linear(x, w) if isinstance(w, Tensor) else w.linear(x)


class Linear(nn.Module):
    """A weight [out, in] with no numbers in it yet, and a bias [out] of zeros where the model has one."""

    def __init__(self, n_in: int, n_out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns [..., out]."""
        out = linear(x, self.weight)
        return out if self.bias is None else out + self.bias


class Embedding(nn.Module):
    """A table [vocab, dim]: a row for each token. In a tied model it is the head, too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, length]. Returns [batch, length, dim]; a packed weight looks its `rows` up itself."""
        w = self.weight
        rows: Tensor = F.embedding(ids, w) if isinstance(w, Tensor) else w.rows(ids)  # a packed weight has `rows`
        return rows
