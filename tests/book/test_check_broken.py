"""`check` where a file is broken, and where the packages stand elsewhere."""

import pytest

HALVES = '''"""One function."""


def halve(x: float) -> float:
    """Half of x."""
    # exercise 3.3: return half of x
    return x / 2
    # end
'''
HALF_TEST = """from chapters.ch03_toy import halves
from chapters.judge import exercise, expect_equal


@exercise("3.3")
def test_halve():
    expect_equal(halves.halve(4), 2.0, because="half of four is two")
"""


@pytest.fixture
def two_files(book):
    """The book with a second file in its chapter, whose exercise is done."""
    (book.root / "shared/toy/halves.py").write_text(HALVES)
    (book.root / "tests/ch03_toy/test_halves.py").write_text(HALF_TEST)
    (book.root / "chapters/ch03_toy/halves.py").write_text(HALVES)
    return book


def test_a_broken_file_does_not_hide_the_others(two_files):
    two_files.solve("3.1", "return 2 *")
    text = two_files.run("check", "3", ok=False)
    assert "3.3  halve" in text
    assert "done" in text
    assert "chapters/ch03_toy/parts.py:12: Python can't read this line" in text
    assert "not checked for that: 3.1, 3.2" in text
    text = two_files.run("use", "3", ok=False)
    assert "parts.py:12: Python can't read this line" in text
    assert "nothing was changed" in text
    assert "done" in two_files.run("check", "3.3")  # its own file is sound
    run = two_files.python("from chapters import check; check('3')")
    assert "3.3  halve" in run.stdout
    assert "Python can't read this line" in run.stdout


def test_a_file_that_cannot_be_imported_does_not_hide_the_others(two_files):
    two_files.solve("3.1", "return x + x")
    two_files.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("import math", "import math\nimport nosuch"))
    text = two_files.run("check", "3", ok=False)
    assert "3.3  halve" in text
    assert "parts.py:6: ModuleNotFoundError: No module named 'nosuch'" in text
    assert "not checked for that: 3.1" in text
    two_files.edit("tests/ch03_toy/test_halves.py", lambda text: "from chapters.ch03_toy import parts\n" + text)
    text = two_files.run("check", "3.3", ok=False)  # its tests need the other file
    assert text.count("No module named 'nosuch'") == 1
    assert "done" not in text


def test_the_callers_pythonpath_is_kept(book, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/of_the_reader.py").write_text("TWO = 2\n")
    (tmp_path / "elsewhere/chapters.py").write_text("raise ImportError('the root comes first')\n")
    book.solve("3.1", "import of_the_reader\nreturn of_the_reader.TWO * x")
    book.path = str(tmp_path / "elsewhere")
    assert "done" in book.run("check", "3.1")
