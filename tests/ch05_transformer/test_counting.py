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
    vocab_size=13, hidden_size=4, intermediate_size=8, num_hidden_layers=1, num_attention_heads=3,
    num_key_value_heads=1, head_dim=2, tie_word_embeddings=True,
)  # fmt: skip
CONFIGS = {
    "grouped": TINY,
    "untied, every head with its own key": dataclasses.replace(TINY, tie_word_embeddings=False, num_key_value_heads=6),
    "with biases": dataclasses.replace(TINY, attention_bias=True, attention_output_bias=True),
    "heads wider than dim / heads": dataclasses.replace(TINY, head_dim=20, num_key_value_heads=1),
}


def counted(config: ModelConfig, length: int) -> int:
    """Floating-point operations of a whole pass over `length` tokens, which compares each with all."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(config)(torch.zeros(1, length, dtype=torch.long))
    return counter.get_total_flops()


# 5.9 flops_per_token


BY_HAND = 544
COUNTS = {
    "these are the multiplications; each comes with an addition, so it is twice that": 272,
    "the head is missing: tied or not, it multiplies by the whole table": 440,
    "the embedding was counted as a product; it looks a row up": 648,
    "k and v were counted as wide as q; they have kv_heads * head_dim rows": 608,
    "k and v were left out": 512,
    "the scores or the mean of the values is missing: each costs context * head_dim for every query head": 484,
    "scores and mean were counted for the key heads alone; every query head computes its own": 464,
    "attention itself is missing: context * width for the scores, and as much for the mean of the values": 424,
    "one of gate, up and down is missing": 480,
    "this is twice the parameters: norms multiply no matrix, and attention's scores are missing": 448,
    "norms were counted; they multiply no matrix": 568,
    "hidden_size was taken for the width of all heads, which is heads * head_dim": 472,
    "hidden_size / heads was taken for head_dim, which the config says by itself": 456,
}


@exercise("5.9")
def test_by_hand():
    got = flops_per_token(SMALL, context=5)
    cause = next((f"likely: {cause}. " for cause, count in COUNTS.items() if count == got), "")
    expect_equal(
        got,
        BY_HAND,
        because=f"{cause}Multiplications: q and o 48, k and v 16, gate, up and down 96, the head 52, scores and mean "
        "60; twice their sum is 544",
    )


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
        392,
        because="one more layer adds what a layer costs, 392 here; the head is there once, outside the layers",
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
    because = f"torch's FlopCounterMode counts otherwise for {length} tokens, {name}. "
    if CONFIGS[name].attention_bias:
        because += "A bias is added, and multiplies nothing"
    else:
        because += "The width of all heads is heads * head_dim, which need not be hidden_size"
    expect_close(
        length * flops_per_token(CONFIGS[name], length), counted(CONFIGS[name], length), rtol=0, because=because
    )
