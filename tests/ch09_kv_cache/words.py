"""What the judges share: causes told by numbers, crashes that name their cause, and a model that counts."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from chapters.judge import NO_RESULT, expect
from tests.tiny import TINY


def likely(got: object, causes: dict[str, object]) -> str:
    """The cause whose numbers `got` has, and a full stop; nothing when there is none."""
    for cause, numbers in causes.items():
        want = torch.as_tensor(numbers, dtype=torch.float64)
        fits = isinstance(got, Tensor) and got.shape == want.shape
        if fits and torch.allclose(got.detach().double(), want, rtol=1e-3, atol=1e-6, equal_nan=True):
            return f"likely: {cause}. "
    return ""


def expect_kind(got: object, kind: type, what: str) -> None:
    """Reject another type, and say what may have been forgotten only where it was: None."""
    expect(got is not None, because=f"the result is {what}, not None: {NO_RESULT}")
    expect(isinstance(got, kind), because=f"the result is {what}, not {type(got).__name__}")


def tensor(got: object, what: str) -> Tensor:
    expect_kind(got, Tensor, f"{what}, a tensor")
    return got


def untouched(call: Callable[[Tensor], object], x: Tensor, name: str) -> None:
    """Reject a call that changes its argument."""
    before = x.clone()
    call(x)
    expect(torch.equal(x, before), because=f"the {name} that were handed in have changed: they are the caller's; copy")


class Adder(nn.Module):
    """Its best next token is the sum of all ids in its caches and of those it is fed, modulo its 97 tokens.

    The ids themselves are what it stores as keys, so whatever is fed twice, or forgotten, shows in the next token.
    """

    def __init__(self, context: int = 200, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = replace(TINY, vocab_size=97, num_hidden_layers=2, max_position_embeddings=context)
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))
        self.fed: list[list[int]] = []
        self.starts: list[int] = []
        self.capacities: set[int] = set()
        self.dtypes: set[torch.dtype] = set()
        self.settings: list[dict] = []

    def forward(self, ids: Tensor, caches: list | None = None, last_only: bool = False, **settings: object) -> Tensor:
        self.fed.append(ids[0].tolist())
        self.starts.append(caches[0].length if caches else -1)
        self.settings.append({"last_only": last_only, **settings})
        everything = ids[0].double()
        for cache in caches or ():
            self.capacities.add(cache.capacity)
            k = ids[:, None, :, None].to(self.weight.dtype)
            k = k.expand(1, self.config.num_key_value_heads, ids.shape[1], self.config.head_dim)
            everything = cache.update(k, k)[0][0, 0, :, 0].double()
            self.dtypes.add(cache.update(k[:, :, :0], k[:, :, :0])[0].dtype)
        logits = torch.zeros(1, 1 if last_only else ids.shape[1], self.config.vocab_size, dtype=self.weight.dtype)
        logits[0, -1, int(everything.sum()) % self.config.vocab_size] = 9.0
        return logits


def adder_answer(prompt: list[int], n: int) -> list[int]:
    ids = list(prompt)
    for _ in range(n):
        ids.append(sum(ids) % 97)
    return ids[len(prompt) :]
