"""The picture of the whole stack: the layers of `shared/`, and in each the parts that a chapter puts there."""

from collections.abc import Iterator
from typing import NamedTuple

from chapters.exercises import Book
from chapters.regions import BookError
from chapters.svg import COLORS, picture, rect, text, up, wrapped

# From the top: what a layer is called and what it does, and the packages of shared/ that it consists of.
LAYERS = (
    ("Serving", "who may ask, and who is next", ("serving",)),
    ("Inference", "tokens for many callers at a time", ("inference",)),
    ("Training and evaluation", "learning, and proof of it", ("training", "evaluation")),
    ("Model", "the network and its weights", ("model",)),
    ("Data", "from raw text to token ids", ("data",)),
)
BESIDE = ("observability", "measure")  # they know none of the others, and every layer may use them
SPELT = {"adamw": "AdamW", "bpe": "BPE", "gc": "GC", "kv": "KV", "lsh": "LSH", "minhash": "MinHash", "mlp": "MLP",
         "numpy": "NumPy", "qat": "QAT", "rope": "RoPE", "simhash": "SimHash"}  # fmt: skip
WIDTH, MARGIN, GAP, LINE = 400, 10, 6, 15
FULL = WIDTH - 2 * MARGIN


class Box(NamedTuple):
    """A chapter's parts in one layer."""

    chapter: int
    name: str
    parts: list[str]


def boxes(book: Book, packages: tuple[str, ...]) -> list[Box]:
    """What each chapter puts into some packages of shared/, the newest chapter first: all modules with exercises."""
    found: dict[int, list[str]] = {}
    for module in book.modules:
        if package(module.name) in packages:
            found.setdefault(module.chapter, []).append(readable(module.name.rpartition(".")[2]))
    return [
        Box(chapter, readable(book.folders[chapter].name.partition("_")[2]), found[chapter])
        for chapter in sorted(found, reverse=True)
    ]


def package(module: str) -> str:
    """shared.inference.kv_cache -> inference."""
    return module.split(".")[1]


def readable(name: str) -> str:
    """kv_cache -> KV cache."""
    return " ".join(SPELT.get(word, word) for word in name.split("_"))


def draw(book: Book) -> str:
    """The picture, an SVG file's text. Raises BookError for a package of shared/ that has no layer in it."""
    layers = [(name, what, boxes(book, packages)) for name, what, packages in LAYERS]
    beside = boxes(book, BESIDE)
    known = {one for _, _, packages in LAYERS for one in packages} | set(BESIDE)
    if strange := {package(module.name) for module in book.modules} - known:
        raise BookError(f"chapters/stack_picture.py: no layer has shared/{', shared/'.join(sorted(strange))}")
    body: list[str] = []
    y = end(body, MARGIN, "A browser, or any program", "chat · dashboard · OpenAI's API")
    for name, what, inside in layers:
        body.append(up(WIDTH / 2, y + 2))
        y = layer(body, y + 18, name, what, inside)
    body.append(up(WIDTH / 2, y + 2))
    y = end(body, y + 18, "Text, and a model's weights", "documents · digits · SmolLM2-135M-Instruct")
    y = layer(body, y + 14, "Beside them", "used by every layer, and using none", beside)
    told = [f"{name}: {spoken(inside)}" for name, _, inside in [*layers, ("Beside them", "", beside)]]
    description = f"From the browser at the top down to the data. {'. '.join(told)}."
    return picture(WIDTH, y + MARGIN, "The stack that the book builds, coloured by chapter", description, body)


def spoken(inside: list[Box]) -> str:
    """A layer's boxes in words, for those who can't see them."""
    return "; ".join(f"chapter {box.chapter}, {box.name} ({', '.join(box.parts)})" for box in inside)


def end(body: list[str], y: float, name: str, what: str) -> float:
    """Draw what is outside of the stack, above or below it. Returns where it ends."""
    body += [
        rect(MARGIN, y, FULL, 42, kind="band"),
        text(WIDTH / 2, y + 18, name, 13, "strong", "middle"),
        text(WIDTH / 2, y + 34, what, 12, "quiet", "middle"),
    ]
    return y + 42


def layer(body: list[str], y: float, name: str, what: str, inside: list[Box]) -> float:
    """Draw a layer's band with its boxes in rows. Returns where it ends."""
    drawn = [text(MARGIN + 8, y + 18, name, 13, "strong"), text(WIDTH - MARGIN - 8, y + 18, what, 12, "quiet", "end")]
    top = y + 26
    for row in rows(inside):
        width = (FULL - 16 - GAP * (len(row) - 1)) / len(row)
        lines = [wrapped(box.parts, width - 14) for box in row]
        height = 26 + LINE * max(map(len, lines))
        for place, box in enumerate(row):
            x = MARGIN + 8 + place * (width + GAP)
            drawn += [
                rect(x, top, width, height, COLORS[box.chapter], opacity=0.24),
                rect(x, top, width, 21, COLORS[box.chapter]),
                text(x + 7, top + 15, f"{box.chapter} {box.name}", 12.5, "on"),
                *(text(x + 7, top + 35 + LINE * k, line) for k, line in enumerate(lines[place])),
            ]
        top += height + GAP
    body += [rect(MARGIN, y, FULL, top - y + 2, kind="band"), *drawn]
    return top + 2


def rows(inside: list[Box]) -> Iterator[list[Box]]:
    """Two boxes in a row; when their number is odd, the first has a row to itself."""
    alone = len(inside) % 2
    yield from ([box] for box in inside[:alone])
    for place in range(alone, len(inside), 2):
        yield inside[place : place + 2]
