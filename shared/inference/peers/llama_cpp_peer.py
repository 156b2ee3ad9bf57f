"""llama.cpp: continuous batching over eight slots as its server does it, in the library's own calls.

Every turn is one batch: the next token of each slot that generates, and the prompts of those that have just begun.
"""

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.inference.peers.converted import converted
from shared.inference.peers.rates import Answer, Told
from shared.measure.trace import Trace, TraceRequest

SLOTS = 8
BATCH = 2048  # tokens in one call: the server's own default
CONTEXT = 1024  # tokens of each slot, at least


@dataclass
class Slot:
    """A request at work. read: how many tokens of its prompt have been computed."""

    request: TraceRequest
    tokens: list[int] = field(default_factory=list)
    read: int = 0


class LlamaCpp:
    """A model, one batch for all calls, and a context that is made anew only for longer requests."""

    def __init__(self, library: Any, file: Path, threads: int) -> None:
        self.llama, self.threads = library, threads
        library.llama_backend_init()
        self.model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp can't load {file}")
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        self.batch = library.llama_batch_init(BATCH, 0, 1)
        self.context, self.length = None, 0
        self.make_context(CONTEXT)

    def make_context(self, length: int) -> None:
        """Take room for SLOTS requests of `length` tokens, and give back the old. Raises ValueError without memory."""
        if self.context:
            self.llama.llama_free(self.context)
        params = self.llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_batch = SLOTS * length, SLOTS, BATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.kv_unified = True  # one cache for all slots, as its server has: a fifth faster than one for each
        self.context, self.length = self.llama.llama_init_from_model(self.model, params), length
        if not self.context:
            raise ValueError(f"llama.cpp can't make a context of {SLOTS} times {length} tokens")

    def answer(self, requests: Trace, told: Told) -> list[list[int]]:
        """An `Answer` of rates.py: greedy, end tokens ignored."""
        longest = max(len(r.prompt_ids) + r.max_new_tokens for r in requests)
        if longest > self.length:
            self.make_context(longest)
        work = [Slot(request) for request in requests]
        waiting, running = deque(work), dict[int, Slot]()
        while waiting or running:
            for number in range(SLOTS):
                if number not in running and waiting:
                    running[number] = waiting.popleft()
            for number, token in self.turn(running).items():
                slot = running[number]
                slot.tokens.append(token)
                told(1)
                if len(slot.tokens) == slot.request.max_new_tokens:
                    self.llama.llama_memory_seq_rm(self.llama.llama_get_memory(self.context), number, -1, -1)
                    del running[number]
        return [slot.tokens for slot in work]

    def turn(self, running: dict[int, Slot]) -> dict[int, int]:
        """Compute one batch. Returns the next token of each slot whose prompt is read."""
        import numpy as np

        self.batch.n_tokens = 0
        places = {}  # slot -> the place of its last token in the batch
        for number, slot in sorted(running.items(), key=lambda item: not item[1].tokens):  # decodes first
            prompt = slot.request.prompt_ids
            if slot.tokens:
                places[number] = self.add(slot.tokens[-1], len(prompt) + len(slot.tokens) - 1, number, wanted=True)
            while slot.read < len(prompt) and self.batch.n_tokens < BATCH:
                last = slot.read == len(prompt) - 1
                place = self.add(prompt[slot.read], slot.read, number, wanted=last)
                slot.read += 1
                if last:
                    places[number] = place
        if failure := self.llama.llama_decode(self.context, self.batch):
            raise ValueError(f"llama_decode returned {failure}")
        tokens = {}
        for number, place in places.items():
            logits = self.llama.llama_get_logits_ith(self.context, place)
            tokens[number] = int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())
        return tokens

    def add(self, token: int, position: int, slot: int, wanted: bool) -> int:
        """Put a token into the batch. wanted: whether its logits are. Returns its place."""
        batch, place = self.batch, int(self.batch.n_tokens)
        batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, slot
        batch.n_tokens = place + 1
        return place


def load(model_dir: Path, work_dir: Path, threads: int, variant: str, say: Callable[[str], None]) -> Answer:
    """Convert the model once and load it. variant: "F32", or a format of llama.cpp's. Raises ImportError without it."""
    import llama_cpp

    from shared.inference.peers.to_gguf import write_gguf

    file = converted(work_dir / "F32.gguf", lambda path: write_gguf(model_dir, path), say)
    if variant != "F32":
        whole = file
        file = converted(work_dir / f"{variant}.gguf", lambda path: quantize(llama_cpp, whole, path, variant), say)
    return LlamaCpp(llama_cpp, file, threads).answer


def quantize(library: Any, source: Path, target: Path, variant: str) -> None:
    """Write the model in one of llama.cpp's own formats."""
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{variant}")
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise ValueError(f"llama.cpp can't write {variant}")
