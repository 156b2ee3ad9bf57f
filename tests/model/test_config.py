"""What a config.json may say, and what is refused by name."""

import dataclasses
import json

import pytest

from shared.model.config import ModelConfig, RopeScaling

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_defaults_are_hugging_faces():
    config = ModelConfig.from_hf(LLAMA)
    assert config == ModelConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,  # no grouping unless the file says so
        head_dim=8,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
    )


def test_everything_said():
    said = {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    config = ModelConfig.from_hf(LLAMA | said | {"rope_theta": 5e5, "max_position_embeddings": 99})
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (2, 16, 1e-5)
    assert (config.tie_word_embeddings, config.rope_theta, config.max_position_embeddings) == (True, 5e5, 99)
    assert ModelConfig.from_hf(LLAMA | {"head_dim": None, "num_key_value_heads": None}).head_dim == 8


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},  # as newer versions of transformers write it
        {"rope_theta": 5e5, "rope_scaling": {k.replace("rope_", ""): v for k, v in LLAMA3.items()}},  # as old ones do
    ],
)
def test_rope_in_old_and_new_spelling(rope):
    config = ModelConfig.from_hf(LLAMA | rope)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


def test_default_rope_in_the_new_spelling():
    config = ModelConfig.from_hf(LLAMA | {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}})
    assert (config.rope_theta, config.rope_scaling) == (100000.0, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"sliding_window": 4096}, "sliding_window is in use"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, "rope_type 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "lacks low_freq_factor, high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(8\) must be a multiple of num_key_value_heads \(3\)"),
        ({"hidden_size": 60}, r"hidden_size \(60\) is not a multiple of num_attention_heads \(8\)"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1 .*, not 0"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0"),
        ({"rope_theta": -1.0}, "rope_theta must be a number above 0"),
        ({"model_type": ["llama"]}, r"model_type \['llama'\] is not of the Llama family"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number"),
        ({"num_attention_heads": "6"}, "num_attention_heads must be a whole number .*, not '6'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be a whole number"),
        ({"head_dim": 8.0}, "head_dim must be a whole number"),
        ({"head_dim": True}, "head_dim must be a whole number"),
        ({"vocab_size": 2**63}, "vocab_size must be a whole number of at least 1 and at most 16777216"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number of at least 1 and at most 1000"),
        ({"num_attention_heads": 2**12, "head_dim": 2**14}, "num_attention_heads times head_dim is more than"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps must be a number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta must be a number above 0"),
        ({"rope_theta": 10**400}, "rope_theta must be a number above 0"),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, "rope scaling's factor must be a number above 0"),
        ({"rope_scaling": LLAMA3 | {"factor": float("nan")}}, "rope scaling's factor must be a number above 0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": "1"}}, "rope scaling's low_freq_factor must be a number"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, r"high_freq_factor \(4.0\) must be above"),
        ({"rope_scaling": [8.0]}, "rope_scaling must be an object"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters must be an object"),
        ({"rope_scaling": {"factor": 4}}, "rope_scaling has a factor and no rope_type"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_parameters and rope_scaling say different things",
        ),
        ({"rope_parameters": {"rope_type": ["llama3"]}}, r"rope_type \['llama3'\]"),
        ({"layer_types": 5}, "layer_types must be a list, not 5"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, not 'false'"),
        ({"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ({"hidden_act": ["silu"] * 10**6}, r"hidden_act \['silu'.{,120}$"),
        ({"vocab_size": "1" * 10**6}, r"vocab_size .{,120}$"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf(LLAMA | change)


QWEN = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}


def test_biases_by_family():
    """Qwen2 has them on q, k and v without saying so; a Llama that has them has them on o too; Mistral has none."""

    def biases(config):
        read = ModelConfig.from_hf(config)
        return read.attention_bias, read.attention_output_bias

    assert biases(LLAMA) == (False, False)
    assert biases(LLAMA | {"attention_bias": True}) == (True, True)
    assert biases(QWEN) == (True, False)
    assert biases(QWEN | {"attention_bias": False}) == (True, False)
    assert biases(QWEN | {"model_type": "qwen3"}) == (False, False)
    assert biases(QWEN | {"model_type": "qwen3", "attention_bias": True}) == (True, True)
    assert biases(LLAMA | {"model_type": "mistral", "sliding_window": None, "attention_bias": True}) == (False, False)


def test_what_a_family_takes_for_granted():
    qwen3 = ModelConfig.from_hf(QWEN | {"model_type": "qwen3"})
    assert (qwen3.qk_norm, qwen3.head_dim, qwen3.max_position_embeddings) == (True, 128, 32768)
    assert not ModelConfig.from_hf(QWEN).qk_norm
    assert ModelConfig.from_hf(QWEN).head_dim == 8
    with pytest.raises(ValueError, match="sliding_window"):  # unless told otherwise, a Mistral slides
        ModelConfig.from_hf(LLAMA | {"model_type": "mistral"})


@pytest.mark.parametrize(
    ("said", "slides"),
    [
        ({"sliding_window": 4, "use_sliding_window": False}, False),
        ({"sliding_window": 4}, False),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}, True),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2}, False),  # layers 0 and 1 don't
        ({"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, True),
        ({"layer_types": ["full_attention", "full_attention"], "sliding_window": 4}, False),
    ],
)
def test_a_window_is_refused_when_it_is_used(said, slides):
    for family in ("qwen2", "qwen3"):
        if slides:
            with pytest.raises(ValueError, match="sliding_window is in use"):
                ModelConfig.from_hf(QWEN | {"model_type": family} | said)
        else:
            ModelConfig.from_hf(QWEN | {"model_type": family} | said)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        LLAMA | {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 6},
        LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3, "rms_norm_eps": 1e-5, "max_position_embeddings": 99},
        LLAMA | {"model_type": "mistral", "sliding_window": None},
        QWEN,
        QWEN | {"model_type": "qwen3", "attention_bias": True},
    ],
)
def test_written_and_read_back(config):
    read = ModelConfig.from_hf(config)
    assert ModelConfig.from_hf(json.loads(json.dumps(read.to_hf()))) == read


@pytest.mark.parametrize(
    "odd", [{"attention_output_bias": True}, {"qk_norm": True, "attention_bias": True}, {"qk_norm": 1}]
)
def test_a_model_that_no_family_describes_is_not_written(odd):
    with pytest.raises(ValueError, match=r"config: "):
        dataclasses.replace(ModelConfig.from_hf(LLAMA), **odd).to_hf()


def test_the_largest_models_are_within_the_bounds():
    """Llama 3.1 405B, with a context of ten million tokens and a vocabulary of a million."""
    large = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
    ModelConfig.from_hf(LLAMA | large | {"vocab_size": 10**6, "max_position_embeddings": 10 * 2**20})


def test_a_windows_first_layer_is_a_number():
    said = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": "1"}
    with pytest.raises(ValueError, match="max_window_layers must be a whole number, not '1'"):
        ModelConfig.from_hf(QWEN | said)


@pytest.mark.parametrize("field", [f for f in LLAMA if f != "model_type"])
def test_a_missing_size_is_named(field):
    with pytest.raises(ValueError, match=f"{field} missing"):
        ModelConfig.from_hf({k: v for k, v in LLAMA.items() if k != field})
