"""The command that trains the book's own model: what it refuses, what it never removes, and how it ends."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import SafetensorError

from shared.training import distributed, own_model
from shared.training.__main__ import main, same_command
from shared.training.distributed import Group
from shared.training.own_data import VERSION, own_data
from shared.training.own_folder import FACTS, ORIGIN, is_whole, lock, work_folder
from shared.training.own_model import train_own_model
from shared.training.trainer import Stopped
from tests.training.conftest import TINY


def begun(path: Path, **changes) -> Path:
    """A run at `path` that was begun and has a checkpoint. Returns the checkpoint."""
    work = work_folder(path)
    saved = work / "run" / "checkpoint-00000002.safetensors"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(b"weeks of work")
    origin = {"version": VERSION, "documents": 300, "vocab_size": 320, "corpus_sha256": "0" * 64}
    (work / ORIGIN).write_text(json.dumps(origin | changes))
    return saved


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"documents": 400}, "with documents 400, now 300"), ({"vocab_size": 400}, "vocab_size 400, now 320"),
     ({"version": 1}, f"version 1, now {VERSION}"), ({}, "with other texts .*packages")],
)  # fmt: skip
def test_a_run_on_other_data_is_not_thrown_away(tmp_path, changes, told):
    saved = begun(tmp_path / "x", **changes)
    with pytest.raises(ValueError, match=f"{told}.*--out.*--fresh"):
        train_own_model(tmp_path / "x", TINY, progress=False)
    assert saved.read_bytes() == b"weeks of work"


def test_damaged_streams_and_the_remains_of_other_numbers_are_made_again(tmp_path):
    saved = begun(tmp_path / "x", documents=400)
    saved.unlink()  # no run: nothing to lose
    work = work_folder(tmp_path / "x")
    want, streams = own_data(work, 300, 320, progress=False).train, work / "streams.safetensors"
    whole = streams.read_bytes()
    for damaged in (whole[:-100], whole[:-100] + b"\xff" * 100):
        streams.write_bytes(damaged)
        assert torch.equal(own_data(work, 300, 320, progress=False).train, want)
    assert [file.name for file in work.parent.iterdir()] == [work.name]


@pytest.mark.parametrize("folder", ["x", "x.training"])
@pytest.mark.parametrize("file", ["notes.txt", FACTS, ORIGIN])
def test_what_was_not_made_here_is_not_replaced(tmp_path, monkeypatch, capsys, folder, file):
    monkeypatch.setattr(own_model, "RECIPE", TINY)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=f"{folder} holds something that wasn't made here"):
        train_own_model(tmp_path / "x", TINY, progress=False)
    assert main(["--out", str(tmp_path / "x"), "--fresh"]) == 2
    assert "wasn't made here" in capsys.readouterr().err
    assert (tmp_path / folder / file).read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("--lr nan", "--lr must be above 0 and finite, not nan"), ("--lr 0", "--lr must be above 0"),
     ("--documents 0", "--documents must be at least 1"), ("--seed -1", "--seed must be"), ("--batch 0", "--batch"),
     ("--micro-batch -1", "--micro-batch must be at least 0"), ("--steps 0", "--steps must be at least 1, not 0"),
     ("--seed 100000000000000000000", "seed must be below"), ("--device cuda", "no GPU"), ("--precision fp16", "fp16")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_removed(made, tmp_path, monkeypatch, capsys, wrong, told):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    saved = begun(tmp_path / "x")
    assert main(["--out", str(tmp_path / "x"), "--fresh", *wrong.split()]) == 2
    assert told in capsys.readouterr().err
    assert saved.exists()
    assert main(["--out", str(made), *wrong.split()]) == 2  # with a finished model, too


def test_fresh_removes_the_run_and_then_goes_on_without_it(made, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(made, tmp_path / "x")
    saved, seen = begun(copy), []
    monkeypatch.setattr(own_model, "RECIPE", TINY)

    def stopped(*_):
        seen.append(saved.exists())
        raise Stopped(1)

    monkeypatch.setattr(own_model, "train_own_model", stopped)
    assert main(["--out", str(copy), "--fresh"]) == main(["--out", str(copy)]) == 130
    assert seen == [False, False]
    assert is_whole(copy)


def test_two_at_once(tmp_path, monkeypatch, capsys):
    saved = begun(tmp_path / "x")
    with lock(tmp_path / "x"):
        assert main(["--out", str(tmp_path / "x"), "--fresh"]) == 2
    assert "another process is training" in capsys.readouterr().err
    assert saved.exists()
    seen = []

    def trains(*_):
        with pytest.raises(ValueError, match="another process"), lock(tmp_path / "x", wait=False):
            seen.append("two at once")
        raise SafetensorError("No space left")

    monkeypatch.setattr(own_model, "train_own_model", trains)
    assert main(["--out", str(tmp_path / "x")]) == 2  # whatever file can't be written: a line, no traceback
    assert capsys.readouterr().err == "error: No space left\n"
    assert seen == []


def test_ctrl_c_while_torch_is_loaded(monkeypatch, capsys):
    class Slow(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "shared.training.own_model", Slow("shared.training.own_model"))
    assert main(["--out", "a b", "--fresh"]) == 130
    assert capsys.readouterr().err == "\nTo go on: python -m shared.training --out 'a b'\n"


def test_a_second_ctrl_c_says_what_is_lost(tmp_path, monkeypatch, capsys):
    saved = begun(tmp_path / "x")

    def broken_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(own_model, "train_own_model", broken_off)
    assert main(["--out", str(tmp_path / "x")]) == 130
    assert f"What {saved} doesn't hold is lost" in capsys.readouterr().err
    saved.unlink()
    assert main(["--out", str(tmp_path / "x")]) == 130
    assert "No step of the training was saved" in capsys.readouterr().err


def test_the_command_to_go_on_with_under_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    told = "torchrun --standalone --nproc-per-node 2 -m shared.training --steps 9"
    assert same_command(["--fresh", "--steps", "9"]) == told


def test_options_are_not_abbreviated(capsys):
    """--fre would start over, and stay in the command to go on with."""
    with pytest.raises(SystemExit):
        main(["--fre"])
    assert "--fre" in capsys.readouterr().err


def test_a_batch_that_the_processes_cannot_share(tmp_path, monkeypatch, capsys):
    @contextmanager
    def three(device):
        yield Group(0, 3, device)

    monkeypatch.setattr(distributed, "process_group", three)
    saved = begun(tmp_path / "x")
    assert main(["--out", str(tmp_path / "x"), "--fresh", "--batch", "4"]) == 2
    assert "--batch 4 can't be shared by 3 processes; make it a multiple of 3, such as 6" in capsys.readouterr().err
    assert saved.exists()


def test_the_command(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_model, "RECIPE", TINY)
    assert main(["--out", str(made)]) == 0
    assert "already" in capsys.readouterr().out
    assert main(["--out", str(tmp_path / "x"), "--steps", "0"]) == 2
    assert "steps must be at least 1" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "x"), "--documents", "300", "--batch", "100000"]) == 2
    assert "100000 windows" in capsys.readouterr().err

    def stopped(*_):
        raise Stopped(3)

    monkeypatch.setattr(own_model, "train_own_model", stopped)
    assert main(["--out", str(tmp_path / "x"), "--steps", "6", "--fresh"]) == 130
    told = capsys.readouterr().err
    assert "after step 3 of 6" in told
    assert f"python -m shared.training --out {tmp_path / 'x'} --steps 6\n" in told


def test_ctrl_c_in_a_terminal(tmp_path):
    """The command as people run it: SIGINT in the middle of training, exit code 130, and the way to go on."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom shared.data import corpus\nfrom shared.training import own_model\n"
        f"corpus.CORPORA = Path({str(tmp_path)!r})\nfrom tests.training.conftest import TINY\n"
        "own_model.RECIPE = TINY\nfrom shared.training import __main__ as command\n"
        f"sys.exit(command.main(['--out', {str(tmp_path / 'm')!r}, '--steps', '100000', '--documents', '300']))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, cwd=Path.cwd())
    run = work_folder(tmp_path / "m") / "run"
    try:
        while not list(run.glob("checkpoint-*.safetensors")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)  # a core is worth more to the process that is waited for
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Stopped after step" in told
    assert "To go on: python -m shared.training" in told
