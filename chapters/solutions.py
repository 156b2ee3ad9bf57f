"""Read the solution pages: hints, answers, reasons and common mistakes of each exercise."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from chapters.exercises import Book
from chapters.regions import BookError

SECTION = re.compile(r"^### (?P<id>\d+\.\d+)\b[ ]*(?P<title>.*)$", re.MULTILINE)
HINT = re.compile(
    r"^\*\*Hint (?P<number>\d+)\.\*\*\s*(?P<text>.*?)(?=\n\s*\n|\n\*\*|\n```|\Z)", re.MULTILINE | re.DOTALL
)
WHY = re.compile(r"^\*\*Why\b.*?(?=\n\*\*|\n```|\n### |\Z)", re.MULTILINE | re.DOTALL)
MISTAKE_TITLE = re.compile(r"^\*\*Mistake: (?P<title>.*?)\*\*", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(
    r"^```python (?P<kind>answer|mistake) (?P<id>\d+\.\d+)(?: says (?P<says>[^\n]*?))?[ ]*\n(?P<code>.*?)^```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Mistake:
    """A wrong body that the exercise's tests must reject."""

    title: str
    body: str
    line: int  # of its code block in the page
    says: str = ""  # words that the first message must hold, so that it names this cause and not a rarer one


@dataclass
class Solution:
    """One exercise's section of a solution page."""

    id: str
    line: int
    hints: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    answers: int = 0
    mistakes: list[Mistake] = field(default_factory=list)


def read_solutions(page: Path, book: Book) -> dict[str, Solution]:
    """Exercise id -> its section. Raises BookError for a page that is missing or can't be read as one."""
    if not page.exists():
        raise BookError(f"{book.relative(page)} is missing")
    text = page.read_text(encoding="utf-8")
    heads = list(SECTION.finditer(text))
    found: dict[str, Solution] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        section = text[head.start() : following.start() if following else len(text)]
        offset = text.count("\n", 0, head.start())
        solution = Solution(head["id"], offset + 1)
        if solution.id in found:
            raise BookError(f"{book.relative(page)}:{solution.line}: a second section for exercise {solution.id}")
        solution.hints = [match["text"].strip() for match in HINT.finditer(section)]
        solution.why = [match[0].strip() for match in WHY.finditer(section)]
        for block in BLOCK.finditer(section):
            line = offset + section.count("\n", 0, block.start()) + 1
            if block["id"] != solution.id:
                raise BookError(
                    f"{book.relative(page)}:{line}: a block for {block['id']} in the section of {solution.id}"
                )
            if block["kind"] == "answer":
                solution.answers += 1
                continue
            titles = MISTAKE_TITLE.findall(section[: block.start()])
            title = titles[-1].rstrip(".") if titles else "untitled"
            solution.mistakes.append(Mistake(title, block["code"].rstrip("\n"), line, block["says"] or ""))
        found[solution.id] = solution
    return found


def fill_answers(text: str, book: Book, chapter: int) -> str:
    """A solution page with the reference's bodies in its answer blocks."""

    def put(match: re.Match[str]) -> str:
        exercise = book.exercises.get(match["id"])
        if match["kind"] == "mistake" or exercise is None or exercise.chapter != chapter:
            return match[0]
        return f"```python answer {exercise.id}\n{exercise.region.body}\n```"

    return BLOCK.sub(put, text)
