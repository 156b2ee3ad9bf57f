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
    """Answers every prompt with `script`, then EOS for ever. It needs an engine without a prefix cache.

    `before_step`, when set, is called before each step with how many tokens each sequence of the step has been
    answered so far; it may wait or raise. The logits of prompts in `garbled` are no numbers.
    `prompts`: those it has read to the end; `batches`: how many tokens of each sequence were in each step; `now`: the
    prompts of the step's sequences.
    """

    def __init__(self, script: Sequence[int] | str, context: int = 200) -> None:
        super().__init__()
        self.config = replace(TINY, vocab_size=VOCAB, max_position_embeddings=context)
        self.weight = nn.Parameter(torch.zeros(1))
        self.script = list(script.encode()) if isinstance(script, str) else list(script)
        self.before_step: Callable[[list[int]], None] | None = None
        self.garbled: list[list[int]] = []
        self.steps = 0
        self.prompts: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.now: list[list[int]] = []
        self._reading: dict[int, list[int]] = {}  # first block of a sequence -> its prompt, as far as it has been read
        self._read: dict[int, list[int]] = {}  # first block -> the whole prompt

    def forward(self, ids: Tensor, caches: list, rows: Tensor, **others) -> Tensor:
        """ids: [1, tokens], the step's chunks one after the other. rows: [n]. Returns [1, n, vocab]."""
        chunks, flat, wanted = caches[0].step.chunks, ids[0].tolist(), set(rows.tolist())
        logits, done, end, self.now = [], [], 0, []
        for chunk in chunks:
            first, end = chunk.block_table[0], end + chunk.n
            if chunk.start == 0:
                self._reading[first] = []
            if first in self._reading:
                prompt = self._reading[first] = self._reading[first] + flat[end - chunk.n : end]
                if end - 1 in wanted:
                    self._read[first] = self._reading.pop(first)
                    self.prompts.append(prompt)
            prompt = self._reading.get(first) or self._read[first]
            self.now.append(prompt)
            done.append(chunk.end - len(prompt))
            if end - 1 in wanted:
                logits.append(self._logits(done[-1], prompt))
        self.steps += 1
        self.batches.append([chunk.n for chunk in chunks])
        if self.before_step is not None:
            self.before_step(done)
        return torch.stack(logits)[None] if logits else torch.zeros(1, 0, VOCAB)

    def _logits(self, done: int, prompt: list[int]) -> Tensor:
        logits = torch.zeros(VOCAB)
        logits[self.script[done] if done < len(self.script) else EOS] = 100.0
        return logits * float("nan") if prompt in self.garbled else logits


class Turnstile:
    """A `before_step` that lets the model make as many steps as the test has allowed. A test that forgets fails."""

    def __init__(self, open: int = 0) -> None:
        self._permits = threading.Semaphore(open)

    def __call__(self, done: object) -> None:
        if not self._permits.acquire(timeout=20):
            raise TimeoutError("the test let nobody through for 20 s")

    def allow(self, steps: int) -> None:
        self._permits.release(steps)
