"""A tiny random model for tests that need the shapes of a real one and not its knowledge."""

import torch

from shared.model.config import ModelConfig
from shared.model.transformer import Transformer

TINY = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,  # a cache that is right at one layer can be wrong at two
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    rope_theta=1000.0,
    tie_word_embeddings=True,
)


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float64, config: ModelConfig = TINY) -> Transformer:
    """The same random model for the same seed; its weights are large enough for tokens to sway one another."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.copy_(torch.empty_like(weight).uniform_(0.5, 1.5, generator=generator))
            else:
                weight.copy_(torch.empty_like(weight).normal_(0, 2 / weight.shape[1] ** 0.5, generator=generator))
    return model.to(dtype).eval().requires_grad_(False)
