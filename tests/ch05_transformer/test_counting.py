"""Exercise 5.9: judged by torch's FlopCounterMode, which watches the products of a real forward pass."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from chapters.ch05_transformer.counting import flops_per_token
from chapters.judge import exercise, expect, expect_close, expect_equal
from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from tests.tiny import TINY

SMALL = ModelConfig(
    vocab_size=10, hidden_size=4, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=2, tie_word_embeddings=True,
)  # fmt: skip
CONFIGS = {
    "grouped": TINY,
    "untied, every head with its own key": dataclasses.replace(TINY, tie_word_embeddings=False, num_key_value_heads=6),
    "heads wider than dim / heads": dataclasses.replace(TINY, head_dim=20, num_key_value_heads=1),
}


def counted(config: ModelConfig, length: int) -> int:
    """Floating-point operations of a whole pass over `length` tokens, which compares each with all."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(config)(torch.zeros(1, length, dtype=torch.long))
    return counter.get_total_flops()


# 5.9 flops_per_token


@exercise("5.9")
def test_by_hand():
    got = flops_per_token(SMALL, context=3)
    causes = {
        208: "208 are the multiplications; each comes with an addition, so it is twice that",
        2 * 168: "the head is missing: tied or not, it multiplies by the whole table",
        2 * 248: "the embedding was counted as a product; it looks a row up",
        2 * 224: "k and v were counted as wide as q; they have kv_heads * head_dim rows",
        2 * 196: "the scores or the mean of the values is missing, or both were counted for the key heads alone: each "
        "costs context * head_dim for every query head",
        2 * 184: "attention itself is missing: context * width for the scores, and as much for the mean of the values",
        2 * 176: "one of gate, up and down is missing",
    }
    expect_equal(
        got,
        416,
        because=causes.get(got, "multiplications: q and o 32, k and v 16, gate, up and down 96, the head 40, scores "
                                "and mean 24; twice their sum is 416"),
    )  # fmt: skip


@exercise("5.9")
def test_it_is_a_whole_number():
    expect(
        isinstance(flops_per_token(SMALL, 1), int),
        because="operations are counted in whole numbers: no division anywhere",
    )


@exercise("5.9")
def test_layers_count_and_the_head_once():
    two = dataclasses.replace(SMALL, num_hidden_layers=2)
    expect_equal(
        flops_per_token(two, 3) - flops_per_token(SMALL, 3),
        336,
        because="one more layer adds what a layer costs, 336 here; the head is there once, outside the layers",
    )


@exercise("5.9")
def test_tied_or_not():
    untied = dataclasses.replace(SMALL, tie_word_embeddings=False)
    expect_equal(
        flops_per_token(untied, 3),
        flops_per_token(SMALL, 3),
        because="tying saves memory and no work: the head multiplies all the same",
    )


@exercise("5.9")
def test_context_makes_attention_dearer():
    expect_equal(
        flops_per_token(TINY, 101) - flops_per_token(TINY, 100),
        2 * 3 * 2 * 6 * 8,
        because="one more token to look at costs, in each of 3 layers, 6 query heads of 8 numbers for the score and as "
        "many for the mean. Grouped queries share keys, but every query head computes its own scores",
    )


@exercise("5.9")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [1, 12])
def test_equal_to_counting(name, length):
    expect_close(
        length * flops_per_token(CONFIGS[name], length),
        counted(CONFIGS[name], length),
        rtol=0,
        because=f"torch's FlopCounterMode counts otherwise for {length} tokens, {name}. The width of all heads is "
        "heads * head_dim, which need not be hidden_size",
    )
