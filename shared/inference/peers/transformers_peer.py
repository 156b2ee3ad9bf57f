"""transformers: `generate` on static batches, padded on the left, with its own cache."""

import sys
from collections.abc import Callable
from pathlib import Path

from shared.inference.peers.rates import Answer, Told, sorted_batches
from shared.measure.trace import Trace


def without_torchvision() -> None:
    """Make transformers see no torchvision: text needs none, and one built for another torch breaks every import."""
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]


def load(model_dir: Path, work_dir: Path, threads: int, variant: str, say: Callable[[str], None]) -> Answer:
    """Load the model as it is. variant: a torch dtype's name. Raises ImportError where transformers is missing."""
    without_torchvision()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    dtype = getattr(torch, variant)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None  # every stack goes on past it
    pad = model.generation_config.pad_token_id or 0

    @torch.inference_mode()
    def answer(requests: Trace, told: Told) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in requests]
        for batch in sorted_batches(requests):
            prompts = [list(requests[i].prompt_ids) for i in batch]
            longest = max(map(len, prompts))
            ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])  # [batch, longest]
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
            most = max(requests[i].max_new_tokens for i in batch)
            out = model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False, use_cache=True)
            for i, row in zip(batch, out[:, longest:].tolist(), strict=True):
                answers[i] = row[: requests[i].max_new_tokens]
                told(len(answers[i]))
        return answers

    return answer
