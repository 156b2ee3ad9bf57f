"""A model and a tokenizer whose every answer can be worked out with pen and paper."""

import time

import torch
from torch import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
VOCAB = len(LETTERS)  # 53, a prime: the favourites don't run into a short cycle


def favourite(ids: list[int]) -> int:
    """The token the fake model likes best after `ids`; it depends on every id and on where it stands."""
    return (sum((place + 1) * token for place, token in enumerate(ids)) * 7 + 5 * len(ids)) % VOCAB


def continuation(prompt: list[int], n: int) -> list[int]:
    """The n tokens that greedy generation must give."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(favourite(ids))
    return ids[len(prompt) :]


class FakeModel:
    """ids [1, length] -> logits [1, length, VOCAB]: row i likes the favourite after ids[: i + 1] best."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds  # that a call takes
        self.lengths: list[int] = []  # of the sequences it was called with, in order
        self.recorded: list[bool] = []  # whether torch took notes for gradients
        self.weight = torch.ones((), requires_grad=True)

    def __call__(self, ids: Tensor) -> Tensor:
        if ids.dim() != 2 or ids.shape[0] != 1:
            raise ValueError(f"the model takes ids of shape [1, length], got {list(ids.shape)}")
        self.lengths.append(ids.shape[1])
        time.sleep(self.seconds)
        row = ids[0].tolist()
        logits = torch.full((1, len(row), VOCAB), -1.0)
        for i in range(len(row)):
            best = favourite(row[: i + 1])
            logits[0, i, (best + 11) % VOCAB] = 0.5  # the runner-up
            logits[0, i, best] = 1.0
        logits = logits * self.weight
        self.recorded.append(logits.requires_grad)
        return logits


class FakeTokenizer:
    """One token a letter: a is 0, b is 1, … A is 26, …; a hyphen is no token."""

    def __init__(self, eos_ids: frozenset[int] = frozenset()) -> None:
        self.eos_ids = eos_ids

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text if letter != "-"]

    def decode(self, ids: list[int]) -> str:
        return "".join(LETTERS[i] for i in ids)
