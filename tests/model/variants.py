"""Small models of every family the config can describe, and what Hugging Face's transformers says of each.

Their weights are drawn anew from a fixed seed wherever they are needed, so that only logits have to be stored.
`python -m tests.model.make_oracle` stores them; tests compare without transformers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

STORED = Path(__file__).parent / "oracle_variants.npz"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}  # fmt: skip
SIZES = {"vocab_size": 53, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "hidden_act": "silu"}  # fmt: skip
WINDOW = {"sliding_window": 4, "use_sliding_window": False}  # named, and not in use, as Qwen's own files have it

VARIANTS: dict[str, dict[str, Any]] = {  # name -> config.json
    name: SIZES | {"rope_theta": 1000.0} | config
    for name, config in {
        "llama": {"model_type": "llama"},
        "llama tied, one key head": {"model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 1},
        "llama, wide heads": {"model_type": "llama", "head_dim": 12, "num_key_value_heads": 4},
        "llama, biases": {"model_type": "llama", "attention_bias": True},
        "llama 3.1's rope": {"model_type": "llama", "rope_scaling": LLAMA3},
        "mistral": {"model_type": "mistral", "sliding_window": None},
        "qwen2": {"model_type": "qwen2", **WINDOW},
        "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True, **WINDOW},
        "qwen3": {"model_type": "qwen3", "head_dim": 12, **WINDOW},
        "qwen3 tied, biases": {
            "model_type": "qwen3",
            "head_dim": 8,
            "tie_word_embeddings": True,
            "attention_bias": True,
            **WINDOW,
        },  # fmt: skip
    }.items()
}


def ids() -> Tensor:
    """[2, 16]: long enough for llama 3.1's rope to reach past its original context."""
    return torch.from_numpy(np.random.RandomState(1).randint(0, SIZES["vocab_size"], size=(2, 16)))


def fill(model: nn.Module) -> nn.Module:
    """Give every parameter numbers that depend on its name's place alone; in float64, in eval mode."""
    draw = np.random.RandomState(0)  # the one generator whose stream NumPy promises never to change
    model.double().eval().requires_grad_(False)
    for name, weight in sorted(model.named_parameters()):
        numbers = draw.standard_normal(tuple(weight.shape)).astype(np.float32)
        if name.endswith("norm.weight"):
            numbers = 1 + 0.3 * numbers
        else:  # large enough for tokens to sway one another
            numbers = numbers * (1.5 / weight.shape[-1] ** 0.5 if weight.dim() == 2 else 0.5)
        weight.data.copy_(torch.from_numpy(numbers))
    return model


def stored(name: str) -> np.ndarray:
    """transformers' logits [2, 16, 53] for `ids()`."""
    return np.load(STORED)[name.replace(" ", "_")]
