"""The reader's other commands: hint, answer, diff, reset, build, use; and plain pytest."""

import json

import pytest

READ_ONLY = "raise OSError(30, 'Read-only file system', str(temporary))"


def test_hints_come_one_at_a_time(book):
    first = book.run("hint", "3.1")
    assert "hint 1 of 2: What is three and three?" in first
    assert "2 * x" not in first
    second = book.run("hint", "3.1")
    assert "hint 2 of 2" in second
    assert "answer 3.1" in second


def test_answer_shows_and_writes_and_keeps_what_was_there(book):
    text = book.run("answer", "3.1")
    assert "# exercise 3.1: return twice x\n#   whatever its type\nreturn 2 * x\n# end\n" in text
    assert "Because the next function needs it." in text
    book.solve("3.1", "return x * x  # mine")
    text = book.run("answer", "3.1", "--write")
    copy = book.root / text.split("kept as ")[1].split()[0]
    assert "return x * x  # mine" in copy.read_text()
    assert "done" in book.run("check", "3.1")


def test_a_chapters_answers_leave_alone_what_is_written(book):
    mine = "return x + x  # mine"
    book.solve("3.1", mine)
    text = book.run("answer", "3", "--write")
    assert "parts.py: yours, left alone: 3.1 (to replace them: python -m chapters answer 3 --write --all;" in text
    assert "answer written: 3.2" in text
    assert mine in book.view.read_text()
    assert "2 done" in book.run("check", "3")
    text = book.run("answer", "3", "--write")
    assert "left alone: 3.1" in text
    assert "left alone: 3.1, 3.2" not in text  # 3.2 is the reference's own
    assert mine in book.view.read_text()
    text = book.run("answer", "3", "--write", "--all")
    assert mine not in book.view.read_text()
    assert mine in (book.root / text.split("kept as ")[1].split()[0]).read_text()
    assert "--all" in book.run("answer", "--help")


def test_an_answer_by_its_own_number_replaces_what_is_written(book):
    book.solve("3.1", "return x + x  # mine")
    assert "answer written: 3.1" in book.run("answer", "3.1", "--write")
    assert "# mine" not in book.view.read_text()


def test_diff_shows_only_what_is_written(book):
    assert "no difference" in book.run("diff", "3")
    book.solve("3.1", "return x + x")
    text = book.run("diff", "3")
    assert "-return x + x" in text
    assert "+return 2 * x" in text
    assert "3.2" not in text


def test_reset_one_exercise_keeps_the_other(book):
    right = "return math.pi * self.radius**2"
    book.solve("3.1", "return x * x")
    book.solve("3.2", right)
    text = book.run("reset", "3.1")
    assert "kept as .backup/" in text
    assert 'raise Todo("3.1")' in book.view.read_text()
    assert right in book.view.read_text()


def test_build_never_overwrites_an_edited_file(book):
    book.solve("3.1", "return x + x  # mine")
    book.edit("shared/toy/parts.py", lambda text: text.replace("Twice x.", "Two times x."))
    assert "edited by you, left alone" in book.run("build")
    assert "return x + x  # mine" in book.view.read_text()


def test_use_runs_the_finished_name_on_the_readers_file(book):
    show = "import shared; from shared.toy import parts; print(parts.double(3), parts.Circle(1).area())"
    show += "; print(shared.reader_parts())"
    assert book.python(show).stdout.startswith("6 3.14159")
    assert "nothing of chapter 3 is written yet" in book.run("use", "3", ok=False)
    book.solve("3.1", "return x + x + 0.5 - 0.5")
    text = book.run("use", "3")
    assert "shared.toy.parts: yours, chapters/ch03_toy/parts.py; 3.2 still from the reference" in text
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("+ 0.5 - 0.5", "+ 100"))
    out = book.python(show).stdout
    assert out.startswith("106 3.14159")  # the reader's 3.1, the reference's 3.2
    assert "yours, chapters/ch03_toy/parts.py (3.2 still from the reference)" in out
    book.run("use", "--reference", "3")
    assert book.python(show).stdout.startswith("6 3.14159")


def test_use_refuses_a_failing_part_unless_forced(book):
    book.solve("3.1", "return x * x")
    text = book.run("use", "3", ok=False)
    assert "nothing was changed, since 3.1 can't be right yet" in text
    assert not json.loads((book.root / ".progress.json").read_text())["use"]
    book.run("use", "3", "--force")
    assert json.loads((book.root / ".progress.json").read_text())["use"]


def test_a_part_in_use_that_breaks_says_so(book):
    book.solve("3.1", "return x + x")
    book.run("use", "3")
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x + x", "return x +"))
    run = book.python("from shared.toy import parts")
    assert run.returncode != 0
    assert "your part chapters/ch03_toy/parts.py, in use for shared.toy.parts, can't be loaded" in run.stderr
    assert "use --reference 3" in run.stderr


FAULT = """
import shared
from shared.toy import parts
print(shared.reader_chapters())
for call in (parts.double, lambda _: parts.Circle(1).area()):
    try:
        call(None)
    except Exception as error:
        print(shared.in_words(error))
"""


def test_a_fault_in_a_part_in_use_is_called_the_readers(book):
    """By its line in the reader's file, also where what runs has other lines; and the reference's faults aren't."""
    book.solve("3.2", 'raise KeyError("my bug")')
    book.run("use", "3", "--force")
    longer = lambda text: text.replace("    return 2 * x\n", "    y = x\n    y = 2 * y\n    return y\n")  # noqa: E731
    book.edit("shared/toy/parts.py", longer)
    number = book.view.read_text().splitlines().index('        raise KeyError("my bug")') + 1
    part, remedy = "your part chapters/ch03_toy/parts.py", "python -m chapters use --reference 3"
    own = f"{part}:{number} raised KeyError: 'my bug'; mend it, or go back to the reference: {remedy}"
    said = book.python(FAULT).stdout.splitlines()
    assert said[0] == "['chapter 3: yours (parts; 3.1 still from the reference)']"
    assert said[1].startswith("TypeError: unsupported")
    assert said[2] == own
    book.solve("3.1", "return x + x")
    assert book.python(FAULT).stdout.splitlines() == [
        "['chapter 3: yours (parts)']",
        f"{part}:{book.view.read_text().splitlines().index('    return x + x') + 1} raised {said[1].split(':')[0]}: "
        f"unsupported operand type(s) for +: 'NoneType' and 'NoneType'; mend it, or go back to the reference: {remedy}",
        own,
    ]


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"use": 7}', b"\xff\x00", b'{"use": {"shared.toy.parts": 7}}'])
def test_a_broken_progress_file_is_one_sentence_and_loses_nothing(book, bad):
    file = book.root / ".progress.json"
    file.write_bytes(bad)
    for words in ([], ["check", "3"], ["hint", "3.1"], ["use", "3"], ["reset", "3.1"]):
        text = book.run(*words, ok=False).strip()
        assert text.startswith(".progress.json can't be read")
        assert "mv .progress.json .progress.json.broken" in text
        assert len(text.splitlines()) == 1
    assert file.read_bytes() == bad
    assert "answer written: 3.1" in book.run("answer", "3.1", "--write")  # needs no progress


def test_a_command_that_runs_on_the_parts_in_use_says_what_is_wrong_with_them(book):
    """bench imports shared/ when the program starts; here it does so without anything else."""
    (book.root / ".progress.json").write_text("{")
    book.edit("chapters/bench.py", lambda text: "from shared.toy import parts\n\n" + text)
    for words in ([], ["check", "3"], ["bench"]):
        text = book.run(*words, ok=False)
        assert text.startswith(".progress.json can't be read")
        assert len(text.splitlines()) == 1


def test_use_and_notebook_take_whole_chapters(book):
    assert "use takes a whole chapter: python -m chapters use 3" in book.run("use", "3.1", ok=False)
    assert "notebook takes a whole chapter" in book.run("notebook", "3.1", ok=False)
    for words in (["use", "abc"], ["use", "--reference", "abc"], ["notebook", "abc"], ["check", "abc"]):
        assert "'abc' is neither a chapter (1) nor an exercise (1.4)" in book.run(*words, ok=False)


def test_a_file_that_cannot_be_written_is_named(book):
    book.edit("chapters/views.py", lambda text: text.replace("os.replace(temporary, path)", READ_ONLY))
    text = book.run("answer", "3.1", "--write", ok=False)
    assert "chapters/ch03_toy/parts.py: can't be written: Read-only file system" in text
    assert ".part" not in text
    book.solve("3.1", "return x + x")
    text = book.run("check", "3.1")  # a verdict is a verdict
    assert "done" in text
    assert f"not remembered: {book.root}/.progress.json: can't be written: Read-only file system" in text
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x + x", "return x * x"))
    assert "you may have squared it" in book.run("check", "3.1", ok=False)


def test_a_python_without_the_packages(book):
    bare = (
        "import sys; sys.modules['rich'] = sys.modules['rich.console'] = None; from chapters import check; check('3.1')"
    )
    run = book.python(bare)
    assert "this Python lacks the book's packages" in run.stdout
    assert "choose the kernel of .venv" in run.stdout
    assert run.returncode == 0
    assert run.stderr == ""


def test_the_commands_are_listed_with_the_first_one_first(book):
    rows = [line.split()[1] for line in book.run("--help").splitlines() if line.startswith("│ ")]
    assert rows.index("check") < rows.index("use") < rows.index("evaluate") < rows.index("build")


def test_ctrl_c_while_the_program_starts(book):
    (book.root / "chapters/evaluate.py").write_text("raise KeyboardInterrupt\n")
    assert book.run("check", "3", ok=False) == ""


def test_plain_pytest_skips_what_is_to_do(book):
    run = book.python("import pytest; pytest.main(['-q', '-rs', '-p', 'no:cacheprovider', 'tests/ch03_toy'])")
    assert "2 skipped" in run.stdout
    assert "exercise 3.1 is to do: chapters/ch03_toy/parts.py:12" in run.stdout


def test_pytest_on_the_reference(book):
    run = book.python("import pytest; pytest.main(['-q', '-p', 'no:cacheprovider', '--reference', 'tests/ch03_toy'])")
    assert "2 passed" in run.stdout
