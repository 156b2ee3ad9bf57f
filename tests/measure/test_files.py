"""Files that are replaced in one step: also by two threads at a time, and never by half of one."""

import json
import threading

import pytest

from shared.measure.files import replacing, write_json


def test_two_threads_write_the_same_file(tmp_path):
    """Each has a part of its own: the slower one finds its own still there, and it is the last that counts."""
    file, inside, done = tmp_path / "a.json", threading.Event(), threading.Event()

    def slow():
        with replacing(file) as part:
            part.write_text("slow")
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=slow)
    thread.start()
    inside.wait(10)
    with replacing(file) as part:
        part.write_text("fast")
    assert file.read_text() == "fast"
    done.set()
    thread.join()
    assert file.read_text() == "slow"
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_what_fails_leaves_the_old_one(tmp_path):
    file = tmp_path / "new" / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(ValueError):
        write_json(file, float("nan"))

    def half():
        with replacing(file) as part:
            part.write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        half()
    assert json.loads(file.read_text()) == {"a": 1}
    assert [one.name for one in file.parent.iterdir()] == ["a.json"]
