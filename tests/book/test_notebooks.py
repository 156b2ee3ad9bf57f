"""Every notebook opens and closes as the others do, defines a term where it first stands, and asks fair questions."""

import re
from collections import Counter

import nbformat
import pytest

from chapters import glossary, notebooks
from chapters.exercises import Book

BOOK = Book()
CHAPTERS = sorted(BOOK.folders)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_opening_says_where_we_are(chapter):
    opening = notebooks.opening(chapter, BOOK)
    assert list(opening) == list(notebooks.OPENING)
    assert all(opening.values())
    assert "```" in opening["Where it sits"], "there is a diagram"
    needed = notebooks.first_sentence(opening["Before this:"])
    numbers = [int(number) for number in re.findall(r"\d+", needed)]
    assert numbers or "nothing but Python" in needed, needed
    assert all(number < chapter for number in numbers), f"chapter {chapter} can't need {needed}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_closing_says_what_was_gained_and_what_comes_next(chapter):
    last = notebooks.texts(chapter, BOOK)[-1]
    assert last.startswith(notebooks.CLOSING)
    assert f"python -m chapters use {chapter}" in last
    if chapter != CHAPTERS[-1]:
        assert re.search(rf"^\*\*Next:\*\* chapter {chapter + 1}\b", last, re.MULTILINE)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_right_option_is_not_the_longest(chapter):
    asked = notebooks.questions(chapter, BOOK)
    assert len(asked) >= 3
    for question in asked:
        longest = max(question.options, key=lambda letter: len(question.options[letter]))
        assert question.right != longest, f"{question.text}: the right option, {question.right}, is the longest"
    letter, times = Counter(question.right for question in asked).most_common(1)[0]
    assert times <= 0.7 * len(asked), f"({letter}) is right in {times} of {len(asked)} questions"


def test_no_question_is_left_out():
    """Each folded answer belongs to a question that was read."""
    for chapter in CHAPTERS:
        text = "\n\n".join(notebooks.texts(chapter, BOOK))
        assert len(notebooks.questions(chapter, BOOK)) == text.count("<summary>Answer</summary>"), chapter


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_defines_its_terms(chapter):
    terms = notebooks.definitions(chapter, BOOK)
    assert terms
    for term in terms:
        assert term.sentence[-1] in ".!?)", term
        assert 20 < len(term.sentence) < 500, term
        first = re.split(r"[ ,]", term.sentence)[0]
        assert first not in ("This", "Here", "That", "These", "It", "They"), f"not by itself: {term.sentence}"


def prose(text: str) -> str:
    """A cell's text without code, headings, folded answers, links' targets and what is in the opening's diagram."""
    text = notebooks.FENCE.sub("", text)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|^#.*$", "", text, flags=re.MULTILINE)


def test_no_term_stands_before_its_definition():
    """An acronym or a term of several words: in the paragraphs before its definition it isn't used, unless these point
    to the chapter that defines it ("(chapter 9)")."""
    early = []
    defined = [term for chapter in CHAPTERS for term in notebooks.definitions(chapter, BOOK)]
    paragraphs = [
        (chapter, paragraph)
        for chapter in CHAPTERS
        for number, text in enumerate(notebooks.texts(chapter, BOOK))
        if number  # the opening names what the chapter is about to explain
        for paragraph in re.split(r"\n\s*\n", prose(text))
    ]
    for term in defined:
        if term.term.islower() and " " not in term.term:  # a word of the language too, such as block or step
            continue
        pattern = re.compile(rf"\b{re.escape(term.term)}\b", 0 if term.term.isupper() else re.IGNORECASE)
        for chapter, paragraph in paragraphs:
            if f"***{term.term}***" in paragraph:
                break
            if pattern.search(paragraph) and f"hapter {term.chapter}" not in paragraph:
                early.append(f"chapter {chapter}: {term.term!r} (defined in chapter {term.chapter}): {paragraph[:90]}")
    assert not early, "\n".join(early)


def test_the_glossary_has_them_all():
    page = (BOOK.root / "chapters" / "GLOSSARY.md").read_text(encoding="utf-8")
    assert page == glossary.page(BOOK)
    terms = [term for chapter in CHAPTERS for term in notebooks.definitions(chapter, BOOK)]
    assert len(terms) >= 100
    assert page.count("\n- **") == len(terms)


SENTENCES = """Before it. A ***paged cache*** (e.g. [ours](x.md)) holds keys in blocks of 1.5 kB. After it.

- One.
- ***Prefill*** is the reading of
  a prompt! Then more.
"""


def test_a_definition_is_the_sentence_around_its_term(book):
    path = book.root / "chapters/ch03_toy/notebook.ipynb"
    cells = [nbformat.v4.new_markdown_cell(text) for text in ("## 3.1 One", SENTENCES)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    found = notebooks.definitions(3, Book(book.root))
    assert [(term.term, term.sentence, term.section) for term in found] == [
        ("paged cache", "A ***paged cache*** (e.g. ours) holds keys in blocks of 1.5 kB.", "3.1 One"),
        ("Prefill", "***Prefill*** is the reading of a prompt!", "3.1 One"),
    ]
    (book.root / "chapters/GLOSSARY.md").touch()
    book.run("build")
    page = (book.root / "chapters/GLOSSARY.md").read_text()
    assert (
        "- **Prefill**: Prefill is the reading of a prompt! ([chapter 3, 3.1 One](ch03_toy/notebook.ipynb#3.1-One))"
        in page
    )
    cells.append(nbformat.v4.new_markdown_cell("A ***prefill*** is something else."))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert "'prefill' is defined already" in book.run("build", ok=False)


def test_a_changed_text_needs_no_new_run(book):
    """build puts it into the solved notebook, between the old outputs; changed code needs `execute`."""
    reader, solved = (book.root / folder / "ch03_toy/notebook.ipynb" for folder in ("chapters", "solutions"))
    notebook = nbformat.read(solved, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="done\n")]
    nbformat.write(notebook, solved)
    book.edit("chapters/ch03_toy/notebook.ipynb", lambda text: text.replace("## 3.1 double", "## 3.1 twice"))
    assert "its cells differ from chapters/ch03_toy/notebook.ipynb; python -m chapters build" in book.run(
        "build", "--check", ok=False
    )
    assert "solutions/ch03_toy/notebook.ipynb: its texts written" in book.run("build")
    now = nbformat.read(solved, as_version=4)
    assert now.cells[0].source == "## 3.1 twice"
    assert now.cells[1].outputs == notebook.cells[1].outputs
    book.edit("chapters/ch03_toy/notebook.ipynb", lambda text: text.replace('check(\\"3.1\\")', 'check(\\"3\\")'))
    assert "python -m chapters execute 3" in book.run("build", "--check", ok=False)
