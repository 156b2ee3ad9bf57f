"""GGUF files, written here tensor by tensor, against what the conversion makes of them."""

import dataclasses
import doctest
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file

from shared.model import gguf
from shared.model.gguf import GGUFError, convert, unpermute
from shared.model.weights import load_model
from tests.model.gguf_files import CONFIG, SPECIAL, TEMPLATE, TOKENS, tiny_tensors, write_gguf
from tests.tiny import tiny_model


def make(tmp_path, tensors, **settings):
    out = tmp_path / "out"
    out.mkdir()
    convert(write_gguf(tmp_path / "model.gguf", tensors, **settings), out)
    return out


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_model_comes_back(tmp_path, tied):
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(CONFIG, tie_word_embeddings=tied))
    loaded = load_model(make(tmp_path, tiny_tensors(model)))
    assert loaded.config == model.config
    assert {n: p.shape for n, p in loaded.state_dict().items()} == {n: p.shape for n, p in model.state_dict().items()}
    ids = torch.tensor([[1, 50, 20, 7, 99]])
    assert torch.equal(loaded(ids), model(ids))


def test_unpermute_gives_the_products_that_llama_cpp_computes():
    """llama.cpp turns rows 2i and 2i + 1 together, Hugging Face rows i and i + half: q . k must not differ."""
    rng = np.random.default_rng(0)
    heads, size, dim, theta = 3, 8, 10, 100.0
    stored_q, stored_k = rng.normal(size=(2, heads * size, dim))
    x, y = rng.normal(size=(2, dim))
    spin = theta ** (-np.arange(0, size, 2) / size)

    def llama_cpp(weight, vector, position):
        pairs = (weight @ vector).reshape(heads, size // 2, 2)
        return (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * spin)

    def hugging_face(weight, vector, position):
        rows = (unpermute(weight, heads) @ vector).reshape(heads, size)
        return (rows[:, : size // 2] + 1j * rows[:, size // 2 :]) * np.exp(1j * position * spin)

    def products(turn):
        return (turn(stored_q, x, 9) * turn(stored_k, y, 4).conj()).real.sum(axis=1)

    np.testing.assert_allclose(products(hugging_face), products(llama_cpp), rtol=1e-12)


def test_quantised_weights_by_hand(tmp_path):
    """Q8_0: a float16 scale and 32 signed bytes. Q4_1: scale, offset, 16 bytes of two levels, the low halves first."""
    config = dataclasses.replace(CONFIG, hidden_size=64, intermediate_size=96, num_hidden_layers=1)
    tensors = tiny_tensors(tiny_model(config=config))
    rng = np.random.default_rng(0)

    scales = rng.uniform(0.001, 0.1, (64, 3, 1)).astype(np.float16)
    levels = rng.integers(-127, 128, (64, 3, 32)).astype(np.int8)
    q8 = np.concatenate([scales.view(np.uint8), levels.view(np.uint8)], axis=-1).reshape(64, -1)
    tensors["blk.0.ffn_down.weight"] = (q8, GGMLQuantizationType.Q8_0)
    want8 = (scales.astype(np.float32) * levels).reshape(64, 96)

    both = rng.uniform(-0.1, 0.1, (96, 2, 2)).astype(np.float16)  # scale, offset
    nibbles = rng.integers(0, 16, (96, 2, 32)).astype(np.uint8)
    packed = nibbles[..., :16] | nibbles[..., 16:] << 4
    q4 = np.concatenate([both.view(np.uint8), packed], axis=-1).reshape(96, -1)
    tensors["blk.0.ffn_up.weight"] = (q4, GGMLQuantizationType.Q4_1)
    want4 = (both[..., :1].astype(np.float32) * nibbles + both[..., 1:].astype(np.float32)).reshape(96, 64)

    got = load_file(make(tmp_path, tensors, config=config) / "model.safetensors")
    np.testing.assert_array_equal(got["model.layers.0.mlp.down_proj.weight"], want8)
    np.testing.assert_array_equal(got["model.layers.0.mlp.up_proj.weight"], want4)
    assert {weight.dtype for weight in got.values()} == {np.dtype("float32")}


def test_the_other_files(tmp_path):
    out = make(tmp_path, tiny_tensors(tiny_model(config=CONFIG)))
    config = json.loads((out / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5  # and not the 9.999999747378752e-06 that float32 makes of it
    assert (config["architectures"], config["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert config["tie_word_embeddings"] is True
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["chat_template"]) == ("<|im_end|>", TEMPLATE)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(TOKENS)}
    assert tokenizer.encode("ab ab").tokens == ["ab", "Ġab"]
    assert tokenizer.encode("2020").tokens == ["2", "0", "2", "0"]  # although the merges could make one token of it
    assert tokenizer.encode("a<|im_end|>").ids == [TOKENS.index("a"), 2]
    assert {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special} == set(SPECIAL)


def test_progress_is_reported(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", tiny_tensors(tiny_model(config=CONFIG)))
    seen = []
    convert(file, tmp_path, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1] == 4 * sum(p.numel() for p in tiny_model(config=CONFIG).parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2' is not 'llama'"),
        ({"pre": "llama-bpe"}, "'llama-bpe'.* is not known here"),
    ],
)
def test_other_families_are_refused(tmp_path, settings, message):
    with pytest.raises(GGUFError, match=message):
        make(tmp_path, tiny_tensors(tiny_model(config=CONFIG)), **settings)


def changed(**changes):
    """The tiny model's config with sizes that no model has; ModelConfig itself would refuse them."""
    return types.SimpleNamespace(**(dataclasses.asdict(CONFIG) | changes))


REFUSED = {
    "no heads": ({"config": changed(num_attention_heads=0)}, r"head_count must be a whole number of at least 1, not 0"),
    "no key heads": ({"config": changed(num_key_value_heads=0)}, "num_key_value_heads must be a whole number"),
    "five key heads": ({"config": changed(num_key_value_heads=5)}, "must be a multiple of num_key_value_heads"),
    "three key heads": ({"config": changed(num_key_value_heads=3)}, r"k_proj\.weight is \[16, 48\], .* \[24, 48\]"),
    "nan for eps": ({"config": changed(rms_norm_eps=float("nan"))}, "rms_norm_eps must be a number above 0"),
    "endless theta": ({"config": changed(rope_theta=float("inf"))}, "rope_theta must be a number above 0"),
    "fewer layers": ({"config": changed(num_hidden_layers=2)}, "has no place in a model of 2 layers"),
    "more layers": ({"config": changed(num_hidden_layers=4)}, "missing, and 8 more"),
    "a token twice": ({"tokens": [*TOKENS[:-1], TOKENS[-2]]}, "a token is in the vocabulary twice"),
    "a token less": ({"tokens": TOKENS[:-3]}, "isn't of two tokens that make a third"),
    "a token more": ({"tokens": [*TOKENS, "more"]}, r"embed_tokens\.weight is .* make it"),
    "a type less": ({"types": [1] * (len(TOKENS) - 1)}, "tokens, and .* token types"),
    "half a merge": ({"merges": ["a b", "ab"]}, "the merge 'ab' isn't of two tokens"),
    "a merge of nothing known": ({"merges": ["a b", "x yy"]}, "the merge 'x yy' isn't of two tokens"),
    "no such first token": ({"bos": 5000}, "the bos_token has the id 5000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_metadata_that_fit_no_model_are_refused_before_anything_is_written(tmp_path, case):
    settings, message = REFUSED[case]
    with pytest.raises(GGUFError, match=rf"model\.gguf cannot be converted: .*{message}"):
        make(tmp_path, tiny_tensors(tiny_model(config=CONFIG)), **settings)
    assert list((tmp_path / "out").iterdir()) == []


def float64(weight):
    return weight.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("blk.0.attn_q.weight", lambda w: w[:-2], r"q_proj\.weight is \[46, 48\], and the metadata make it \[48, 48\]"),
        ("blk.0.attn_q.weight", lambda w: w[0], r"q_proj\.weight is \[48\]"),
        ("blk.1.ffn_up.weight", lambda w: w.T.copy(), r"up_proj\.weight is \[48, 80\]"),
        ("blk.1.ffn_up.weight", lambda w: w.astype(np.int8), r"blk\.1\.ffn_up\.weight is stored as I8"),
        ("blk.1.ffn_up.weight", lambda w: w.astype(np.int32), r"blk\.1\.ffn_up\.weight is stored as I32"),
        ("blk.1.ffn_up.weight", float64, r"blk\.1\.ffn_up\.weight is stored as F64"),
        ("blk.1.ffn_up.weight", None, r"up_proj\.weight missing, and 0 more"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_and_nothing_stays_behind(tmp_path, name, change, message):
    tensors = tiny_tensors(tiny_model(config=CONFIG))
    weight = tensors.pop(name)
    if change is not None:
        tensors[name] = change(weight)
    with pytest.raises(GGUFError, match=rf"model\.gguf cannot be converted: .*{message}"):
        make(tmp_path, tensors)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_text_that_is_not_utf_8(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", tiny_tensors(tiny_model(config=CONFIG)))
    content = file.read_bytes()
    assert content.count(TEMPLATE.encode()) == 1
    file.write_bytes(content.replace(TEMPLATE.encode(), b"\xff" * len(TEMPLATE)))
    with pytest.raises(GGUFError, match=r"model\.gguf cannot be converted: .*utf-8"):
        convert(file, tmp_path)


def test_an_interrupted_conversion_leaves_no_weights(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", tiny_tensors(tiny_model(config=CONFIG)))

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(file, tmp_path, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_tensor_without_a_place_is_refused(tmp_path):
    with pytest.raises(GGUFError, match=r"rope_freqs\.weight.* has no place"):
        make(tmp_path, tiny_tensors(tiny_model(config=CONFIG)) | {"rope_freqs.weight": np.ones(4, dtype=np.float32)})


@pytest.mark.parametrize("content", [b"", b"not a gguf file at all" * 10])
def test_a_file_that_is_no_gguf(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(GGUFError, match=r"x\.gguf is not a readable GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path)


def test_docstring_examples():
    result = doctest.testmod(gguf)
    assert result.failed == 0
    assert result.attempted >= 2


PEAK = """
import sys
import types
from pathlib import Path
from shared.model.gguf import convert
convert(Path(sys.argv[1]), Path(sys.argv[2]))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def test_peak_memory_at_the_real_models_size(tmp_path):
    """A file of SmolLM2-135M's shapes, all zeros: 538 MB of float32 must not need 2.5 GB, nor a minute."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    config = dataclasses.replace(
        CONFIG, vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, head_dim=64,
    )  # fmt: skip
    tensors = {}
    for name, weight in tiny_shapes(config):
        kind, size = (GGMLQuantizationType.Q8_0, 34) if "embed" in name else (GGMLQuantizationType.Q4_1, 20)
        if len(weight) == 1:
            tensors[name] = np.ones(weight, dtype=np.float32)
        else:
            tensors[name] = (np.zeros((weight[0], weight[1] // 32 * size), dtype=np.uint8), kind)
    tokens = [*TOKENS, *(f"Ġ{i}" for i in range(49152 - len(TOKENS)))]
    file = write_gguf(tmp_path / "model.gguf", tensors, config=config, tokens=tokens)
    command = [sys.executable, "-c", PEAK, file, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (tmp_path / "model.safetensors").stat().st_size > 4 * 134_000_000
    assert int(done.stdout) < 2_500_000  # KiB
    (tmp_path / "model.safetensors").unlink()


def tiny_shapes(config):
    from shared.model.transformer import Transformer
    from tests.model.gguf_files import gguf_name

    with torch.device("meta"):
        state = Transformer(config).state_dict()
    return [(gguf_name(name), tuple(weight.shape)) for name, weight in state.items()]
