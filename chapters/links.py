"""The links of built web pages: each names a file and a place in the book, and nothing is loaded from elsewhere."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "link", "source", "iframe", "video", "audio"}  # fetched without being asked for


class Page(HTMLParser):
    """One page's anchors, and its links as (line, tag, address)."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[tuple[int, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's anchor and its links; called by the parser."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src", "action", "poster"):
                self.links.append((self.getpos()[0], tag, value or ""))
            elif name == "srcset":
                self.links += [(self.getpos()[0], tag, part.split()[0]) for part in (value or "").split(",")]


def check(folder: Path) -> tuple[list[str], set[str]]:
    """Every broken link of the pages below a folder, as "page:line: what is wrong"; and the other sites' addresses."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    problems, addresses = list[str](), set[str]()
    for path, page in pages.items():
        for line, tag, address in page.links:
            if address.startswith(("http:", "https:", "//")) and tag not in LOADED:
                addresses.add(address)
            for trouble in _troubles(address, tag, path, pages):
                problems.append(f"{path.relative_to(folder.resolve())}:{line}: {address!r}: {trouble}")
    return problems, addresses


def _troubles(address: str, tag: str, path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """What is wrong with one link of the page at `path`; mostly nothing."""
    if address.startswith(("mailto:", "data:")):
        return
    try:
        parts = urlsplit(address)
    except ValueError as error:
        yield f"no address: {error}"
        return
    if parts.scheme or parts.netloc:
        if parts.scheme not in ("http", "https") or not parts.hostname or " " in address:
            yield "no address of a web page"
        elif tag in LOADED:
            yield "is loaded from another site; the book has to work without a network"
        return
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        yield "there is no such file"
    elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
        yield f"there is no #{unquote(parts.fragment)} on that page"
