"""A Llama-family folder as one GGUF file in float32, without a tokenizer: the benchmark speaks in ids."""

import json
from pathlib import Path
from typing import Any

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight. Raises KeyError for a tensor no Llama has."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(weight: Any, n_heads: int) -> Any:
    """Rows of q or k from Hugging Face's order, where a head's first half turns with its second, to llama.cpp's, where
    neighbours turn together. weight: [n_heads * head_dim, in]."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])  # [heads, half, head_dim / 2, in]
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model_dir: Path, file: Path) -> None:
    """Raises ValueError for rotary frequencies that are scaled: llama.cpp would need them too."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    if config.get("rope_scaling"):
        raise ValueError("scaled rotary frequencies (rope_scaling) aren't converted to GGUF here")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    for shard in sorted(model_dir.glob("*.safetensors")):
        with safe_open(shard, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                weight = tensors.get_tensor(name).astype(np.float32)
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    weight = interleaved(weight, heads if "q_proj" in name else kv_heads)
                writer.add_tensor(gguf_name(name), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
