"""The loop: resumed bit for bit, stopped cleanly, refused clearly; and two processes that are one."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.training.checkpoint import CheckpointError, checkpoints
from shared.training.distributed import Group
from shared.training.gradients import Precision
from shared.training.history import read_history
from shared.training.trainer import Settings, Stopped, train, validation_loss
from shared.training.windows import windows_of_step
from tests.training.small import SETTINGS, small_model, small_stream

STREAM, HELD_OUT = small_stream(), small_stream(400, seed=1)
LOSSES = ("loss", "lr", "grad_norm", "val_loss")


def run(folder: Path, settings: Settings = SETTINGS, on_step=None, stream=STREAM):
    model = small_model()
    return model, train(model, stream, HELD_OUT, settings, folder, progress=False, on_step=on_step)


class Killed(BaseException):
    """Like a kill: nothing in the loop expects it."""


def kill_after(step: int):
    def on_step(row):
        if row["step"] == step:
            raise Killed

    return on_step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return *run(folder), folder


@pytest.mark.parametrize("step", [2, 9, 15])
def test_killed_and_resumed_is_bit_for_bit_the_same(tmp_path, whole, step):
    with pytest.raises(Killed):
        run(tmp_path, on_step=kill_after(step))
    torch.rand(7)  # other numbers have been drawn in the meantime
    model, rows = run(tmp_path)
    for (name, a), b in zip(model.named_parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(a, b), name
    assert [[row.get(k) for k in LOSSES] for row in rows] == [[row.get(k) for k in LOSSES] for row in whole[1]]
    assert read_history(tmp_path) == rows


def test_it_learns_and_leaves_a_history(whole):
    model, rows, folder = whole
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[-1]["val_loss"] < rows[0]["loss"] - 0.3
    assert rows[-1]["val_loss"] == validation_loss(model, HELD_OUT, 16, 8)
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert len(checkpoints(folder)) == 2


def test_micro_batches_change_nothing(tmp_path, whole):
    """To rounding, that is: a sum in another order."""
    _, rows = run(tmp_path, replace(SETTINGS, micro_batch=0))
    for a, b in zip(rows, whole[1], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)


def test_a_finished_run_is_not_run_again(whole):
    model, rows = run(whole[2], on_step=kill_after(1))
    assert rows == whole[1]
    assert torch.equal(model.model.norm.weight, whole[0].model.norm.weight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves(tmp_path, whole, number):
    def on_step(row):
        if row["step"] == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        run(tmp_path, on_step=on_step)
    assert stopped.value.step == 7
    assert signal.getsignal(number) == before
    model, rows = run(tmp_path)
    assert torch.equal(model.model.norm.weight, whole[0].model.norm.weight)
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole[1]]


def test_a_second_signal_breaks_off_at_once(tmp_path):
    def on_step(row):
        if row["step"] == 7:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, on_step=on_step)
    assert checkpoints(tmp_path)[0].name == "checkpoint-00000005.safetensors"  # save_every is 5; 6 and 7 are lost


def test_a_run_with_other_settings_or_data_is_refused(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, on_step=kill_after(6))
    with pytest.raises(CheckpointError, match="max_lr 0.003, now 0.1"):
        run(tmp_path, replace(SETTINGS, max_lr=0.1))
    other = STREAM.clone()
    other[5] += 1
    with pytest.raises(CheckpointError, match="other data"):
        run(tmp_path, stream=other)


def test_a_history_cut_short_is_mended(tmp_path, whole):
    with pytest.raises(Killed):
        run(tmp_path, on_step=kill_after(12))
    history = tmp_path / "history.jsonl"
    history.write_text(history.read_text()[:-9] + '{"step": 99')
    _, rows = run(tmp_path)
    saved = read_history(tmp_path)
    assert [row["step"] for row in saved] == list(range(1, len(saved) + 1))
    assert rows[-1]["loss"] == whole[1][-1]["loss"]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"steps": 0}, "steps"), ({"length": 0}, "length"), ({"micro_batch": -1}, "micro_batch"),
     ({"warmup_steps": 99}, "warmup_steps"), ({"min_lr": 1.0}, "min_lr"), ({"batch_size": 1000}, "1000 windows"),
     ({"precision": "fp8"}, "fp8"), ({"max_lr": 0.0, "min_lr": 0.0}, "max_lr must be above 0"),
     ({"max_lr": float("nan")}, "not nan"), ({"max_lr": float("inf")}, "not inf"), ({"seed": 10**20}, "seed must be")],
)  # fmt: skip
def test_refuses_what_cannot_be(tmp_path, change, word):
    with pytest.raises(ValueError, match=word):
        run(tmp_path, replace(SETTINGS, **change))


def test_refuses_too_little_validation_text(tmp_path):
    with pytest.raises(ValueError, match="validation text has 10 tokens"):
        train(small_model(), STREAM, HELD_OUT[:10], SETTINGS, tmp_path, progress=False)


def test_bf16_trains_too(tmp_path):
    _, rows = run(tmp_path, replace(SETTINGS, precision="bf16"))
    assert rows[-1]["val_loss"] < rows[0]["loss"] - 0.3


def test_fp16_needs_a_gpu():
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="CUDA"):
            Precision("fp16")


def test_every_epoch_is_a_permutation():
    seen = [i for step in range(6) for i in windows_of_step(step, 4, 13, seed=5)]
    for epoch in (seen[:12], seen[12:]):
        assert len(set(epoch)) == 12
    assert seen[:12] != seen[12:]


SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path
import torch
from shared.training.distributed import process_group
from shared.training.trainer import train
from tests.training.small import SETTINGS, small_model, small_stream
torch.set_num_threads(1)
with process_group() as group:
    model = small_model()
    settings = replace(SETTINGS, steps=6, save_every=3, batch_size=int(sys.argv[2]))
    train(model, small_stream(), small_stream(400, seed=1), settings, Path(sys.argv[1]), group, progress=False)
    print("bye", group.rank)
"""


def torchrun(tmp_path: Path, batch_size: int) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    return subprocess.run(
        [sys.executable, *command, str(tmp_path / "two"), str(batch_size)],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_two_processes_are_one(tmp_path):
    done = torchrun(tmp_path, batch_size=4)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(done.stdout.split()) == ["0", "1", "bye", "bye"]
    one = small_model()
    rows = train(one, STREAM, HELD_OUT, replace(SETTINGS, steps=6, save_every=3), tmp_path / "one", progress=False)
    two = read_history(tmp_path / "two")
    assert len(two) == 6  # rank 0 wrote, and nobody else
    for a, b in zip(two, rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
    # the checkpoint of two processes goes on in one, with the same weights
    model = small_model()
    train(model, STREAM, HELD_OUT, replace(SETTINGS, steps=6, save_every=3), tmp_path / "two", progress=False)
    for a, b in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_a_batch_that_two_cannot_share(tmp_path):
    with pytest.raises(ValueError, match="a batch of 3 windows can't be shared by 2 processes; make it .*, such as 4"):
        train(small_model(), STREAM, HELD_OUT, replace(SETTINGS, batch_size=3), tmp_path, Group(rank=1, world=2))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu(tmp_path, precision):
    model = small_model().cuda()
    settings = replace(SETTINGS, precision=precision)
    rows = train(model, STREAM, HELD_OUT, settings, tmp_path, Group(device="cuda"), progress=False)
    assert rows[-1]["val_loss"] < rows[0]["loss"] - 0.3


@pytest.mark.gpu
def test_resumes_bit_for_bit_on_a_gpu(tmp_path):
    settings, group = replace(SETTINGS, precision="fp16"), Group(device="cuda")
    whole = small_model().cuda()
    train(whole, STREAM, HELD_OUT, settings, tmp_path / "a", group, progress=False)
    with pytest.raises(Killed):
        train(small_model().cuda(), STREAM, HELD_OUT, settings, tmp_path / "b", group, False, kill_after(9))
    model = small_model().cuda()
    train(model, STREAM, HELD_OUT, settings, tmp_path / "b", group, progress=False)
    for (name, a), b in zip(model.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(a, b[1]), name
