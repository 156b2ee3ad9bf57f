"""Whether a model's files are those that were loaded."""

import os
import shutil

import pytest

from shared.serving.engines.model_files import PIECE, PIECES, FilesChanged, ModelFiles

LARGE = 3 * PIECE * PIECES


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("[1, 2]")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (LARGE // 256))
    return folder


def write(folder, at, data):
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(data)


SAME = {
    "nothing": lambda folder: None,
    "touched": lambda folder: [os.utime(file, (1, 1)) for file in folder.iterdir()],
    "copied": lambda folder: [shutil.copy(file, folder.parent / "copy") and (folder.parent / "copy").replace(file)
                              for file in list(folder.iterdir())],
    "what nobody reads": lambda folder: (folder / "README.md").write_text("hello"),
}  # fmt: skip
OTHERS = {
    "config.json": lambda folder: (folder / "config.json").write_text("[]"),
    "tokenizer.json": lambda folder: (folder / "tokenizer.json").write_text("[2, 1]"),
    "model-2.safetensors": lambda folder: (folder / "model-2.safetensors").write_bytes(b"more"),
    "model.safetensors": lambda folder: write(folder, 0, b"header"),
    "model.safetensors ": lambda folder: write(folder, LARGE // 2, b"x" * 4 * PIECE),  # somewhere in the middle
    "model.safetensors  ": lambda folder: write(folder, LARGE, b"x"),  # one byte more
}


@pytest.mark.parametrize("how", SAME)
def test_the_same(folder, how):
    files = ModelFiles(folder)
    SAME[how](folder)
    files.check()
    files.check()


@pytest.mark.parametrize("how", OTHERS)
def test_others(folder, how):
    files = ModelFiles(folder)
    OTHERS[how](folder)
    for _ in range(2):  # it stays true
        with pytest.raises(FilesChanged, match=how.strip()) as changed:
            files.check()
    assert str(folder) in str(changed.value)


def test_nobody_can_tell(folder):
    files = ModelFiles(folder)
    folder.rename(folder.parent / "away")
    with pytest.raises(FileNotFoundError):
        files.check()
    (folder.parent / "away").rename(folder)
    files.check()
