"""A model's shape, read from the `config.json` that Hugging Face puts beside the weights."""

import reprlib
from dataclasses import asdict, dataclass, fields
from typing import Any

# Far above any real model's; beyond them, building the layers would not end, or a size would not fit 64 bits.
MOST_LAYERS = 1000
LARGEST_SIZE = 2**24
LARGEST_NUMBER = 1e30  # float32 ends at 3e38, and is multiplied

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

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(f"rope scaling's {field.name}", getattr(self, field.name))
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"config: rope scaling's high_freq_factor ({self.high_freq_factor}) must be above its "
                f"low_freq_factor ({self.low_freq_factor})"
            )


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
            _check_size(name, getattr(self, name))
        if self.num_attention_heads * self.head_dim > LARGEST_SIZE:
            raise ValueError(f"config: num_attention_heads times head_dim is more than {LARGEST_SIZE}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"config: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads}): each key head serves a whole group of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"config: head_dim must be even, not {self.head_dim}: the rotary embedding turns pairs")
        _check_number("rms_norm_eps", self.rms_norm_eps)
        _check_number("rope_theta", self.rope_theta)
        for name in ("tie_word_embeddings", "attention_bias", "attention_output_bias", "qk_norm"):
            _check_flag(name, getattr(self, name))

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelConfig":
        """Read a Hugging Face `config.json`, already parsed: Llama, Mistral, Qwen2 or Qwen3.

        Raises ValueError, naming the field, for a model this code would compute wrongly: another family, another
        activation, biases in the feed-forward block, a sliding window, an unknown kind of rope scaling.
        """
        family = config.get("model_type", "llama")
        if not isinstance(family, str) or family not in MODEL_TYPES:
            raise ValueError(
                f"config: model_type {reprlib.repr(family)} is not of the Llama family ({', '.join(MODEL_TYPES)})"
            )
        required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        if missing := [name for name in required if name not in config]:
            raise ValueError(f"config: {', '.join(missing)} missing; a {family} config.json has them")
        for name in required:
            _check_size(name, config[name])
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"):
            _check_flag(name, config.get(name) or False)
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


def _check_size(name: str, value: Any) -> None:
    most = MOST_LAYERS if name == "num_hidden_layers" else LARGEST_SIZE
    if type(value) is not int or not 1 <= value <= most:
        wanted = f"a whole number of at least 1 and at most {most}"
        raise ValueError(f"config: {name} must be {wanted}, not {reprlib.repr(value)}")


def _check_number(name: str, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value <= LARGEST_NUMBER:  # nan is neither
        raise ValueError(f"config: {name} must be a number above 0 (and finite), not {reprlib.repr(value)}")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"config: {name} must be true or false, not {reprlib.repr(value)}")


def _refuse_what_we_cannot_compute(config: dict[str, Any]) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(
            f"config: hidden_act {reprlib.repr(config['hidden_act'])} is not supported; SwiGLU needs 'silu'"
        )
    if config.get("mlp_bias"):
        raise ValueError("config: mlp_bias is true, and the feed-forward block here has no biases")
    if _slides(config):
        raise ValueError("config: sliding_window is in use, and attention here always sees the whole context")
    if config.get("quantization_config"):
        raise ValueError("config: quantization_config is set; only weights stored as plain numbers can be loaded")


def _slides(config: dict[str, Any]) -> bool:
    """Whether any layer sees less than the whole context. Qwen's files name a window, and mostly don't use it."""
    if layers := config.get("layer_types"):
        if not isinstance(layers, list):
            raise ValueError(f"config: layer_types must be a list, not {reprlib.repr(layers)}")
        return any(kind != "full_attention" for kind in layers)
    if not config.get("sliding_window"):
        return False
    if config.get("model_type") in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)  # the layers below it never slide
        if type(first) is not int:
            raise ValueError(f"config: max_window_layers must be a whole number, not {reprlib.repr(first)}")
        return bool(config.get("use_sliding_window")) and first < config["num_hidden_layers"]
    return True


def _rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Where the rotary settings stand depends on the version of transformers that wrote the file."""
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    for name, rope in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise ValueError(f"config: {name} must be an object with a rope_type, not {reprlib.repr(rope)}")
        if "factor" in rope and not {"rope_type", "type"} & rope.keys():
            raise ValueError(f"config: {name} has a factor and no rope_type; nobody knows what to stretch")
    if new and old and new != old:
        raise ValueError("config: rope_parameters and rope_scaling say different things; keep the one that is meant")
    rope = new or old
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("config: partial_rotary_factor is not 1, and rope here turns whole heads")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"config: rope_type {reprlib.repr(kind)} is not supported, only 'default' and 'llama3'")
    names = [field.name for field in fields(RopeScaling)]
    if missing := [name for name in names if name not in rope]:
        raise ValueError(f"config: rope scaling of type 'llama3' lacks {', '.join(missing)}")
    return theta, RopeScaling(**{name: rope[name] for name in names})
