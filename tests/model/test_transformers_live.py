"""Directories that transformers writes, loaded here: other shapes and settings than the default model's."""

import pytest
import torch

from shared.model.weights import load_model

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
        ("Mistral", {"sliding_window": None, "num_key_value_heads": 2}),
    ],
)
@pytest.mark.parametrize("shard", ["10MB", "50KB"])
def test_random_model(tmp_path, family, settings, shard):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 112}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4}
    config = getattr(transformers, f"{family}Config")(**sizes, initializer_range=0.2, **settings)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval().double()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "50KB")
    ours = load_model(tmp_path, dtype=torch.float64)
    ids = torch.randint(97, (2, 150))
    with torch.no_grad():
        want = theirs(ids).logits
    assert want.std() > 0.1
    torch.testing.assert_close(ours(ids), want, rtol=0, atol=1e-4)  # theirs computes angles in float32
