"""The reader's parts that are in use, whichever they are: the program says whose they are, and runs on them.

On a fresh clone none is in use. `python -m chapters test-solved` runs this in copies with one chapter in use, with
some, and with all.
"""

import json
import re
import signal
from importlib import import_module

import httpx
import pytest
import torch

from shared import ROOT, reader_parts
from shared.data.tokenizer import Tokenizer
from shared.model.weights import load_model
from tests.serving.command import client_of, running
from tests.serving.live import serving, write_tiny_model
from tests.serving.whole import whole_model

PROGRESS = ROOT / ".progress.json"
IN_USE = json.loads(PROGRESS.read_text()).get("use", {}) if PROGRESS.exists() else {}
QUESTION = "What?"  # the tiny model answers it without an end
pytestmark = pytest.mark.skipif(not IN_USE, reason="none of your parts is in use; test-solved runs this on copies")


def lines() -> list[str]:
    """What is to be said of the parts in use, read off the readers' files."""
    said = []
    for name, file in sorted(IN_USE.items()):
        to_do = re.findall(r'^\s*raise Todo\("(\d+\.\d+)"\)', (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        rest = f" ({', '.join(to_do)} still from the reference)" if to_do else ""
        said.append(f"{name}: yours, {file}{rest}")
    return said


def start_lines() -> list[str]:
    """What the start says of them, one line for each chapter."""
    parts, to_do = {}, {}
    for file in IN_USE.values():
        folder, name = re.fullmatch(r"chapters/ch(\d\d)_\w+/(\w+)\.py", file).groups()
        parts.setdefault(int(folder), []).append(name)
        ids = re.findall(r'^\s*raise Todo\("\d+\.(\d+)"\)', (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        to_do.setdefault(int(folder), []).extend(map(int, ids))
    said = []
    for chapter in sorted(parts):
        ids = ", ".join(f"{chapter}.{n}" for n in sorted(to_do[chapter]))
        rest = f"; {ids} still from the reference" if ids else ""
        said.append(f"chapter {chapter}: yours ({', '.join(sorted(parts[chapter]))}{rest})")
    return said


def test_they_are_imported_under_the_finished_names():
    for name, file in IN_USE.items():
        assert import_module(name).__file__ == str(ROOT / file)
    assert reader_parts() == lines()


def ask(client: httpx.Client, model: str, text: str, max_tokens: int) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens}
    answer = client.post("/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_a_tiny_model_is_served(tmp_path):
    """The server's answer is what its model says is likeliest, token by token, from the whole text each time."""
    folder = write_tiny_model(tmp_path / "tiny")
    model, tokenizer = load_model(folder), Tokenizer.load(folder)
    prompt = ids = tokenizer.encode(f"u:{QUESTION}\na:")
    for _ in range(8):
        ids = [*ids, int(model(torch.tensor([ids]))[0, -1].argmax())]
    assert not tokenizer.eos_ids & set(ids)
    with serving(whole_model(folder, settings={"local_only": True})) as client:
        assert ask(client, "tiny", QUESTION, 8) == tokenizer.decode(ids[len(prompt) :])
        assert client.get("/dashboard/state").json()["parts"] == lines()


@pytest.mark.real
def test_the_real_model_is_served_by_a_process(model_dir):
    with running("--model", model_dir, "--port", 0) as (process, address, printed), client_of(address) as client:
        assert [line.strip() for line in printed if ": yours" in line] == start_lines()
        assert "Paris" in ask(
            client, client.get("/v1/models").json()["data"][0]["id"], "What is the capital of France?", 30
        )
        assert client.get("/dashboard/state").json()["parts"] == lines()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
