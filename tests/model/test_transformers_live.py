"""Directories that transformers writes, loaded here: other shapes and settings than the default model's."""

import json

import pytest
import torch
from safetensors.torch import save_file

from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from shared.model.weights import load_model
from tests.model import variants
from tests.model.make_oracle import transformers_logits

transformers = pytest.importorskip("transformers", reason="needs the [dev] extra")

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 500.0}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
        ("Llama", {"num_key_value_heads": 1, "head_dim": 24, "rms_norm_eps": 1e-3}),
        ("Llama", {"rope_parameters": LLAMA3}),
        ("Llama", {"attention_bias": True}),
        ("Mistral", {"sliding_window": None, "num_key_value_heads": 2}),
        ("Qwen2", {"num_key_value_heads": 2}),
        ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1, "sliding_window": 4}),
        ("Qwen3", {"num_key_value_heads": 2, "head_dim": 24}),
        ("Qwen3", {"num_key_value_heads": 4, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ],
)
@pytest.mark.parametrize("shard", ["10MB", "50KB"])
def test_random_model(tmp_path, family, settings, shard):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 112}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4}
    config = getattr(transformers, f"{family}Config")(**sizes, initializer_range=0.2, **settings)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval().double()
    for name, weight in theirs.named_parameters():
        if weight.dim() == 1:  # new biases are 0 and new norms 1, and neither would be missed
            torch.nn.init.uniform_(weight.data, 0.5 if "norm" in name else -0.5, 1.5 if "norm" in name else 0.5)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "50KB")
    ours = load_model(tmp_path, dtype=torch.float64)
    ids = torch.randint(97, (2, 150))
    with torch.no_grad():
        want = theirs(ids).logits
    assert want.std() > 0.1
    torch.testing.assert_close(ours(ids), want, rtol=0, atol=1e-4)  # theirs computes angles in float32


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_the_stored_logits_are_theirs(name):
    want = transformers_logits(variants.VARIANTS[name])
    assert abs(variants.stored(name) - want).max() < 1e-4  # another version may round otherwise


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_they_read_the_config_we_write(tmp_path, name):
    """A directory written by us, loaded by transformers: the same logits."""
    config = ModelConfig.from_hf(variants.VARIANTS[name])
    ours = variants.fill(Transformer(config))
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    save_file(ours.state_dict(), str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(variants.ids()).logits, ours(variants.ids()), rtol=0, atol=1e-4)
