"""Exercises 6.7 and 6.8: judged by what is on the disk at each moment, and by a run that must go on bit for bit."""

import copy
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from chapters.ch06_training import checkpoint
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_raises
from tests.ch06_training.words import no_error

# 6.7 write_atomically


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """What is asked of the disk, in order, as (what, name of the file or folder). "no file" is run.bin's absence."""
    seen: list[tuple[str, str]] = []
    path = tmp_path / "run.bin"
    real_replace, real_rename, real_fsync = os.replace, Path.rename, os.fsync

    def note(source):
        if Path(source) == path or not path.exists():  # moved away now, or gone already
            seen.append(("no file", path.name))
        seen.append(("rename", Path(source).name))

    def replace(source, target):
        note(source)
        real_replace(source, target)

    def rename(self, target):
        note(self)
        return real_rename(self, target)

    def fsync(handle):
        """By hand, past fsync_path: what the handle stands for is told by its number on the disk."""
        number = os.fstat(handle if isinstance(handle, int) else handle.fileno()).st_ino
        seen.extend(("fsync", p.name) for p in (tmp_path, *tmp_path.iterdir()) if p.stat().st_ino == number)
        real_fsync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "rename", replace)
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(Path, "replace", rename)
    monkeypatch.setattr(checkpoint, "fsync_path", lambda path: seen.append(("fsync", Path(path).name)))
    return seen


@exercise("6.7")
def test_the_new_file_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(b"old")
    with no_error(
        FileNotFoundError,
        because="after the rename there is no temporary file to remove, and that is no error: unlink(missing_ok=True)",
    ):
        checkpoint.write_atomically(path, lambda target: target.write_bytes(b"new"))
    expect_equal(path.read_bytes(), b"new", because="after the call the path must hold what `write` wrote")
    expect_equal(
        sorted(p.name for p in tmp_path.iterdir()), ["run.bin"], because="the temporary file must be gone afterwards"
    )


@exercise("6.7")
def test_the_old_file_is_whole_while_the_new_one_is_written(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(b"old")
    seen = {}

    def write(target: Path) -> None:
        target.write_bytes(b"half of the n")
        seen["target"], seen["content"] = target, path.read_bytes() if path.exists() else b"no file at all"

    checkpoint.write_atomically(path, write)
    expect_equal(
        seen["content"],
        b"old",
        because="in the middle of the writing the old file was already broken or gone: a kill at that moment loses "
        "both. "
        "Write to another name, and rename at the end",
    )
    expect_equal(
        seen["target"],
        checkpoint.temporary_name(path),
        because="the temporary file is temporary_name(path), in the same folder: only there is the rename one step, "
        "and "
        "what a killed process leaves is found again by its name",
    )


@exercise("6.7")
def test_bytes_first_then_the_name(tmp_path, calls):
    path = tmp_path / "run.bin"
    path.write_bytes(b"old")
    checkpoint.write_atomically(path, lambda target: target.write_bytes(b"new"))
    temporary = checkpoint.temporary_name(path).name
    expect(
        ("no file", "run.bin") not in calls,
        because="there was a moment without any run.bin: the old file was removed, or moved away, before the new one "
        "had its name. os.replace takes the old one's place in one step; nothing has to make way first",
    )
    expect(("rename", temporary) in calls, because="nothing was renamed: os.replace(temporary, path) is the one step "
            "in "
           "which the new file takes the old one's place")  # fmt: skip
    before = calls[: calls.index(("rename", temporary))]
    expect(
        ("fsync", temporary) in before,
        because="the file must be on the disk before it gets its name: without fsync_path(temporary) first, a power "
        "cut "
        "can leave the new name with nothing, or half, behind it",
    )
    after = calls[calls.index(("rename", temporary)) + 1 :]
    expect(
        ("fsync", tmp_path.name) in after,
        because="the name stands in the folder, and the folder, too, must reach the disk: fsync_path(path.parent) "
        "after "
        "the rename",
    )


@exercise("6.7")
def test_a_write_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(b"old")

    def write(target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError("no space left on device")

    with expect_raises(
        OSError, because="the caller must hear that nothing was saved; let the error go on", match="space"
    ):
        checkpoint.write_atomically(path, write)
    expect_equal(path.read_bytes(), b"old", because="the old file must survive a write that fails")
    expect_equal(
        sorted(p.name for p in tmp_path.iterdir()),
        ["run.bin"],
        because="half a file is left behind; on a full disk that is the worst moment. Remove it in a `finally`",
    )


@exercise("6.7")
def test_ctrl_c_while_it_writes(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(b"old")
    for made in (b"half", b""):

        def write(target: Path, made=made) -> None:
            if made:
                target.write_bytes(made)
            raise KeyboardInterrupt

        with expect_raises(
            KeyboardInterrupt,
            because="Ctrl-C must go on to the caller. If `write` had made no file yet, there is none to remove, and a "
            "FileNotFoundError from unlink must not take its place: missing_ok=True",
        ):
            checkpoint.write_atomically(path, write)
        expect_equal(
            sorted(p.name for p in tmp_path.iterdir()),
            ["run.bin"],
            because="half a file is left behind after Ctrl-C: KeyboardInterrupt is no OSError and no Exception. A "
            "`finally` sees all of them",
        )


# 6.8 capture


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))  # the norm has buffers
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def steps(model, optimizer, n: int) -> list[float]:
    """Steps that draw from all three generators."""
    losses = []
    for _ in range(n):
        x = torch.randn(16, 4) + random.random() + np.random.normal()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def taken():
    """A snapshot after three steps, what the next three brought, and the model after them."""
    random.seed(1), np.random.seed(1)
    model, optimizer = build()
    steps(model, optimizer, 3)
    np.random.normal()  # leaves a spare number drawn, and not yet handed out
    snapshot = copy.deepcopy(checkpoint.capture(model, optimizer, None, step=3))
    return snapshot, steps(model, optimizer, 3), model


@exercise("6.8")
def test_the_model_is_whole(taken):
    expect(taken[0] is not None, because=NO_RESULT)
    names = {name.removeprefix("model.") for name in taken[0].tensors if name.startswith("model.")}
    expect_equal(
        sorted(names),
        sorted(build()[0].state_dict()),
        because='each tensor of model.state_dict() must be there as "model.NAME"; parameters() alone leaves '
        "out buffers, such as a norm's running mean",
    )


@exercise("6.8")
def test_the_optimiser_is_in_it(taken):
    names = {name for name in taken[0].tensors if name.startswith("optimizer.")}
    expect(
        {"optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"} <= names,
        because="the optimiser's means are missing: a resumed run would begin with a mean of zero, and its loss jumps. "
        'Its tensors go in as "optimizer." and their names',
    )
    facts = taken[0].facts.get("optimizer", {})
    expect(
        isinstance(facts, dict) and "groups" in facts,
        because="the optimiser's tensors are there, its settings aren't: the second thing that optimizer_parts returns "
        'goes into the facts under "optimizer"',
    )


@exercise("6.8")
def test_the_optimisers_plain_numbers_are_in_it():
    model, optimizer = build()
    for p in model.parameters():
        optimizer.state[p] = {"step": 7, "exp_avg": torch.zeros_like(p)}  # the book's AdamW counts in plain numbers
    snapshot = checkpoint.capture(model, optimizer, None, step=7)
    expect_equal(
        snapshot.facts.get("optimizer", {}).get("numbers", "no numbers"),
        {f"{i}.step": 7 for i in range(6)},
        because="the optimiser's counts are missing: what isn't a tensor stands in the second thing that "
        'optimizer_parts returns, which goes in whole under "optimizer"',
    )


@exercise("6.8")
def test_the_random_state_is_in_it(taken):
    names = {name for name in taken[0].tensors if name.startswith("random.")}
    missing = {f"random.{name}" for name in checkpoint.random_state()} - names
    expect(
        not missing,
        because=f"missing of the random generators' states: {', '.join(sorted(missing))}. After a resume dropout draws "
        'other masks, or NumPy other numbers. All that random_state() returns goes in, as "random." and its name',
    )


@exercise("6.8")
def test_the_step_is_in_it(taken):
    expect_equal(
        taken[0].facts.get("step", "no step"),
        3,
        because='"step" must be there: the place in the data and in the schedule follow from it',
    )


@exercise("6.8")
def test_the_scaler_is_in_it():
    model, optimizer = build()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    snapshot = checkpoint.capture(model, optimizer, scaler, step=0)
    expect_equal(
        snapshot.facts.get("scaler", {}).get("scale", "no scale"),
        64.0,
        because="fp16's scale has been found by trial; without the scaler's state_dict it begins again, and skips "
        "steps",
    )
    expect_equal(
        checkpoint.capture(model, optimizer, None, step=0).facts.get("scaler"),
        {},
        because="without a scaler the facts hold {} in its place",
    )


@exercise("6.8")
def test_a_resumed_run_is_the_same_bit_for_bit(taken, tmp_path):
    snapshot, want, model = taken
    checkpoint.save_checkpoint(tmp_path, snapshot)
    random.seed(9), np.random.seed(9)
    torch.manual_seed(9)
    other, optimizer = build()
    steps(other, optimizer, 5)  # another past
    checkpoint.restore(checkpoint.latest_checkpoint(tmp_path), other, optimizer)
    expect_equal(
        steps(other, optimizer, 3),
        want,
        because="after a resume the losses are not those of the run that was never interrupted: something that decides "
        "them was not saved. Weights, buffers, the optimiser's means and counts, the random generators",
    )
    for name, tensor in model.state_dict().items():
        expect(
            torch.equal(other.state_dict()[name], tensor),
            because=f"after the resume {name} is not the same to the last bit",
        )
