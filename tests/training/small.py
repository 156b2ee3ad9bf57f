"""A very small run for the tests of the trainer."""

import torch

from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from shared.training.trainer import Settings

CONFIG = ModelConfig(64, 32, 64, 2, 2, 1, 16, max_position_embeddings=64, tie_word_embeddings=True)
SETTINGS = Settings(steps=20, length=16, batch_size=4, micro_batch=2, warmup_steps=3, save_every=5, eval_every=10,
                    eval_windows=8)  # fmt: skip


def small_model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(CONFIG)


def small_stream(n: int = 3000, seed: int = 0) -> torch.Tensor:
    """Ids with something to learn in them: each is one more than one of the two before."""
    generator = torch.Generator().manual_seed(seed)
    ids = [1, 2]
    for back in torch.randint(2, (n,), generator=generator).tolist():
        ids.append((ids[-1 - back] + 1) % 64)
    return torch.tensor(ids, dtype=torch.int32)
