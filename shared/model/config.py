"""A model's shape, read from the `config.json` that Hugging Face puts beside the weights."""

from dataclasses import asdict, dataclass
from typing import Any

# The families whose layers are these, and what transformers takes for a field that config.json leaves out.
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
}


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's way to stretch the rotary frequencies to a longer context (see `inverse_frequencies`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that fix a Llama-family model. Sizes are in elements, `rope_theta` in positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v (Qwen2, some Llamas)
    attention_output_bias: bool = False  # on o too (those Llamas)
    qk_norm: bool = False  # queries and keys normed, each head by itself, before they are turned (Qwen3)

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "num_key_value_heads", "head_dim", "max_position_embeddings")  # fmt: skip
        for name in sizes:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"config: {name} must be a whole number of at least 1, not {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"config: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads}): each key head serves a whole group of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"config: head_dim must be even, not {self.head_dim}: the rotary embedding turns pairs")
        for name in ("rms_norm_eps", "rope_theta"):
            if not isinstance(getattr(self, name), int | float) or getattr(self, name) <= 0:
                raise ValueError(f"config: {name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("tie_word_embeddings", "attention_bias", "attention_output_bias", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"config: {name} must be true or false, not {getattr(self, name)!r}")

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read a Hugging Face `config.json`, already parsed: Llama, Mistral, Qwen2 or Qwen3.

        Raises ValueError, naming the field, for a model this code would compute wrongly: another family, another
        activation, biases in the feed-forward block, a sliding window, an unknown kind of rope scaling.
        """
        family = config.get("model_type", "llama")
        if family not in MODEL_TYPES:
            raise ValueError(f"config: model_type {family!r} is not of the Llama family ({', '.join(MODEL_TYPES)})")
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        if missing := [name for name in required if name not in config]:
            raise ValueError(f"config: {', '.join(missing)} missing; a {family} config.json has them")
        config = MODEL_TYPES[family] | config
        _refuse_what_we_cannot_compute(config)
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim")
        if head_dim is None:
            if config["hidden_size"] % heads:
                raise ValueError(
                    f"config: hidden_size ({config['hidden_size']}) is not a multiple of num_attention_heads "
                    f"({heads}), and there is no head_dim that says otherwise"
                )
            head_dim = config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads")
        theta, scaling = _rope(config)
        all_biases = family in ("llama", "qwen3") and bool(config.get("attention_bias"))  # the others ignore the field
        return cls(
            **{name: config[name] for name in required},
            num_key_value_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=bool(config.get("tie_word_embeddings")),
            attention_bias=all_biases or family == "qwen2",
            attention_output_bias=all_biases,
            qk_norm=family == "qwen3",
        )

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` and transformers read back to the same model.

        Raises ValueError for a model that no family describes (biases on q, k, v alone together with qk_norm, say).
        """
        biases = (self.attention_bias, self.attention_output_bias)
        if self.qk_norm:
            family, name = "qwen3", "Qwen3ForCausalLM"
        elif biases == (True, False):
            family, name = "qwen2", "Qwen2ForCausalLM"
        else:
            family, name = "llama", "LlamaForCausalLM"
        if family != "qwen2" and biases[0] != biases[1]:
            alone = "q, k, v" if self.attention_bias else "o"
            raise ValueError(f"config: no family that transformers knows has biases on {alone} alone in such a layer")
        written = {"architectures": [name], "model_type": family, "hidden_act": "silu", "attention_bias": biases[0]}
        own = ("attention_bias", "attention_output_bias", "qk_norm", "rope_theta", "rope_scaling")
        written |= {field: value for field, value in asdict(self).items() if field not in own}
        scaling = {"rope_type": "llama3", **asdict(self.rope_scaling)} if self.rope_scaling else None
        return written | {"rope_theta": self.rope_theta, "rope_scaling": scaling}


def _refuse_what_we_cannot_compute(config: dict[str, Any]) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"config: hidden_act {config['hidden_act']!r} is not supported; SwiGLU needs 'silu'")
    if config.get("mlp_bias"):
        raise ValueError("config: mlp_bias is true, and the feed-forward block here has no biases")
    if _slides(config):
        raise ValueError("config: sliding_window is in use, and attention here always sees the whole context")
    if config.get("quantization_config"):
        raise ValueError("config: quantization_config is set; only weights stored as plain numbers can be loaded")


def _slides(config: dict[str, Any]) -> bool:
    """Whether any layer sees less than the whole context. Qwen's files name a window, and mostly don't use it."""
    if layers := config.get("layer_types"):
        return any(kind != "full_attention" for kind in layers)
    if not config.get("sliding_window"):
        return False
    if config.get("model_type") in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)  # the layers below it never slide
        return bool(config.get("use_sliding_window")) and first < config["num_hidden_layers"]
    return True


def _rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Where the rotary settings stand depends on the version of transformers that wrote the file."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("config: partial_rotary_factor is not 1, and rope here turns whole heads")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"config: rope_type {kind!r} is not supported, only 'default' and 'llama3'")
    fields = RopeScaling.__dataclass_fields__
    if missing := [name for name in fields if name not in rope]:
        raise ValueError(f"config: rope scaling of type 'llama3' lacks {', '.join(missing)}")
    return theta, RopeScaling(**{name: rope[name] for name in fields})
