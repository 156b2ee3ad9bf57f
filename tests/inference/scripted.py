"""A model that says what the test tells it to, at the pace the test allows, and a tokenizer of single bytes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.tiny import TINY

EOS = 256
SILENT = 257  # a special token that doesn't end the answer
VOCAB = 258


class ByteTokenizer:
    """Token i is byte i; then two special tokens."""

    eos_ids = frozenset({EOS})
    special_tokens = {"<eos>": EOS, "<silent>": SILENT}
    vocab_size = VOCAB

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b"<special>"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class ScriptedModel(nn.Module):
    """Answers every prompt (of fewer than 256 tokens, so that it comes in one piece) with `script`, then EOS for ever.

    `before_step`, when set, is called before each step with the number of tokens answered so far; it may wait or raise.
    """

    def __init__(self, script: Sequence[int] | str, context: int = 200) -> None:
        super().__init__()
        self.config = replace(TINY, vocab_size=VOCAB, max_position_embeddings=context)
        self.weight = nn.Parameter(torch.zeros(1))
        self.script = list(script.encode()) if isinstance(script, str) else list(script)
        self.before_step: Callable[[int], None] | None = None
        self.steps = 0
        self.prompts: list[list[int]] = []

    def forward(self, ids: Tensor, caches: list, last_only: bool) -> Tensor:
        if caches[0].length == 0:
            self.prompts.append(ids[0].tolist())
        done = caches[0].length + ids.shape[1] - len(self.prompts[-1])
        self.steps += 1
        if self.before_step is not None:
            self.before_step(done)
        for cache in caches:
            nothing = torch.zeros(1, self.config.num_key_value_heads, ids.shape[1], self.config.head_dim)
            cache.update(nothing, nothing)
        logits = torch.zeros(1, 1, VOCAB)
        logits[0, 0, self.script[done] if done < len(self.script) else EOS] = 100.0
        return logits


class Turnstile:
    """A `before_step` that lets the model make as many steps as the test has allowed. A test that forgets fails."""

    def __init__(self, open: int = 0) -> None:
        self._permits = threading.Semaphore(open)

    def __call__(self, done: int) -> None:
        if not self._permits.acquire(timeout=20):
            raise TimeoutError("the test let nobody through for 20 s")

    def allow(self, steps: int) -> None:
        self._permits.release(steps)
