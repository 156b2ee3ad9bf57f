"""The README's generated tables: the chapter map, the measured claims, and the benchmarks."""

import re
from collections.abc import Callable
from typing import Any

from chapters.bench_table import table as benchmarks
from chapters.chapter_map import MAP
from chapters.exercises import Book
from chapters.notebooks import first_sentence, opening
from chapters.regions import BookError
from shared.measure.claims import collect

# what stands between <!-- name: … --> and <!-- end -->
TABLE = re.compile(r"(?P<start><!-- (?P<name>\w+): [^\n]* -->)\n(?:.*?\n)?(?P<end><!-- end -->)", re.DOTALL)


def fill(text: str, book: Book) -> str:
    """The README with its tables as they should be. A pair of markers that names no table of ours is left alone."""

    def put(match: re.Match[str]) -> str:
        lines = TABLES[match["name"]](book) if match["name"] in TABLES else None
        return match[0] if lines is None else "\n".join([match["start"], *lines, match["end"]])

    return TABLE.sub(put, text)


def claims(book: Book) -> list[dict[str, Any]]:
    """What the executed notebooks say of the claims, by number; see shared.measure.claims.collect."""
    try:
        return collect(sorted((book.root / "solutions").glob("ch*/notebook.ipynb")))
    except ValueError as error:
        raise BookError(str(error)) from None


def claim_lines(book: Book) -> list[str]:
    """The table of the claims, a row for each claim and chapter."""
    lines = ["| # | claim | measured | verdict | chapter |", "|---|---|---|---|---|"]
    for row in claims(book):
        cells = [str(row["number"]), row["claim"], row["measured"], row["verdict"], row["chapter"].partition("_")[2]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return lines


def map_lines(book: Book) -> list[str]:
    """The chapter map: the reader's work and its use from MAP, time and prerequisites from the notebooks' openings."""
    lines = ["| chapter | you write | it becomes | about how long | before it |", "|---|---|---|---|---|"]
    for chapter, folder in book.folders.items():
        if chapter not in MAP:
            raise BookError(f"chapters/chapter_map.py has no line for chapter {chapter}")
        said = opening(chapter, book)
        time, before = (first_sentence(said[words]) for words in ("About how long:", "Before this:"))
        name = f"[{chapter} {folder.name[5:]}]({book.relative(folder)}/notebook.ipynb)"
        lines.append(f"| {name} | {' | '.join(MAP[chapter])} | {time} | {before} |")
    return lines


TABLES: dict[str, Callable[[Book], list[str]]] = {
    "chapters": map_lines,
    "claims": claim_lines,
    "benchmarks": lambda book: benchmarks(book.root),
}
