"""No file of code is longer than a reader keeps in mind: 300 lines."""

import pytest

from chapters import ROOT
from chapters.scratch import book_files

CODE = sorted(name for name in book_files(ROOT) if name.endswith((".py", ".js", ".cpp", ".css", ".html")))
LIMIT = 300


def test_all_are_looked_at():
    assert len(CODE) > 300
    assert "shared/inference/scheduler.py" in CODE


@pytest.mark.parametrize("folder", ["shared", "chapters", "tests", "data"])
def test_no_file_is_too_long(folder):
    lengths = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in CODE if name.startswith(folder)}
    assert not {name: lines for name, lines in lengths.items() if lines > LIMIT}
