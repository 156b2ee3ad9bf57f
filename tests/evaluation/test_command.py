"""python -m chapters evaluate, on tiny models: exit status, report, and what it says to bad input."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from chapters import evaluate
from chapters.__main__ import main
from chapters.regions import BookError
from shared.data.tokenizer import Tokenizer
from tests.tiny import TINY, tiny_model

CONFIG = dataclasses.replace(TINY, vocab_size=259)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"
CASES = [
    {"id": "text", "prompt": "ab", "max_tokens": 3, "tags": ["text"], "expect": {"max_words": 50}},
    {"id": "chat", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3, "expect": {"max_words": 50}},
]
app = typer.Typer()
app.command()(evaluate.evaluate)


def save(folder, scale, chat=True):
    """A tiny model; the larger its weights, the surer it is of nonsense, and the worse on any text."""
    folder.mkdir()
    model = tiny_model(dtype=torch.float32, config=CONFIG)
    state = {name: weight * (scale if weight.dim() == 2 else 1) for name, weight in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(CONFIG) | {"model_type": "llama"}))
    if chat:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    Tokenizer({i: bytes([i]) for i in range(256)}, [], special, eos_ids=[258]).save(folder)
    return str(folder)


@pytest.fixture
def places(tmp_path, monkeypatch):
    texts = [f"Document {i} is about {'this and that ' * 3}" for i in range(30)]
    monkeypatch.setattr("shared.evaluation.held_out.held_out_documents", lambda n, seed=0, progress=False: texts[:n])
    cases = tmp_path / "cases.jsonl"
    cases.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    good, bad = save(tmp_path / "good", 0.1), save(tmp_path / "bad", 1.0)
    return {"good": good, "bad": bad, "cases": str(cases), "out": str(tmp_path / "out.json"), "folder": tmp_path}


def call(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, " ".join(result.output.split()), result.exception


def test_the_same_model_is_not_worse(places):
    status, output, _ = call(
        "--baseline", places["good"], "--candidate", places["good"], "--cases", places["cases"],
        "--documents", 8, "--json", places["out"],
    )  # fmt: skip
    assert status == 0, output
    report = json.loads(Path(places["out"]).read_text())
    assert report["worse"] is False
    assert {row["measure"]: row["n"] for row in report["comparisons"]} == {
        "documents": 8,
        "cases that fail": 2,
    }
    assert all(row["difference"] == 0 for row in report["comparisons"])


def test_a_worse_one_is(places):
    status, output, _ = call(
        "--baseline", places["good"], "--candidate", places["bad"], "--cases", places["cases"], "--documents", 20
    )
    assert status == 1, output
    assert "The candidate is worse, beyond noise." in output


def test_a_better_one_is_not(places):
    status, output, _ = call("--baseline", places["bad"], "--candidate", places["good"], "--documents", 20,
                             "--cases", places["cases"])  # fmt: skip
    assert status == 0, output
    assert "better" in output.replace("less is better", "")


def test_newly_failing_cases_are_shown_and_explained(places):
    """The same words, once expected and once not: one of the two models is bound to fail."""
    (answer,) = _answers(places["good"], places["cases"])
    case = CASES[0] | {"expect": {"regex": f"\\A{re.escape(answer)}\\Z"}}
    Path(places["cases"]).write_text(json.dumps(case) + "\n" + json.dumps(CASES[0] | {"id": "other"}) + "\n")
    status, output, _ = call(
        "--baseline", places["good"], "--candidate", places["bad"], "--cases", places["cases"],
        "--documents", 0, "--json", places["out"],
    )  # fmt: skip
    assert status == 0, output  # one case of two is no proof
    assert "1 case fails now that didn't" in output
    report = json.loads(Path(places["out"]).read_text())
    assert [row["id"] for row in report["newly_failing"]] == [row["id"] for row in report["causes"]] == ["text"]
    assert report["newly_failing"][0]["baseline"] == answer


def _answers(folder, cases):
    from shared.evaluation.regression import load_cases, responder, run_cases

    spec = evaluate.open_model(folder, "--baseline")
    respond = responder(evaluate.generator(evaluate.load(spec), spec.tokenizer), spec.tokenizer, spec.template)
    return [result.answer.text for result in run_cases(load_cases(cases)[:1], respond)]


def test_a_base_model_gets_no_chats(places):
    base = save(places["folder"] / "base", 0.1, chat=False)
    status, output, _ = call(
        "--baseline", places["good"], "--candidate", base, "--cases", places["cases"], "--documents", 0,
        "--json", places["out"],
    )  # fmt: skip
    assert status == 0, output
    assert re.search(
        "as far as this can tell; 1 chat case is left out, for there is no chat template in .*base", output
    )
    report = json.loads(Path(places["out"]).read_text())
    assert report["comparisons"][0]["n"] == 1
    (left_out,) = report["left_out"]
    assert left_out == f"1 chat case is left out, for there is no chat template in {base}"


def test_bad_input(places):
    def refused(*arguments):
        _, output, error = call("--baseline", places["good"], "--documents", 0, *arguments)
        assert isinstance(error, BookError), (output, error)
        return str(error)

    assert "there is no folder no/where" in refused("--candidate", "no/where")
    assert "there is no folder" in refused("--candidate", places["good"] + ":int4")
    assert "no case has the tag 'slow'" in refused(
        "--candidate", places["good"], "--cases", places["cases"], "--tags", "slow"
    )
    assert "is missing" in refused("--candidate", places["good"], "--cases", places["folder"] / "no.jsonl")
    (places["folder"] / "broken.jsonl").write_text('{"id": "a"}\n')
    assert "line 1: expect: missing" in refused(
        "--candidate", places["good"], "--cases", places["folder"] / "broken.jsonl"
    )
    (places["folder"] / "empty").mkdir()
    assert "tokenizer.json is missing" in refused("--candidate", places["folder"] / "empty")
    status, output, _ = call()
    assert status == 2
    assert "--candidate" in output


@pytest.mark.parametrize("name", ["", ":int8", " "])
def test_no_name_is_not_the_default_model(places, name):
    for options in (
        ("--candidate", name, "--baseline", places["good"]),
        ("--baseline", name, "--candidate", places["good"]),
    ):
        _, output, error = call(*options, "--cases", places["cases"], "--documents", 0)
        assert isinstance(error, BookError), output
        assert str(error).startswith(f"{options[0]} {name!r} names no folder")


BROKEN = {
    "tokenizer_config.json": ["{", "[]", json.dumps({"chat_template": "{% for"}), json.dumps({"chat_template": 3})],
    "chat_template.jinja": ["", "{% for", "{{ raise_exception('no, thank you') }}"],
    "model.safetensors": ["x", ""],
    "config.json": ["{", "{}"],
    "tokenizer.json": ["{"],
}


@pytest.mark.parametrize(("file", "content"), [(file, content) for file, some in BROKEN.items() for content in some])
def test_a_damaged_model_is_refused_before_anything_is_run(places, monkeypatch, file, content):
    monkeypatch.setattr(evaluate, "run", lambda *arguments: pytest.fail("a model was run"))
    (Path(places["bad"]) / file).write_text(content)
    _, output, error = call("--baseline", places["good"], "--candidate", places["bad"], "--cases", places["cases"],
                            "--documents", 0, "--json", places["folder"] / "new" / "out.json")  # fmt: skip
    assert isinstance(error, BookError), (output, error)
    assert places["bad"] in str(error)  # which of the two


def test_weights_cut_short_are_seen_at_once(places, monkeypatch):
    monkeypatch.setattr(evaluate, "run", lambda *arguments: pytest.fail("a model was run"))
    weights = Path(places["bad"]) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    _, _, error = call("--baseline", places["good"], "--candidate", places["bad"], "--cases", places["cases"])
    assert "damaged or cut short" in str(error)
    assert str(error).startswith(f"--candidate {places['bad']}")


def test_no_folder_is_made_for_a_command_that_can_t_run(places):
    new = places["folder"] / "new"
    for wrong in (("--candidate", "no/where"), ("--candidate", places["good"], "--tags", "slow"),
                  ("--candidate", places["good"], "--tags", " ,")):  # fmt: skip
        _, _, error = call("--baseline", places["good"], "--cases", places["cases"], "--json", new / "out.json", *wrong)
        assert isinstance(error, BookError)
    assert not new.exists()


def test_tags_may_have_spaces(places):
    status, output, _ = call("--baseline", places["good"], "--candidate", places["good"], "--cases", places["cases"],
                             "--documents", 0, "--tags", " text, ", "--json", places["out"])  # fmt: skip
    assert status == 0, output
    assert json.loads(Path(places["out"]).read_text())["comparisons"][0]["n"] == 1


def test_a_few_documents_say_nothing(places):
    status, output, _ = call("--baseline", places["good"], "--candidate", places["bad"], "--cases", places["cases"],
                             "--documents", 8, "--json", places["out"])  # fmt: skip
    assert status == 0, output
    assert "8 documents are too few to call a model worse by" in output
    report = json.loads(Path(places["out"]).read_text())
    assert (report["worse"], report["comparisons"][0]["too_few"]) == (False, True)


@pytest.mark.parametrize("error", [OverflowError("too large"), KeyError("x"), TypeError("no"), MemoryError()])
def test_a_crash_is_not_called_worse(places, monkeypatch, capsys, error):
    """Exit status 1 means that the candidate is worse; Python's own for a crash is 1, too."""

    def crash(*arguments, **keywords):
        raise error

    monkeypatch.setattr(evaluate, "run", crash)
    arguments = f"--baseline {places['good']} --candidate {places['bad']} --cases {places['cases']} --documents 0"
    monkeypatch.setattr(sys, "argv", ["chapters", "evaluate", *arguments.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert f"nothing was decided: {type(error).__name__}" in said
    assert "Traceback" in said  # for whoever mends it


def test_ctrl_c(places, monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "run", interrupted)
    status, output, _ = call("--baseline", places["good"], "--candidate", places["good"], "--documents", 1,
                             "--cases", places["cases"])  # fmt: skip
    assert status == 130
    assert "nothing was decided" in output


def test_documents_that_a_tokenizer_can_t_spell_are_left_out(places, monkeypatch):
    monkeypatch.setattr("shared.evaluation.held_out.held_out_documents", lambda n, seed, progress: ["good", "b\x01d"])
    specs = [evaluate.open_model(places["good"], "--baseline")]
    specs[0].tokenizer._unknown = b"\x01"
    good, left_out = evaluate.comparable(["good", "b\x01d"], specs)
    assert good == ["good"]
    assert left_out == ["1 document is left out, since one of the tokenizers can't spell all of it"]
    assert evaluate.comparable(["good"], specs) == (["good"], [])
