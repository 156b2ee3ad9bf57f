"""Exercise 6.7: judged by what is on the disk at each moment."""

import os
from pathlib import Path

import pytest

from chapters.ch06_training import checkpoint
from chapters.judge import exercise, expect, expect_equal, expect_raises
from tests.ch06_training.words import no_error


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
