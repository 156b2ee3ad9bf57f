"""A very small model with logits, and batches for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from chapters.judge import Rejected


@contextmanager
def no_error(kind: type[Exception], because: str) -> Iterator[None]:
    """Reject, with the cause, when the block raises `kind`: the bare error wouldn't name it."""
    try:
        yield
    except kind as error:
        raise Rejected(f"{type(error).__name__}: {error}", because) from error


class Words(nn.Module):
    """An embedding and a head: the smallest model that has logits."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 6, dtype=dtype), nn.Linear(6, 11, dtype=dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids)))


def batch(rows: int, length: int = 5, ignored: int = 0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(11, (rows, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    labels.view(-1)[:ignored] = -100
    return ids[:, :-1], labels


def grads(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]
