"""What is looked at before a version is loaded: its folder holds a model, and there is memory for it."""

import json
from pathlib import Path

import pytest

from shared.serving.models import promotion
from shared.serving.models.promotion import check_folder, check_memory
from tests.serving.scripted_versions import refusal


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: folder.joinpath("config.json").unlink(), "no config.json"),
        (lambda folder: folder.joinpath("config.json").write_text("{"), "config.json"),
        (lambda folder: folder.joinpath("config.json").write_text("[]"), "config.json"),
        (lambda folder: folder.joinpath("config.json").write_text('{"model_type": "bert"}'), "config.json"),
        (lambda folder: folder.joinpath("model.safetensors").unlink(), "no *.safetensors"),
    ],
)
def test_a_folder_that_holds_no_model_is_told_at_once(tmp_path, spoil, says):
    config = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_folder(tmp_path)
    spoil(tmp_path)
    error = refusal(check_folder, tmp_path)
    assert (error.status, error.body["error"]["param"]) == (400, "path")
    assert says in str(error)
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("path", ["no/such/folder", "x" * 300, "a\0b"])
def test_a_path_that_is_no_folder(path):
    assert refusal(check_folder, Path(path)).status == 400


def test_a_want_of_memory_is_told_before_the_weights_are_read(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    monkeypatch.setattr(promotion, "available_memory", lambda: promotion.PROCESS_MB * 1_000_000 + 500)
    error = refusal(check_memory, tmp_path, {})
    assert (error.status, error.body["error"]["code"]) == (409, "not_enough_memory")
    check_memory(tmp_path, {tmp_path: "cpu"})  # mapped already: the pages are shared
    check_memory(tmp_path, {Path("other"): "cuda"})  # what a GPU has left is another matter
    monkeypatch.setattr(promotion, "available_memory", lambda: None)
    check_memory(tmp_path, {})
