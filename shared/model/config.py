"""A model's shape, read from the `config.json` that Hugging Face puts beside the weights."""

from dataclasses import dataclass
from typing import Any

MODEL_TYPES = ("llama", "mistral")  # the same layers; a Mistral is refused below when it slides its window


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

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read a Hugging Face Llama `config.json`, already parsed.

        Raises ValueError, naming the field, for a model this code would compute wrongly: another family, another
        activation, biases, a sliding window, an unknown kind of rope scaling.
        """
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        if missing := [name for name in required if name not in config]:
            raise ValueError(f"config: {', '.join(missing)} missing; a Llama config.json has them")
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
        return cls(
            **{name: config[name] for name in required},
            num_key_value_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=config.get("tie_word_embeddings", False),
        )


def _refuse_what_we_cannot_compute(config: dict[str, Any]) -> None:
    model_type = config.get("model_type", "llama")
    if model_type not in MODEL_TYPES:
        raise ValueError(f"config: model_type {model_type!r} is not of the Llama family ({', '.join(MODEL_TYPES)})")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"config: hidden_act {config['hidden_act']!r} is not supported; SwiGLU needs 'silu'")
    for field in ("attention_bias", "mlp_bias"):
        if config.get(field):
            raise ValueError(f"config: {field} is true, and the layers here have no biases")
    if config.get("sliding_window"):
        raise ValueError("config: sliding_window is set, and attention here always sees the whole context")
    if config.get("quantization_config"):
        raise ValueError("config: quantization_config is set; only weights stored as plain numbers can be loaded")


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
