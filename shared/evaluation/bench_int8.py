"""The int8 model against float32: how much worse it reads, how much faster it decodes, how much smaller it is."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.data.tokenizer import Tokenizer
from shared.evaluation.held_out import held_out_documents
from shared.evaluation.perplexity import beginning_id, perplexity
from shared.measure.memory import MB, current_memory_mb, free_unused_memory, peak_memory_mb, reset_peak
from shared.measure.progress import progress_bar
from shared.model.calibration import calibration_ids
from shared.model.fetch import ensure_model
from shared.model.int8 import memory_bytes, quantize_int8
from shared.model.transformer import Transformer
from shared.model.weights import load_model

TOKENS = 2048  # of held-out documentation
BATCH, CONTEXT = 8, 128


class StandingCache:
    """A layer's cache that forgets each new token again, so that one decode step can be timed many times."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.length = k.shape[2]
        self._k, self._v = (torch.cat((t, t[:, :, :1]), dim=2) for t in (k, v))  # room for one token more

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k, v: [batch, kv_heads, 1, head_dim]. Returns them behind what was there."""
        self._k[:, :, -1:], self._v[:, :, -1:] = k, v
        return self._k, self._v


def decode_seconds(models: dict[str, Transformer], rounds: int = 12, batch: int = BATCH) -> dict[str, float]:
    """The fastest decode step of each model: one token for each of `batch` sequences of CONTEXT tokens.

    The models take turns, so that whatever else the machine does meets all of them alike.
    """
    config = next(iter(models.values())).config
    generator = torch.Generator().manual_seed(0)
    shape = (batch, config.num_key_value_heads, CONTEXT, config.head_dim)
    caches = [
        StandingCache(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
        for _ in range(config.num_hidden_layers)
    ]
    ids = torch.randint(config.vocab_size, (batch, 1), generator=generator)
    best = dict.fromkeys(models, float("inf"))
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for name, model in models.items():
                start = time.perf_counter()
                model(ids, caches, last_only=True)
                if turn:  # the first is a warm-up
                    best[name] = min(best[name], time.perf_counter() - start)
    return best


def held_out_ids(tokenizer: Tokenizer, n: int = TOKENS) -> Tensor:
    """The first n tokens of held-out documentation, a beginning token before each document. [n]"""
    ids: list[int] = []
    for text in held_out_documents(100):
        ids += [beginning_id(tokenizer), *tokenizer.encode(text)]
        if len(ids) >= n:
            return torch.tensor(ids[:n])
    raise ValueError(f"only {len(ids)} tokens in 100 documents; {n} were asked for")


def process_memory(path: Path) -> dict[str, float]:
    """Load the model in `path` and quantise it, in a process of its own that keeps the int8 model alone.

    Returns what the process holds afterwards ("now") and held at most ("peak"), both over the float32 weights' bytes
    and without what it held before: Python, torch, tokenizer. Its int8 model is its own; no other process shares it.
    """
    command = [sys.executable, "-m", "shared.evaluation.bench_int8", str(path)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"quantising {path} failed; its message stands above")
    return dict(json.loads(child.stdout.splitlines()[-1]))


def _child(path: Path) -> None:
    ids = calibration_ids(Tokenizer.load(path).encode)
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum()  # what torch sets up at its first product isn't the model's
    before = current_memory_mb()
    reset_peak()
    model = load_model(path)
    weights_mb = memory_bytes(model) / MB
    model = quantize_int8(model, ids)
    peak = peak_memory_mb()
    free_unused_memory()
    now = current_memory_mb()
    print(json.dumps({"now": (now - before) / weights_mb, "peak": (peak - before) / weights_mb}))


def bench_int8(progress: bool = True) -> dict[str, Any]:
    """Targets: perplexity_ratio at most 1.04, decode8_speedup at least 1.8, memory_ratio about 4.

    perplexity_ratio: int8's perplexity over float32's, 2,048 tokens. decode8_speedup: of a step of batch 8 with 128
    tokens of context, the whole model, as many threads as torch has. memory_ratio: all parameters, norms and scales
    included, the tied table once. process_over_weights, process_peak_over_weights: see `process_memory`.
    """
    path = ensure_model()
    model = load_model(path)
    tokenizer = Tokenizer.load(path)
    ids = held_out_ids(tokenizer)
    with progress_bar("int8", 5, progress) as step:
        quantized = quantize_int8(model, calibration_ids(tokenizer.encode))
        step()
        seconds = decode_seconds({"fp32": model, "int8": quantized})
        step()
        whole = perplexity(model, ids)
        step()
        rounded = perplexity(quantized, ids)
        step()
        process = process_memory(path)
        step()
    return {
        "perplexity_ratio": round(rounded / whole, 4),
        "decode8_speedup": round(seconds["fp32"] / seconds["int8"], 2),
        "memory_ratio": round(memory_bytes(model) / memory_bytes(quantized), 2),
        "process_over_weights": round(process["now"], 3),
        "process_peak_over_weights": round(process["peak"], 3),
        "perplexity_fp32": round(whole, 3),
        "decode8_ms_fp32": round(seconds["fp32"] * 1000, 1),
        "decode8_ms_int8": round(seconds["int8"] * 1000, 1),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
