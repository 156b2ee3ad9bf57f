"""From one GGUF file to a model directory: config.json, model.safetensors, and the tokenizer's files.

GGUF is llama.cpp's format: everything in one file, the weights usually quantised. This module reads it with the `gguf`
package, turns every weight back into float32 (see dequantize.py), and writes what every other tool reads.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from gguf import GGUFReader, ReaderTensor
from tokenizers import decoders, models, pre_tokenizers

from shared.model.config import ModelConfig
from shared.model.dequantize import dequantize
from shared.model.tensor_file import build_header, shown
from shared.model.transformer import Transformer

NAMES = {  # GGUF's names for the weights, and Hugging Face's
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
REQUIRED = [f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id")]
CONTROL = 3  # GGUF's type of a special token
Shapes = dict[str, tuple[int, ...]]
Report = Callable[[int, int], None]  # bytes written, bytes in all


class GGUFError(ValueError):
    """A GGUF file that cannot be read, or that would be converted wrongly."""


def convert(source: Path, out: Path, report: Report = lambda done, total: None) -> None:
    """Write the model in the GGUF file `source` into the existing directory `out`.

    Weights become float32. A quantised weight is `scale * level + offset`, which half precision would round a second
    time; and the CPU computes in float32, so the file can be mapped into memory as it is. Raises GGUFError.
    """
    with _errors_of(source, "is not a readable GGUF file"):
        reader = GGUFReader(source)
    with _errors_of(source, "cannot be converted"):  # everything but the weights, before anything is written
        meta = {name: field.contents() for name, field in reader.fields.items()}
        if (family := meta.get("general.architecture")) != "llama":
            raise GGUFError(f"architecture {shown(family)} is not 'llama'")
        if missing := [name for name in REQUIRED if name not in meta]:
            raise GGUFError(f"no {missing[0]}")
        tokenizer = tokenizer_json(meta)
        settings = tokenizer_config(meta)
        tensors: dict[str, ReaderTensor] = {}
        for tensor in reader.tensors:
            if (name := hf_name(tensor.name)) in tensors:
                raise GGUFError(f"tensor {shown(tensor.name)} is there twice")
            tensors[name] = tensor
        config = hf_config(meta, tied="lm_head.weight" not in tensors)
        shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in tensors.items()}
        check_shapes(config, shapes)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def weights() -> Iterable[np.ndarray]:
        for name, tensor in tensors.items():
            with _errors_of(source, f"cannot be converted: {tensor.name} is stored as {tensor.tensor_type.name}"):
                weight = dequantize(tensor.data, tensor.tensor_type).reshape(shapes[name])
            rotated = heads.get(name.split(".")[-2])
            yield weight if rotated is None else unpermute(weight, rotated)

    try:
        write_safetensors(out / "model.safetensors", shapes, weights(), report)
    except BaseException:
        (out / "model.safetensors").unlink(missing_ok=True)
        raise
    _write_json(out / "config.json", config)
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(out / "tokenizer_config.json", settings)


@contextmanager
def _errors_of(source: Path, what: str) -> Iterator[None]:
    """The packages raise whatever a damaged file leads them to; the reader gets one kind, with the file's name."""
    try:
        yield
    except Exception as error:
        raise GGUFError(f"{source} {what}: {str(error) or type(error).__name__}") from error


def check_shapes(config: dict[str, Any], shapes: Shapes) -> None:
    """Raise ValueError unless the tensors, by Hugging Face's names, are those of the model that `config` describes."""
    with torch.device("meta"):  # shapes and names, no memory
        state = Transformer(ModelConfig.from_hf(config)).state_dict()
    if missing := sorted(state.keys() - shapes.keys()):
        raise GGUFError(f"{missing[0]} missing, and {len(missing) - 1} more")
    for name, shape in shapes.items():
        if name not in state:
            raise GGUFError(f"{name} has no place in a model of {config['num_hidden_layers']} layers")
        if shape != (wanted := tuple(state[name].shape)):
            raise GGUFError(f"{name} is {list(shape)}, and the metadata make it {list(wanted)}")


def hf_name(name: str) -> str:
    """Hugging Face's name for a weight.

    >>> hf_name("blk.7.attn_q.weight")
    'model.layers.7.self_attn.q_proj.weight'
    """
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    if match is None or match[2] not in NAMES:
        raise GGUFError(f"tensor {shown(name)} has no place in a Llama model; its weights would be lost")
    layer, kind = match.groups()
    return (f"model.layers.{layer}." if layer else "") + f"{NAMES[kind]}.weight"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k. weight: [heads * head_dim, dim].

    Rotary embedding turns pairs of rows. llama.cpp stores the two rows of a pair side by side (0 1 2 3 is two pairs),
    Hugging Face half a head apart (0 2 1 3). The products of q and k are the same; mixing the two is silent nonsense.

    >>> unpermute(np.array([[0], [1], [2], [3]]), heads=1).ravel()
    array([0, 2, 1, 3])
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])  # [heads, head_dim / 2, 2, dim]
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def hf_config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    """The config.json that belongs to a GGUF file's metadata."""

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"llama.{key}", default)
        if value is None:
            raise GGUFError(f"the GGUF file has no llama.{key}")
        return value

    if (scaling := meta.get("llama.rope.scaling.type", "none")) != "none":
        raise GGUFError(f"llama.rope.scaling.type {shown(scaling)} cannot be converted")
    heads = get("attention.head_count")
    if type(heads) is not int or heads < 1:
        raise GGUFError(f"llama.attention.head_count must be a whole number of at least 1, not {shown(heads)}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("rope.dimension_count", get("embedding_length") // heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def tokenizer_json(meta: dict[str, Any]) -> tokenizers.Tokenizer:
    """The byte-level BPE tokenizer inside a GGUF file."""
    kind = (meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise GGUFError(f"tokenizer {kind} is not known here; GGUF names the rule that splits text but doesn't hold it")
    tokens = meta["tokenizer.ggml.tokens"]
    known = set(tokens)
    if len(known) < len(tokens):
        raise GGUFError("a token is in the vocabulary twice")
    types = meta["tokenizer.ggml.token_type"]
    if len(types) != len(tokens):
        raise GGUFError(f"{len(tokens)} tokens, and {len(types)} token types")
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= known:
            raise GGUFError(f"the merge {shown(' '.join(merge))} isn't of two tokens that make a third")
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # What "smollm" stands for: digits one by one, then GPT-2's pattern. Without the first, "½" and "  7" get other ids.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL])
    return tokenizer


def tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """The names of the special tokens and the chat template."""
    tokens = meta["tokenizer.ggml.tokens"]
    special = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in special.items()}
    for name, i in ids.items():
        if i is not None and not (type(i) is int and 0 <= i < len(tokens)):
            raise GGUFError(f"the {name} has the id {shown(i)}, and there are {len(tokens)} tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": meta.get("tokenizer.ggml.add_bos_token", False),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        **{name: tokens[i] for name, i in ids.items() if i is not None},
        "chat_template": meta.get("tokenizer.chat_template"),
    }


def write_safetensors(path: Path, shapes: Shapes, weights: Iterable[np.ndarray], report: Report) -> None:
    """Write float32 weights, which come in the order of `shapes`, so that only one of them at a time is in memory."""
    end = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    with path.open("wb") as file:
        file.write(build_header({name: ("F32", shape) for name, shape in shapes.items()}))
        written = 0
        for name, weight in zip(shapes, weights, strict=True):
            if weight.shape != shapes[name]:
                raise GGUFError(f"{name} has shape {weight.shape}, not {shapes[name]}")
            file.write(np.ascontiguousarray(weight, dtype="<f4").data)
            written += weight.size * 4
            report(written, end)


def _shortest(x: float) -> float:
    """GGUF stores float32: 9.999999747378752e-06 is how float64 spells the float32 nearest to 1e-05."""
    return float(str(np.float32(x)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
