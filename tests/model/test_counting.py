"""What the formulas say against what counting finds: a model's tensors, and torch's watch on its products."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from shared.inference.kv_cache import new_caches
from shared.model.config import ModelConfig
from shared.model.counting import flops_per_token, parameters
from shared.model.transformer import Transformer
from tests.model.variants import VARIANTS
from tests.tiny import TINY, tiny_model

SMOLLM2 = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
           "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
           "tie_word_embeddings": True}  # fmt: skip
QWEN25 = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
          "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
          "tie_word_embeddings": True}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_those_of_the_tensors(name):
    config = ModelConfig.from_hf(VARIANTS[name])
    with torch.device("meta"):
        sizes = {key: weight.numel() for key, weight in Transformer(config).named_parameters()}
    counted = dict.fromkeys(("embedding", "attention", "mlp", "norms", "head"), 0)
    for key, size in sizes.items():
        part = next((p for p, mark in (("norms", "norm"), ("attention", "self_attn"), ("mlp", "mlp."),
                                       ("embedding", "embed"), ("head", "lm_head")) if mark in key))  # fmt: skip
        counted[part] += size
    assert parameters(config) == counted


@pytest.mark.parametrize(("hf", "published"), [(SMOLLM2, 134_515_008), (QWEN25, 494_032_768)])
def test_parameters_as_published(hf, published):
    assert sum(parameters(ModelConfig.from_hf(hf)).values()) == published


@pytest.mark.parametrize(("held", "length"), [(0, 1), (0, 9), (20, 1), (20, 7)])
def test_flops_with_a_warm_cache(held, length):
    model = tiny_model(dtype=torch.float32)
    caches = new_caches(TINY, held + length)
    if held:
        model(torch.zeros(1, held, dtype=torch.long), caches)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.long), caches)
    assert counter.get_total_flops() == length * flops_per_token(TINY, held + length)
