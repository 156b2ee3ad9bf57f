"""Checkpoints that are killed, cut short, and of another model."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from shared.training import checkpoint
from shared.training.adamw import AdamW
from shared.training.checkpoint import (
    CheckpointError,
    Snapshot,
    capture,
    checkpoints,
    latest_checkpoint,
    read_checkpoint,
    restore,
    save_checkpoint,
)
from tests.training.small import small_model

# Writes checkpoints as fast as it can, for ever. Each holds its own number in every element.
WRITER = """
import sys, torch
from pathlib import Path
from shared.training.checkpoint import Snapshot, save_checkpoint
for step in range(1, 1_000_000):
    save_checkpoint(Path(sys.argv[1]), Snapshot({"x": torch.full((500_000,), float(step))}, {"step": step}))
    print(step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_checkpoint(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for _ in range(6):
            done = int(process.stdout.readline())
            # wait for the moment when the next one is being written: its temporary file is there
            deadline = time.monotonic() + 10
            while not list(tmp_path.glob(".checkpoint-*.part")) and time.monotonic() < deadline:
                pass
    finally:
        process.kill()  # SIGKILL: nothing in that process can clean up
        process.wait()
    said: list[str] = []
    snapshot = latest_checkpoint(tmp_path, said.append)
    assert snapshot is not None
    assert snapshot.step >= done
    assert snapshot.tensors["x"].eq(snapshot.step).all()
    assert said == []
    save_checkpoint(tmp_path, Snapshot({"x": torch.zeros(1)}, {"step": 10**6}))
    assert list(tmp_path.glob(".*")) == []  # what the killed process left is gone


def two_checkpoints(folder: Path) -> list[Path]:
    for step in (1, 2):
        save_checkpoint(folder, Snapshot({"x": torch.full((1000,), float(step))}, {"step": step}))
    return checkpoints(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 2000, -1])
def test_a_file_cut_short_falls_back_and_says_so(tmp_path, keep):
    newest, _ = two_checkpoints(tmp_path)
    newest.write_bytes(newest.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        read_checkpoint(newest)
    said: list[str] = []
    snapshot = latest_checkpoint(tmp_path, said.append)
    assert snapshot is not None
    assert snapshot.step == 1
    assert len(said) == 1
    assert newest.name in said[0]


@pytest.mark.parametrize("place", [-4000, -2000, -4])
@pytest.mark.parametrize("n_bytes", [1, 4, 2000])
def test_overwritten_numbers_are_noticed(tmp_path, place, n_bytes):
    newest, _ = two_checkpoints(tmp_path)
    raw = bytearray(newest.read_bytes())
    n_bytes = min(n_bytes, -place)
    raw[place : len(raw) + place + n_bytes] = b"\xff" * n_bytes
    newest.write_bytes(raw)
    with pytest.raises(CheckpointError, match="aren't those that were saved"):
        read_checkpoint(newest)
    snapshot = latest_checkpoint(tmp_path, lambda text: None)
    assert snapshot is not None
    assert snapshot.step == 1


def test_two_tensors_of_one_shape_cannot_change_places():
    a, b = torch.zeros(3), torch.ones(3)
    assert checkpoint.checksum({"a": a, "b": b}) != checkpoint.checksum({"a": b, "b": a})
    assert checkpoint.checksum({"a": a, "b": b}) == checkpoint.checksum({"b": b, "a": a})


def test_a_full_disk_is_an_os_error_and_leaves_the_old_one(tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in two_checkpoints(tmp_path)}

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="checkpoint-00000003.safetensors can't be written: .*No space left"):
        save_checkpoint(tmp_path, Snapshot({"x": torch.zeros(1)}, {"step": 3}))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_all_damaged_is_an_error_and_none_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for path in two_checkpoints(tmp_path):
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="Delete them .*--fresh"):
        latest_checkpoint(tmp_path, lambda text: None)


@pytest.mark.parametrize("metadata", [None, {"facts": "no json"}, {"facts": "[]"}, {"facts": '{"step": "x"}'}])
def test_some_other_safetensors_file(tmp_path, metadata):
    path = tmp_path / "checkpoint-00000001.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match="checkpoint-00000001"):
        read_checkpoint(path)


def test_only_the_newest_two_stay(tmp_path):
    for step in range(5):
        save_checkpoint(tmp_path, Snapshot({"x": torch.zeros(1)}, {"step": step}))
    assert [read_checkpoint(path).step for path in checkpoints(tmp_path)] == [4, 3]


def test_no_pickle_and_readable_by_others(tmp_path):
    model = small_model()
    path = save_checkpoint(tmp_path, capture(model, AdamW(model.parameters()), None, 7))
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])  # by hand: the format is that simple
    assert json.loads(header["__metadata__"]["facts"])["step"] == 7
    assert header["model.model.norm.weight"]["shape"] == [32]


def test_another_model_is_refused():
    model = small_model()
    snapshot = capture(model, AdamW(model.parameters()), None, 1)
    other = torch.nn.Linear(3, 3)
    with pytest.raises(CheckpointError, match="another model"):
        restore(snapshot, other, AdamW(other.parameters()))
