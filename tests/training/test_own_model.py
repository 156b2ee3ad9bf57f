"""The book's own model: a very small recipe from text to a folder that every part reads; and the real one's quality."""

import json
from dataclasses import replace

import pytest
import torch

from shared.data.chat import ChatTemplate, encode_chat
from shared.data.reader import read_jsonl
from shared.data.tokenizer import Tokenizer
from shared.model.weights import load_model
from shared.training import own_model
from shared.training.own_data import bytes_of, own_data
from shared.training.own_folder import FACTS, is_whole, work_folder
from shared.training.own_model import ensure_own_model, train_own_model
from tests.training.conftest import TINY
from tests.training.test_trainer import Killed


def test_every_part_reads_the_folder(made):
    tokenizer, model, template = Tokenizer.load(made), load_model(made), ChatTemplate.load(made)
    assert model.config.vocab_size == tokenizer.vocab_size == 320
    assert tokenizer.token_id("<|endoftext|>") in tokenizer.eos_ids
    ids = encode_chat(tokenizer, template, [{"role": "system", "content": "One."}, {"role": "user", "content": "Two"}])
    assert tokenizer.decode(ids) == "One.\nTwo"
    assert model(torch.tensor([ids])).shape == (1, len(ids), 320)
    assert json.loads((made / "generation_config.json").read_text())["eos_token_id"] == sorted(tokenizer.eos_ids)
    assert not work_folder(made).exists()


def test_the_facts_are_those_of_the_model(made):
    """The stated loss, measured again from the held-out text with code that shares nothing with the training's."""
    facts = json.loads((made / FACTS).read_text())
    tokenizer, model = Tokenizer.load(made), load_model(made)
    ids = [i for record in read_jsonl(made / "validation.jsonl") for i in [*tokenizer.encode(record["text"]), 256]]
    nats, n_bytes = 0.0, 0
    for start in range(0, 8 * 32, 32):
        window = torch.tensor([ids[start : start + 33]])
        told = model(window[:, :-1]).log_softmax(-1).gather(-1, window[:, 1:, None])
        nats -= float(told.sum())
        n_bytes += len(b"".join(tokenizer.token_bytes(i) for i in window[0, 1:].tolist() if i != 256))
    assert facts["validation_windows"] == 8
    assert facts["val_loss"] == pytest.approx(nats / 256, rel=1e-5)
    assert facts["bits_per_byte"] == pytest.approx(nats / n_bytes / 0.6931471805599453, rel=1e-5)
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["settings"]["steps"] == 6
    assert len((made / "history.jsonl").read_text().splitlines()) == 6
    assert len(facts["code_sha256"]) == len(facts["data"]["corpus_sha256"]) == 64


def test_nothing_of_the_held_out_text_was_trained_on(tmp_path):
    data = own_data(tmp_path / "work", 300, 320, progress=False)
    held_out = {record["text"] for record in read_jsonl(tmp_path / "work" / "validation.jsonl")}
    sources = {record["source"] for record in read_jsonl(tmp_path / "work" / "validation.jsonl")}
    trained = data.tokenizer.decode(data.train.tolist()).split("<|endoftext|>")
    assert not held_out & set(trained)
    unique = list(read_jsonl(tmp_path / "work" / "unique.jsonl"))
    assert not sources & {record["source"] for record in unique if record["text"] in set(trained)}
    assert bytes_of(data.tokenizer, data.validation) == sum(len(text.encode()) for text in held_out)


def test_it_is_not_made_twice(made, monkeypatch):
    monkeypatch.setattr(own_model, "train_own_model", None)
    assert ensure_own_model(made, TINY, progress=False) == made


def test_a_damaged_folder_is_made_again(made, tmp_path):
    copy = tmp_path / "tiny"
    copy.mkdir()
    for file in made.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert is_whole(copy)
    (copy / "model.safetensors").write_bytes(b"cut")
    assert not is_whole(copy)
    assert is_whole(ensure_own_model(copy, TINY, progress=False))
    for a, b in zip(load_model(copy).parameters(), load_model(made).parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_interrupted_run_goes_on(made, tmp_path, monkeypatch):
    path = tmp_path / "tiny"
    real = own_model.train

    def killed(*arguments):
        def on_step(row):
            if row["step"] == 5:
                raise Killed

        return real(*arguments, on_step=on_step)

    monkeypatch.setattr(own_model, "train", killed)
    with pytest.raises(Killed):
        ensure_own_model(path, TINY, progress=False)
    assert not path.exists()
    monkeypatch.setattr(own_model, "train", real)
    ensure_own_model(path, TINY, progress=False)
    for a, b in zip(load_model(path).parameters(), load_model(made).parameters(), strict=True):
        assert torch.equal(a, b)


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="wasn't made here"):
        train_own_model(tmp_path, TINY, progress=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_bench_reports_what_the_model_says(tmp_path):
    from shared.training.bench_training import bench_training

    result = bench_training(progress=False, recipe=replace(TINY, settings=replace(TINY.settings, steps=2)))
    assert {"val_loss", "seconds"} <= set(result)
    assert 0 < result["val_loss"] < 10
    assert result["seconds"] > 0


@pytest.mark.real
@pytest.mark.longest
def test_the_stated_loss():
    """The book's own model, trained here if need be: a few minutes, once."""
    facts = json.loads((ensure_own_model() / FACTS).read_text())
    assert facts["val_loss"] < own_model.STATED_LOSS
    assert facts["bits_per_byte"] < own_model.STATED_BITS
