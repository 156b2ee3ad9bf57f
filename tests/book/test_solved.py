"""The solved copy of a tiny book: what is run in it, and that whatever fails there is told."""


def test_a_notebook_is_executed_on_the_answers(book):
    assert "solutions/ch03_toy/notebook.ipynb: written" in book.run("execute", "3")
    solved = (book.root / "solutions/ch03_toy/notebook.ipynb").read_text()
    assert "3.1  double" in solved
    assert "done" in solved
    assert 'raise Todo("3.1")' in book.view.read_text()  # the reader's file is untouched


def test_one_chapter(book):
    text = book.run("test-solved", "--chapter", "3")
    assert "chapter 3 alone, whole and half done: passed" in text
    assert "2 passed in" in text.partition("chapters alone: ")[2].partition("tests on the reader's parts: ")[0]
    assert "2 passed in" in text.partition("ch03_toy/notebook.ipynb\n")[2]
    assert "ch03_toy" in text.splitlines()[-4]  # the table of times
    assert 'raise Todo("3.1")' in book.view.read_text()
    assert not (book.root / ".progress.json").exists()


def test_failures_are_told(book):
    """A test that judges no exercise runs in the copy, too; its failure doesn't keep the notebooks from being run."""
    book.run("execute", "3")
    other = "\n\ndef test_of_shared_alone():\n    assert False, 'judges no exercise'\n"
    book.edit("tests/ch03_toy/test_parts.py", lambda text: text + other)
    said = ("3.1  double", "3.1  treble")
    book.edit("solutions/ch03_toy/notebook.ipynb", lambda text: text.replace(*said))
    text = book.run("test-solved", ok=False)
    assert "chapter 3 alone, whole and half done: passed" in text  # of the chapters' tests, those of the exercises
    assert "1 failed, 2 passed" in text
    assert "treble" in text
    assert "1 failed, 1 passed" in text  # the other cell says what the tests said


def test_an_answer_that_is_rejected_is_not_used(book):
    book.edit("shared/toy/parts.py", lambda text: text.replace("return 2 * x", "return 3 * x"))
    text = book.run("test-solved", ok=False)
    assert "chapter 3 alone, whole and half done: failed" in text
    assert "twice three is six" in text
    assert "3.1 can't be right yet" in text
    assert "tests on the reader's parts" not in text
