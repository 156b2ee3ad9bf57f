"""Model directories, whole and broken."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.model.int8 import quantize_int8
from shared.model.weight_only import quantize_weight_only
from shared.model.weights import WeightsError, load_model, save_model
from tests.tiny import TINY, tiny_model

IDS = torch.tensor([[5, 17, 3, 88, 41]])


def write(folder, model, shards=1):
    config = dataclasses.asdict(model.config) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    state = model.state_dict()
    if shards == 1:
        save_file(state, folder / "model.safetensors")
        return
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    place = {name: names[i % shards] for i, name in enumerate(state)}
    for file in names:
        save_file({name: state[name] for name in state if place[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_written_is_loaded(tmp_path, shards, tied):
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(TINY, tie_word_embeddings=tied))
    write(tmp_path, model, shards)
    loaded = load_model(str(tmp_path))
    assert loaded.config == model.config
    assert torch.equal(loaded(IDS), model(IDS))
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


def test_another_dtype(tmp_path):
    model = tiny_model(dtype=torch.float32)
    write(tmp_path, model)
    loaded = load_model(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    state = model.state_dict()
    assert all(torch.equal(p, state[name].bfloat16()) for name, p in loaded.state_dict().items())


def test_a_matching_dtype_is_mapped_not_copied(tmp_path):
    """Linux lists the file among the process's maps, and every weight lies in it."""
    write(tmp_path, tiny_model(dtype=torch.float32))
    loaded = load_model(tmp_path)
    if not (listing := Path("/proc/self/maps")).exists():
        pytest.skip("needs /proc")
    maps = listing.read_text().splitlines()
    ranges = [tuple(int(x, 16) for x in m.split()[0].split("-")) for m in maps if str(tmp_path) in m]
    assert ranges
    assert all(any(low <= p.data_ptr() < high for low, high in ranges) for p in loaded.parameters())


def test_files_that_repeat_what_the_config_says(tmp_path):
    model = tiny_model(dtype=torch.float32)
    write(tmp_path, model)
    state = dict(model.state_dict())
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(state, tmp_path / "model.safetensors")
    assert torch.equal(load_model(tmp_path)(IDS), model(IDS))


def test_a_head_of_its_own_is_used(tmp_path):
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(TINY, tie_word_embeddings=False))
    write(tmp_path, model)
    hidden_change = dict(model.state_dict())
    hidden_change["lm_head.weight"] = hidden_change["lm_head.weight"] * 2
    save_file(hidden_change, tmp_path / "model.safetensors")
    torch.testing.assert_close(load_model(tmp_path)(IDS), model(IDS) * 2)


def test_no_folder(tmp_path):
    with pytest.raises(WeightsError, match="nowhere is not a folder"):
        load_model(tmp_path / "nowhere")


def test_no_config(tmp_path):
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json cannot be read"),
        ("[]", "a JSON object, not a list"),
        ("{}", r"config\.json: .*vocab_size"),
        ("[" * 100_000, r"config\.json cannot be read"),
        ('{"vocab_size": 1, "vocab_size": 2}', r"config\.json cannot be read: the name 'vocab_size' appears twice"),
        ('{"model_type": ["llama"]}', r"config\.json: config: model_type"),
    ],
)
def test_broken_config(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=message):
        load_model(tmp_path)


def test_no_weights(tmp_path):
    write(tmp_path, tiny_model())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"has no model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused(tmp_path, name):
    write(tmp_path, tiny_model())
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(WeightsError, match=f"'{name}' refused: such files are pickles"):
        load_model(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_cut_file_is_named(tmp_path, keep):
    write(tmp_path, tiny_model(dtype=torch.float32))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut short"):
        load_model(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path, tiny_model(), shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"'model-00002-of-00003\.safetensors' missing"):
        load_model(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    model = tiny_model(dtype=torch.float32)
    write(tmp_path, model, shards=3)
    save_file(dict(model.state_dict()), tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(WeightsError, match="stored in another shard, too"):
        load_model(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    write(tmp_path, tiny_model(dtype=torch.float32))
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(WeightsError, match="cannot be read: it isn't a regular file"):
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_a_dtype_that_nobody_computes_in_is_refused(tmp_path, dtype):
    write(tmp_path, tiny_model(dtype=torch.float32))
    with pytest.raises(WeightsError, match=f"can't compute in {dtype}"):
        load_model(tmp_path, dtype=dtype)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_a_device_without_memory_is_refused(tmp_path, device):
    write(tmp_path, tiny_model(dtype=torch.float32))
    with pytest.raises(WeightsError, match="'meta' has no memory"):
        load_model(tmp_path, device=device)


@pytest.mark.parametrize("make", [quantize_int8, quantize_weight_only])
def test_a_quantised_model_is_not_saved(tmp_path, make):
    model = tiny_model(dtype=torch.float32, config=dataclasses.replace(TINY, hidden_size=64, intermediate_size=96,
                                                                       num_attention_heads=8))  # fmt: skip
    with pytest.raises(WeightsError, match="only plain weights can be saved"):
        save_model(make(model), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_in_a_message_are_quoted_and_short(tmp_path):
    write(tmp_path, tiny_model(), shards=3)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "\x1b[2J" + "x" * 10**6}}))
    with pytest.raises(WeightsError) as caught:
        load_model(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a"])
def test_a_shard_is_a_file_beside_the_index(tmp_path, name):
    write(tmp_path, tiny_model(), shards=3)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="weight_map must map each tensor to a file beside the index"):
        load_model(tmp_path)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {"a": "../secret.safetensors"}}', '{"weight_map": {"a": 1}}'])
def test_a_bad_index_is_refused(tmp_path, index):
    write(tmp_path, tiny_model(), shards=3)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match="weight_map must map each tensor to a file beside the index"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.layers.1.mlp.up_proj.weight"), r"'model\.layers\.1\.mlp\.up_proj\.weight' missing"),
        (lambda s: s.update(extra=torch.ones(1)), r"model\.safetensors: tensor 'extra' has no place"),
        (lambda s: s.update({"model.norm.weight": torch.ones(7)}), r"model\.norm\.weight is \[7\].* makes it \[48\]"),
        (lambda s: s.update({"model.norm.weight": torch.ones(48).char()}), r"model\.norm\.weight is stored as I8"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, change, message):
    model = tiny_model(dtype=torch.float32)
    write(tmp_path, model)
    state = dict(model.state_dict())
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        load_model(tmp_path)


def test_many_missing_tensors_are_counted(tmp_path):
    model = tiny_model(dtype=torch.float32)
    write(tmp_path, model)
    save_file({"model.norm.weight": model.model.norm.weight.data}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"and 25 more missing"):  # 3 layers of 9, the embedding, less the 3 named
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_is_loaded(tmp_path, tied, dtype):
    model = tiny_model(dtype=dtype, config=dataclasses.replace(TINY, tie_word_embeddings=tied))
    save_model(model, tmp_path / "new" / "folder")
    loaded = load_model(tmp_path / "new" / "folder", dtype=dtype)
    assert loaded.config == model.config
    state = model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in loaded.state_dict().items())
    torch.testing.assert_close(loaded(IDS), model(IDS))


def test_saving_over_a_model_that_is_mapped(tmp_path):
    """The files are replaced, not written into: who has the old ones mapped keeps their numbers."""
    save_model(tiny_model(dtype=torch.float32), tmp_path)
    old = load_model(tmp_path)
    before = old(IDS)
    save_model(tiny_model(seed=1, dtype=torch.float32), tmp_path)
    assert torch.equal(old(IDS), before)
    assert not torch.equal(load_model(tmp_path)(IDS), before)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_the_old_files(tmp_path, monkeypatch):
    save_model(tiny_model(dtype=torch.float32), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def fail(path, tensors):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("shared.model.weights.write_tensors", fail)
    with pytest.raises(OSError, match="no space"):
        save_model(tiny_model(seed=1, dtype=torch.float32), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_training_on_mapped_weights_leaves_the_file_alone(tmp_path):
    save_model(tiny_model(dtype=torch.float32), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with torch.no_grad():
        for weight in load_model(tmp_path).parameters():
            weight.add_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before
