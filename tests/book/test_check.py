"""`check` tells the reader what is done, what isn't yet and why, whatever state the file is in."""

import os

RIGHT_AREA = "return math.pi * self.radius**2"


def test_fresh_clone_is_to_do(book):
    text = book.run("check", "3")
    assert "0 done · 0 not yet · 2 to do" in text
    assert "chapters/ch03_toy/parts.py:12" in text  # the stub's own line


def test_wrong_answer_says_why_and_where(book):
    book.solve("3.1", "return x * x")
    text = book.run("check", "3.1", ok=False)
    assert "3.1  double" in text
    assert "not yet" in text
    assert "expected 6, got 9" in text
    assert "you may have squared it" in text
    assert "chapters/ch03_toy/parts.py:12" in text
    assert "python -m chapters hint 3.1" in text


def test_right_answer_is_ticked_off_and_unticked_by_an_edit(book):
    book.solve("3.1", "return x + x")
    assert "done" in book.run("check", "3.1")
    row = next(line for line in book.run().splitlines() if "toy" in line)
    assert row.split("│")[2:5] == [" 1    ", " 1     ", "         "]
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x + x", "return x + x + 0"))
    row = next(line for line in book.run().splitlines() if "toy" in line)
    assert row.split("│")[5].strip() == "1"  # unchecked


def test_crash_names_the_readers_line(book):
    book.solve("3.1", "y = x\nreturn y.nothing")
    text = book.run("check", "3.1", ok=False)
    assert "AttributeError: 'int' object has no attribute 'nothing'" in text
    assert "chapters/ch03_toy/parts.py:13" in text


def test_a_crash_in_what_the_answer_called_is_shown_in_the_answer(book):
    """double is right; it was handed nothing."""
    book.solve("3.1", "return x + x")
    book.solve("3.2", "square = double(None)\nreturn square")
    text = book.run("check", "3.2", ok=False)
    assert "TypeError" in text
    line = book.view.read_text().splitlines().index("        square = double(None)") + 1
    assert f"chapters/ch03_toy/parts.py:{line} " in text


def test_an_endless_loop_is_stopped(book):
    book.edit("pyproject.toml", lambda text: text.replace('addopts = "', 'addopts = "--exercise-seconds=1 '))
    book.solve("3.1", "while True:\n    pass")
    book.edit(
        "tests/ch03_toy/test_parts.py",
        lambda text: text + '\n\n@exercise("3.1")\ndef test_again():\n    parts.double(1)\n',
    )
    text = book.run("check", "3.1", ok=False)
    assert "not finished after 1 s, at chapters/ch03_toy/parts.py:1" in text
    assert "never ends" in text


def test_slow_work_is_stopped_wherever_the_signal_comes(book):
    """The jump back at a loop's end stands in no line; pytest can't print a traceback that ends there."""
    book.edit("pyproject.toml", lambda text: text.replace('addopts = "', 'addopts = "--exercise-seconds=0.5 '))
    loops = "for a in range(10**6):\n    for b in range(10**6):\n        if a == -1:\n            x += 1\nreturn x"
    book.solve("3.1", loops)
    assert "not finished after 0.5 s, at chapters/ch03_toy/parts.py" in book.run("check", "3.1", ok=False)


def test_a_timer_of_the_readers_is_told_from_the_limit(book):
    book.solve("3.1", "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\nwhile True:\n    pass")
    text = book.run("check", "3.1", ok=False)
    assert "SIGALRM came after 0.1 s" in text
    assert "not finished" not in text


def test_syntax_error_is_reported_with_its_line(book):
    book.solve("3.1", "return 2 *")
    text = book.run("check", "3", ok=False)
    assert "chapters/ch03_toy/parts.py:12: Python can't read this line" in text
    assert "return 2 *" in text
    assert "chapters/ch03_toy/parts.py:12" in book.run()  # the overview survives it


def test_a_file_that_cannot_be_imported_is_reported_in_one_line(book):
    book.solve("3.1", "return x + x")
    kept = book.view.read_text()
    for line, message in (
        ("import nosuchpackage", "ModuleNotFoundError: No module named 'nosuchpackage'"),
        ("raise SystemExit", "SystemExit"),
        ("return 1", "'return' outside function"),
    ):
        book.view.write_text(kept.replace("import math", f"import math\n{line}"))
        text = book.run("check", "3.1", ok=False)
        assert message in text
        assert "chapters/ch03_toy/parts.py:6" in text
        assert len(text.splitlines()) <= 2


def test_a_byte_order_mark_does_no_harm(book):
    book.solve("3.1", "return x + x")
    book.view.write_bytes(b"\xef\xbb\xbf" + book.view.read_bytes())
    assert "done" in book.run("check", "3.1")


def test_a_stub_left_under_the_answer_is_named(book):
    book.edit(
        "chapters/ch03_toy/parts.py",
        lambda text: text.replace('    raise Todo("3.1")', '    y = 2\n    raise Todo("3.1")'),
    )
    assert "still runs; remove it" in book.run("check", "3.1")


def test_a_wrong_answer_that_another_may_use_is_named(book):
    book.solve("3.1", "return x * x")
    book.solve("3.2", "return double(1.0)")
    assert "or is it 3.1?" in book.run("check", "3", ok=False)
    assert "or is it 3.1?" in book.run("check", "3.2", ok=False)
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x * x", "return x + x + 0"))
    assert "or is it" not in book.run("check", "3.2", ok=False)  # nobody has looked at that body yet


def test_a_wrong_answer_that_another_cannot_use_is_not_named(book):
    book.solve("3.1", "return x * x")
    book.solve("3.2", "return 1.0")
    assert "or is it" not in book.run("check", "3", ok=False)
    book.edit("tests/ch03_toy/test_parts.py", lambda text: text.replace("Circle(3.0)", "Circle(parts.double(1.5))"))
    assert "or is it 3.1?" in book.run("check", "3.2", ok=False)


def test_an_error_is_named_beside_a_rejection(book):
    book.edit(
        "tests/ch03_toy/test_parts.py",
        lambda text: text + '\n\n@exercise("3.1")\ndef test_text():\n    parts.double("1")\n',
    )
    book.solve("3.1", "return x**2")
    text = book.run("check", "3.1", ok=False)
    assert text.index("you may have squared it") < text.index("and in another test: TypeError")


def test_deleted_markers_are_reported(book):
    kept = book.view.read_text()
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("    # exercise 3.1: return twice x\n", ""))
    text = book.run("check", "3", ok=False)
    assert "'# end' without a '# exercise' line above it" in text
    assert "the line that is missing: '    # exercise 3.1: return twice x'" in text
    assert "diff 3" in text
    assert "+    # exercise 3.1: return twice x" in book.run("diff", "3")  # where it stood
    book.view.write_text(kept.replace("# exercise 3.1: return", "# Exercise 3.1 return"))
    assert "not a marker I can read" in book.run("check", "3", ok=False)
    start, end = kept.index("    # exercise 3.1"), kept.index("class Circle")
    book.view.write_text(kept[:start] + "    return 2 * x\n\n\n" + kept[end:])
    assert "the line '    # exercise 3.1: return twice x' is gone" in book.run("check", "3", ok=False)


def test_a_lost_end_is_put_back_by_hand_or_by_resetting_that_exercise(book):
    book.solve("3.1", "twice = x + x\n\nreturn twice")
    book.solve("3.2", RIGHT_AREA)
    kept = book.view.read_text()
    for broken in (kept.replace("    # end\n\n\nclass", "\n\nclass"), kept.removesuffix("        # end\n")):
        ident, line = ("3.1", 14) if broken.endswith("# end\n") else ("3.2", 25)
        book.view.write_text(broken)
        text = book.run("check", "3", ok=False)
        assert f"exercise {ident} has no '# end' line; put '" in text
        assert f"# end' back below line {line}, behind the body" in text
        assert f"reset {ident}" in text
        lines = broken.splitlines()
        lines.insert(line, "    # end" if ident == "3.1" else "        # end")
        book.view.write_text("\n".join(lines) + "\n")
        assert "2 done" in book.run("check", "3")
        book.view.write_text(broken)
        text = book.run("reset", ident)
        copy = book.root / text.split("kept as ")[1].split()[0]
        assert copy.read_text() == broken
        assert "1 done · 0 not yet · 1 to do" in book.run("check", "3")  # the other one is as it was


def test_an_exercise_that_is_no_python_can_be_reset_alone(book):
    book.solve("3.1", "return 2 *")
    book.solve("3.2", RIGHT_AREA)
    assert "kept as .backup/" in book.run("reset", "3.1")
    assert "1 done · 0 not yet · 1 to do" in book.run("check", "3")


def test_prints_are_shown_under_a_failing_check(book):
    book.solve("3.1", "print('x is', x)\nreturn x * x")
    text = book.run("check", "3.1", ok=False)
    assert "printed in this check:\n     | x is 3\n" in text
    run = book.python("from chapters import check; check('3.1')")
    assert "| x is 3" in run.stdout
    book.edit(
        "chapters/ch03_toy/parts.py", lambda text: text.replace("print('x is', x)", "[print(i) for i in range(50)]")
    )
    text = book.run("check", "3.1", ok=False)
    assert "printed in this check (the last 20 lines; 30 came before):\n     | 30\n" in text
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x * x", "return 2 * x"))
    assert "printed" not in book.run("check", "3.1")


def test_a_broken_file_is_a_row_of_the_overview(book):
    show = (
        "from rich.console import Console; from chapters.exercises import Book; from chapters.overview import overview"
    )
    show += "; from chapters.progress import Progress; table, problems = overview(Book(), Progress())"
    show += "; Console(width=120).print(table); print(*problems)"
    assert "broken" not in book.python(show).stdout
    book.solve("3.1", "return 2 *")
    out = book.python(show).stdout
    row = next(line for line in out.splitlines() if "toy" in line)
    assert row.split("│")[6].strip() == "2"  # both exercises of the file
    assert "broken" in out
    assert "chapters/ch03_toy/parts.py:12: Python can't read this line" in out


def test_missing_and_unreadable_files_are_reported(book):
    book.view.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in book.run("check", "3", ok=False)
    book.view.unlink()
    assert "is missing; bring it back: python -m chapters build" in book.run("check", "3", ok=False)
    book.run("build")
    assert "2 to do" in book.run("check", "3")


def test_names_that_do_not_exist(book):
    assert "no chapter 9" in book.run("check", "9", ok=False)
    assert "chapter 3 has 3.1, 3.2" in book.run("check", "3.7", ok=False)
    assert "neither a chapter" in book.run("check", "three", ok=False)
    assert "which exercise? chapter 3 has 3.1, 3.2" in book.run("hint", "3", ok=False)


def test_the_notebooks_check_prints_the_same(book):
    book.solve("3.1", "return x * x")
    run = book.python("from chapters import check; check('3.1')")
    assert "expected 6, got 9" in run.stdout
    assert run.stderr == ""


def test_a_file_saved_twice_within_a_second_is_read_again(book, monkeypatch):
    """Python keeps compiled files, and knows a source by its size and the second it was saved in."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    book.solve("3.1", "return x + x")
    os.utime(book.view, (1_700_000_000, 1_700_000_000))
    book.run("check", "3.1")
    assert list(book.view.parent.glob("__pycache__/parts.*.pyc")), "Python has kept it"
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("return x + x", "return x * x"))
    os.utime(book.view, (1_700_000_000, 1_700_000_000))
    assert "you may have squared it" in book.run("check", "3.1", ok=False)
