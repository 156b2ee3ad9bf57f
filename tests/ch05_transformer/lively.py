"""The reader's model with weights that matter, and what rejects its logits."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chapters.ch05_transformer import transformer
from chapters.judge import crash_means, expect, expect_close, expect_equal
from shared.model.config import ModelConfig
from tests.tiny import TINY

CONFIG = dataclasses.replace(TINY, num_hidden_layers=2)  # a cache that is right at one layer can be wrong at two
EARLIER = "if 5.1 to 5.7 pass, look at how the steps follow one another: embed, layers, final norm, head"


def model(config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The reader's, with weights large enough for tokens to sway one another, and norms that aren't 1."""
    torch.manual_seed(0)
    built = transformer.Transformer(config)
    for weight in built.parameters():
        if weight.dim() == 1:
            nn.init.uniform_(weight, 0.5, 1.5)
        else:
            nn.init.normal_(weight, std=2 / weight.shape[1] ** 0.5)
    return built.to(dtype).eval().requires_grad_(False)


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(CONFIG.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))


def judge(got: Tensor, want: Tensor, wrong: Sequence[tuple[str, Tensor]], because: str) -> None:
    """Reject `got` by the mistake that gives exactly these numbers, where there is one; by `because` otherwise."""
    for cause, numbers in wrong:
        if isinstance(got, Tensor) and got.shape == numbers.shape:
            expect(not torch.allclose(got.double(), numbers, rtol=1e-4, atol=1e-4), because=cause)
    expect_close(got, want, rtol=1e-4, atol=1e-4, because=because)  # the mistakes are off by 0.01 and more


def with_caches(built: nn.Module, part: Tensor, caches: list, **how: bool) -> Tensor:
    """The reader's logits, or the likely cause why they stopped."""
    new, old = part.shape[1], caches[0].length
    with crash_means(
        f"{new} new tokens after {old} in the caches: the mask is [new, all] = [{new}, {old + new}], and each layer "
        "has its own cache, caches[i]"
    ):
        return built(part, caches, **how)


def expect_spared_head(asked: str, value: object) -> None:
    """`value` for the argument `asked` picks one position; the head must be multiplied by that one alone."""
    rows = []
    real, built = transformer.linear, model()
    head = built.model.embed_tokens.weight

    def spy(x, w):
        rows.extend([x.shape[:-1].numel()] if w is head else [])
        return real(x, w)

    transformer.linear = spy
    try:
        built(ids(2, 6), **{asked: value})
    finally:
        transformer.linear = real
    expect(
        rows,
        because="the head is multiplied by the function `linear`, not by F.linear or @: in chapter 8 its weight may be "
        "packed",
    )
    expect_equal(
        rows,
        [2],
        because=f"with {asked} the head is one call of `linear` on the chosen positions, 2 rows here: cutting after "
        "the head computes all 12 and throws 10 away, and the head is the largest product of all",
    )
