"""Small GGUF files, and wheels that carry them, for the tests of conversion and fetching."""

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

from shared.model.config import ModelConfig
from shared.model.fetch import Source
from shared.model.transformer import Transformer
from tests.tiny import TINY, tiny_model

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["a b", "Ġ ab", "2 0", "20 20"]
TOKENS = [*SPECIAL, *map(chr, range(33, 127)), "Ġ", "Ċ", "ab", "Ġab", "20", "2020"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ' ' + m['content'] + '<|im_end|>' }}{% endfor %}"
CONFIG = dataclasses.replace(TINY, vocab_size=len(TOKENS), rms_norm_eps=1e-5, rope_theta=1000.0)
NAMES = {  # Hugging Face's names and llama.cpp's, written down once more
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(
        name, "output.weight"
    )


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + half of every head, side by side: what llama.cpp wants of q and k."""
    out = np.empty_like(weight)
    size = len(weight) // heads
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + size // 2 + i]
    return out


def tiny_tensors(model: Transformer) -> dict[str, np.ndarray]:
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    tensors = {}
    for name, weight in model.state_dict().items():
        kind = name.split(".")[-2]
        rows = weight.float().numpy()
        tensors[gguf_name(name)] = interleave(rows, heads[kind]) if kind in heads else rows
    return tensors


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray | tuple[np.ndarray, GGMLQuantizationType]],
    config: ModelConfig = CONFIG,
    tokens: list[str] = TOKENS,
    merges: list[str] = MERGES,
    types: list[int] | None = None,
    bos: int = 1,
    **changes: str,
) -> Path:
    """A GGUF file with these tensors, plain float32 or already quantised. `changes`: architecture, pre."""
    writer = GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds if types is None else types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in tensors.items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path) -> tuple[Source, Path]:
    """A wheel with a tiny model, and the Source that describes it."""
    gguf = write_gguf(folder / "tiny.gguf", tiny_tensors(tiny_model(config=CONFIG)))
    wheel = folder / "tiny_no_such_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        about = "tiny_no_such_package-1.0.dist-info"
        archive.writestr(f"{about}/LICENSE", "do as you like")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-no-such-package\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    gguf.unlink()
    source = Source(
        name="Tiny",
        package="tiny-no-such-package",
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf="tiny/tiny.gguf",
        needed=1_000_000,
        generation={"do_sample": True, "temperature": 0.5, "top_p": 0.25},
        readme="A tiny model.\n",
    )
    return source, wheel
