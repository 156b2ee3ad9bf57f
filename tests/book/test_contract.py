"""The authors' side: each way to break the book's contract is found and named."""

import json


def problems(book) -> str:
    report = json.loads(book.run("verify", "--json", ok=False))
    assert not report["ok"]
    return "\n".join([p for e in report["exercises"] for p in e["problems"]] + report["problems"])


def test_a_good_book_is_verified(book):
    report = json.loads(book.run("verify", "--json"))
    assert report["ok"]
    first = report["exercises"][0]
    assert (first["id"], first["stub"], first["answer"], first["hint"]) == ("3.1", "to do", "passes", True)
    assert [m["rejected"] for m in first["mistakes"]] == [True, True]
    assert first["mistakes"][0]["message"].startswith("3.1: expected 6, got 9; twice three is six")
    assert "2 exercises with 4 mistakes, 0 broken" in book.run("verify", "--chapter", "3")
    assert "no chapter 4" in book.run("verify", "--chapter", "4", ok=False)


def test_a_readers_work_does_not_change_the_verdict(book):
    book.solve("3.1", "return x * x")
    assert "0 broken" in book.run("verify")
    assert "return x * x" in book.view.read_text()


def test_a_stub_that_passes(book):
    book.edit(
        "tests/ch03_toy/test_parts.py",
        lambda text: text + '\n\n@exercise("3.1")\ndef test_nothing():\n    assert parts\n',
    )
    assert "the untouched stub is not to do, it passed" in problems(book)


def test_a_stub_whose_test_swallows_the_todo(book):
    book.edit(
        "tests/ch03_toy/test_parts.py",
        lambda text: (
            text + '\n\n@exercise("3.1")\ndef test_swallows():\n'
            "    try:\n        assert parts.double(1) == 2\n    except Exception:\n        pass\n"
        ),
    )
    assert "the untouched stub is not to do, it passed" in problems(book)


def test_an_answer_that_fails(book):
    book.edit("tests/ch03_toy/test_parts.py", lambda text: text.replace("double(3), 6", "double(3), 7"))
    assert "the answer fails" in problems(book)


def test_a_mistake_that_slips_through(book):
    book.edit("solutions/ch03_toy/README.md", lambda text: text.replace("return x * x", "return x + x"))
    text = problems(book)
    assert "the mistake 'squared' slips through" in text
    assert "solutions/ch03_toy/README.md:" in text


def test_a_mistake_rejected_for_another_reason(book):
    page = "solutions/ch03_toy/README.md"
    book.edit(page, lambda text: text.replace("mistake 3.1\nreturn x * x", "mistake 3.1 says squared it\nreturn x * x"))
    assert json.loads(book.run("verify", "--json"))["ok"]
    book.edit(page, lambda text: text.replace("says squared it", "says halved it"))
    assert "the mistake 'squared' is rejected for another reason than 'halved it': 3.1: expected 6" in problems(book)


def test_a_mistake_that_only_crashes(book):
    book.edit("solutions/ch03_toy/README.md", lambda text: text.replace("return x * x", "return x.nothing"))
    assert "only crashes (AttributeError" in problems(book)
    book.edit("solutions/ch03_toy/README.md", lambda text: text.replace("return x.nothing", "return x +"))
    assert "only crashes" in problems(book)


def test_a_mistake_that_leaves_a_clock_running(book):
    bomb = "import signal, time\nsignal.signal(signal.SIGPROF, lambda *_: 1 / 0)\n"
    bomb += "signal.setitimer(signal.ITIMER_PROF, 0.2, 0.001)\n"
    book.edit("solutions/ch03_toy/README.md", lambda text: text.replace("return x * x", bomb + "return x * x"))
    assert json.loads(book.run("verify", "--json"))["ok"]


def test_too_few_mistakes_no_hint_no_reason(book):
    page = "solutions/ch03_toy/README.md"
    book.edit(page, lambda text: text.replace("**Mistake: unchanged.**\n```python mistake 3.1\nreturn x\n```\n", ""))
    book.edit(page, lambda text: text.replace("**Hint 1.** Pi.", "").replace("**Why the square.** It is an area.", ""))
    text = problems(book)
    assert "1 mistakes, at least 2 are needed" in text
    assert "no hint" in text
    assert "no reason" in text


def test_orphans_are_named(book):
    book.edit("solutions/ch03_toy/README.md", lambda text: text + "\n### 3.9 ghost\n**Hint 1.** Boo.\n")
    book.edit("tests/ch03_toy/test_parts.py", lambda text: text + '\n\n@exercise("3.8")\ndef test_ghost(): ...\n')
    book.edit("chapters/ch03_toy/notebook.ipynb", lambda text: text.replace('check(\\"3.2\\")', 'check(\\"3.7\\")'))
    text = problems(book)
    for ghost in ("3.9", "3.8", "3.7"):
        assert f"exercise {ghost} is orphaned" in text
    assert 'no cell check("3.2") in the notebook' in text


def test_an_exercise_without_tests_section_or_heading(book):
    book.edit(
        "shared/toy/parts.py",
        lambda text: text + "\n\ndef half(x):\n    # exercise 3.3: half\n    return x / 2\n    # end\n",
    )
    text = problems(book)
    assert "no section '### 3.3 …'" in text
    assert "no test judges it" in text
    assert "no heading '## 3.3 …'" in text


def test_tests_that_cannot_be_imported(book):
    book.edit("tests/ch03_toy/test_parts.py", lambda text: "import nothing_of_that_name\n" + text)
    assert "nothing_of_that_name" in problems(book)


def test_views_out_of_step(book):
    assert "every view is in step" in book.run("build", "--check")
    book.edit("shared/toy/parts.py", lambda text: text.replace("Twice x.", "Two times x."))
    text = book.run("build", "--check", ok=False)
    assert "chapters/ch03_toy/parts.py:" in text
    assert "out of step with shared/toy/parts.py" in text
    book.run("build")
    assert "every view is in step" in book.run("build", "--check")
    book.edit("shared/toy/parts.py", lambda text: text.replace("return 2 * x", "return x * 2"))
    assert "its generated part is out of step" in book.run("build", "--check", ok=False)


def test_a_view_edited_by_hand_is_out_of_step(book):
    book.edit("chapters/ch03_toy/parts.py", lambda text: text.replace("Twice x.", "Thrice x."))
    assert "chapters/ch03_toy/parts.py:" in book.run("build", "--check", ok=False)


def test_a_readers_bodies_and_helpers_are_in_step(book):
    book.solve("3.1", "return x + x")
    assert "every view is in step" in book.run("build", "--check")
    book.run("check", "3.1")  # from now on it is a reader's working copy
    book.edit(
        "chapters/ch03_toy/parts.py", lambda text: text.replace("class Circle", "def helper(): ...\n\n\nclass Circle")
    )
    assert "every view is in step" in book.run("build", "--check")


def test_stray_files_missing_views_and_notebooks_with_outputs(book):
    (book.root / "chapters/ch03_toy/old.py").write_text("")
    assert "chapters/ch03_toy/old.py: no module in shared/" in book.run("build", "--check", ok=False)
    (book.root / "chapters/ch03_toy/old.py").unlink()
    book.view.unlink()
    assert "chapters/ch03_toy/parts.py: missing" in book.run("build", "--check", ok=False)
    book.run("build")
    book.edit("chapters/ch03_toy/notebook.ipynb", lambda text: text.replace("## 3.1 double", "## 3.1 twice"))
    assert "its cells differ" in book.run("build", "--check", ok=False)


def test_broken_sources_are_named(book):
    source = (book.root / "shared/toy/parts.py").read_text()
    for change, message in (
        (("# exercise 3.2", "# exercise 3.1"), "stands here a second time (first at line 8)"),
        (("# exercise 3.2", "# exercise 4.2"), "exercises of chapters [3, 4] in one module"),
        (("    # end\n\n\n", "\n\n"), "exercise 3.1 has no '# end' line"),
    ):
        (book.root / "shared/toy/parts.py").write_text(source.replace(*change, 1))
        assert message in book.run("build", ok=False)
