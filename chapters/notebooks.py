"""Read the notebooks: their cells, what their openings say, the terms they define and the questions they ask."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chapters.exercises import Book
from chapters.regions import BookError

OPENING = ("You will build", "Where it sits", "What the server gains today:", "About how long:", "Before this:",
           "How to work.")  # fmt: skip
CLOSING = "## What the server gained"
TERM = re.compile(r"\*\*\*(?P<term>[^*]+)\*\*\*")
FENCE = re.compile(r"^```.*?^```[ ]*$", re.MULTILINE | re.DOTALL)
BLOCK_START = re.compile(r"^[ ]*(?:[-*+]|\d+\.|>|#+)[ ]+", re.MULTILINE)  # a list item, a quotation, a heading
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)[.!?][)\"'*_]*(?=\s|$)")
QUESTION = re.compile(r"^\*\*\d+\.\*\*.*?^</details>", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"^- \((?P<letter>[a-z])\)[ ]+(?P<text>.*?)(?=\n- \([a-z]\)|\n\s*\n|\n<details>)", re.M | re.S)
ANSWER = re.compile(r"<summary>Answer</summary>\s*\((?P<letter>[a-z])\)\.")


@dataclass(frozen=True)
class Definition:
    """A term, the sentence that defines it, and where that stands."""

    term: str
    sentence: str  # as it stands in the notebook, but on one line and without links
    chapter: int
    section: str  # the heading above it


@dataclass(frozen=True)
class Question:
    """A question with its options: letter -> text, and the letter of the right one."""

    text: str
    options: dict[str, str]
    right: str


def read_cells(path: Path, book: Book) -> list[dict[str, Any]]:
    """A notebook's cells with their sources as single strings. Raises BookError when the file is not a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [{**cell, "source": "".join(cell["source"])} for cell in cells]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BookError(f"{book.relative(path)}: not a notebook ({error})") from None


def texts(chapter: int, book: Book) -> list[str]:
    """The texts of a reader's notebook, a string for each markdown cell; none where there is no notebook yet."""
    path = book.folders[chapter] / "notebook.ipynb"
    return [c["source"] for c in read_cells(path, book) if c["cell_type"] == "markdown"] if path.exists() else []


def opening(chapter: int, book: Book) -> dict[str, str]:
    """What the first cell says under each of OPENING's words, on one line. Raises BookError for one that is missing."""
    text, found = texts(chapter, book)[0], {}
    place = book.relative(book.folders[chapter] / "notebook.ipynb")
    for words in OPENING:
        match = re.search(rf"^\*\*{re.escape(words)}\*\*(.*?)(?=^\*\*|\Z)", text, re.MULTILINE | re.DOTALL)
        if not match:
            raise BookError(f"{place}: its first cell has no paragraph that begins with **{words}**")
        found[words] = " ".join(match[1].split())
    return found


def first_sentence(text: str) -> str:
    """The first sentence, without its full stop."""
    end = SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def definitions(chapter: int, book: Book) -> list[Definition]:
    """The terms that a chapter defines, in their order: each stands in bold italics in the sentence that defines it."""
    found, section = [], ""
    for text in texts(chapter, book):
        for block in re.split(r"\n\s*\n|(?=^#)|(?=^[ ]*(?:[-*+]|\d+\.) )", FENCE.sub("", text), flags=re.MULTILINE):
            if block.startswith("#"):
                section = block.splitlines()[0].lstrip("# ")
            for term in TERM.finditer(block):
                found.append(Definition(term["term"], _sentence(block, term), chapter, section))
    return found


def _sentence(block: str, term: re.Match[str]) -> str:
    """The sentence around a term: from the end of the one before it to its own."""
    begin = max((end.end() for end in SENTENCE_END.finditer(block, 0, term.start())), default=0)
    end = next((end.end() for end in SENTENCE_END.finditer(block, term.end())), len(block))
    text = BLOCK_START.sub("", block[begin:end].strip())
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).split())


def questions(chapter: int, book: Book) -> list[Question]:
    """A chapter's questions. Raises BookError for one without options or without a right one among them."""
    found = []
    for match in QUESTION.finditer("\n\n".join(texts(chapter, book))):
        options = {option["letter"]: " ".join(option["text"].split()) for option in OPTION.finditer(match[0])}
        answer = ANSWER.search(match[0])
        if not answer or answer["letter"] not in options or len(options) < 2:
            raise BookError(
                f"{book.relative(book.folders[chapter])}/notebook.ipynb: this question has no list of options "
                f"(- (a) …), or no answer that names one: {match[0].splitlines()[0]}"
            )
        found.append(Question(match[0].splitlines()[0], options, answer["letter"]))
    return found


def out_of_step(chapter: int, book: Book) -> list[str]:
    """What is wrong between a chapter's two notebooks: the reader's has no outputs, the solved one the same cells."""
    reader, solved = book.folders[chapter] / "notebook.ipynb", book.solutions(chapter) / "notebook.ipynb"
    if not reader.exists():
        return []
    cells = read_cells(reader, book)
    fix = f"python -m chapters execute {chapter}"
    problems = [
        f"{book.relative(reader)}: cell {number} carries outputs; clear them: {fix}"
        for number, cell in enumerate(cells, 1)
        if cell.get("outputs")
    ]
    if not solved.exists():
        return [*problems, f"{book.relative(solved)}: missing; {fix}"]
    if differ(reader, solved, book):
        fix = "python -m chapters build" if with_texts(reader, solved, book) else fix
        problems.append(f"{book.relative(solved)}: its cells differ from {book.relative(reader)}; {fix}")
    return problems


def differ(reader: Path, solved: Path, book: Book) -> bool:
    """True when there are both notebooks and their cells aren't the same."""
    if not (reader.exists() and solved.exists()):
        return False
    ours, theirs = ([(c["cell_type"], c["source"]) for c in read_cells(path, book)] for path in (reader, solved))
    return ours != theirs


def with_texts(reader: Path, solved: Path, book: Book) -> str | None:
    """The solved notebook with the reader's texts around its code and outputs; None when their code differs."""
    cells, old = read_cells(reader, book), read_cells(solved, book)
    outputs = [cell for cell in old if cell["cell_type"] == "code"]
    if [c["source"] for c in cells if c["cell_type"] == "code"] != [c["source"] for c in outputs]:
        return None
    notebook = json.loads(solved.read_text(encoding="utf-8"))
    done = iter([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])
    notebook["cells"] = [
        {**(next(done) if cell["cell_type"] == "code" else cell), "id": f"cell-{number:02}"}
        for number, cell in enumerate(cells)
    ]
    for cell in notebook["cells"]:
        if isinstance(cell["source"], str):
            cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
