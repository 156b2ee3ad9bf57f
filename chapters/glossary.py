"""The glossary: every term of the book with the sentence that defines it, taken from the notebooks word for word."""

import re
from urllib.parse import quote

from chapters.exercises import Book
from chapters.notebooks import TERM, definitions
from chapters.regions import BookError

HEAD = """<!-- written by python -m chapters build from the notebooks: change the sentence there -->
# Glossary

Each term with the sentence that defines it, and the place where that stands. In the notebooks a term is in bold
italics where it is defined.
"""


def page(book: Book) -> str:
    """The glossary as a page, by the alphabet. Raises BookError for a term that is defined twice."""
    entries: dict[str, str] = {}
    for chapter, folder in book.folders.items():
        for found in definitions(chapter, book):
            key, heading = found.term.casefold(), re.sub("[*`]", "", found.section)
            anchor = quote(found.section.replace(" ", "-"), safe="")
            if key in entries:
                raise BookError(f"chapter {chapter}, {heading}: {found.term!r} is defined already: {entries[key]}")
            sentence = TERM.sub(r"\g<term>", found.sentence)
            where = f"[chapter {chapter}, {heading}]({folder.name}/notebook.ipynb#{anchor})"
            name = found.term if re.search(r"\d", found.term) else found.term[0].upper() + found.term[1:]  # int8 stays
            entries[key] = f"- **{name}**: {sentence} ({where})"
    return HEAD + "\n" + "\n".join(entries[key] for key in sorted(entries)) + "\n"
