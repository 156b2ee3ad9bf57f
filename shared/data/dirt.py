"""A dirty corpus with known truth: documents, each damaged in one way, and lines that are no records at all.

Everything personal in it is made up: addresses at example.org, .com and .net (RFC 2606), telephone numbers that are set
aside for fiction, and IP addresses for documentation (RFC 5737, RFC 3849).
"""

import datetime
import html
import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.data.corpus import Record
from shared.data.near_duplicates import NEW_WORDS, edit

LONG_LINE_BYTES = 50_000_000
SHARES = {
    "none": 26, "html": 20, "whitespace": 10, "control": 8, "unicode": 8, "pii": 14, "poison": 2, "revised": 4,
    "repeated": 3, "symbols": 2, "short": 3,
}  # fmt: skip
BROKEN_EVERY = 40  # about one line in so many is broken
FIRST_DAY = datetime.date(2020, 1, 1)
# Left out, so that the truth needs no cleaner: what a cleaner would change in the document itself.
UNSUITABLE = re.compile(
    r"[^\x20-\x7e\n]|@|</|::|\d\.\d+\.\d+\.|\+\d{8}|\d{3}[-.)]\s?\d{3}[-.]\d{4}|0\d{2,4}\)?[ -]\d{3}"
)
ACCENTS = ("Crème brûlée à la française.", "Ångström wrote to Gödel in Tromsø.", "Đây là tiếng Việt.", "한국어 문서.")
LAST = (
    "The last line of this file has no line break at its end, and it is as good a record as all the others before it."
)
BOM = b"\xef\xbb\xbf"


def make_dirty(documents: Iterator[Record], seed: int, path: Path) -> dict[str, Any]:
    """Write the dirty corpus.  Returns the truth; lines count from 1.

    "good": [{"line", "dirt", "expect"}], where expect is the text that cleaning should come to (compare word by word),
    or None where the record should be dropped.  A good record also has a "time", a made-up day; a "revised" one is a
    later version of the one in line `of`.  "bad": [{"line", "kind"}], what is no record.  "empty": the empty lines.
    """
    rng = random.Random(seed)
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    empty: list[int] = []
    plain: list[tuple[int, Record]] = []
    kinds, weights = list(SHARES), list(SHARES.values())
    broken = list(BROKEN)
    line = 0
    with path.open("wb") as file:
        for record in documents:
            if UNSUITABLE.search(record["text"]):
                continue
            line += 1
            record = record | {"time": str(FIRST_DAY + datetime.timedelta(days=rng.randrange(1000)))}
            dirt = rng.choices(kinds, weights)[0]
            if dirt == "revised" and plain:
                of, original = rng.choice(plain)
                day = datetime.date.fromisoformat(original["time"]) + datetime.timedelta(days=rng.randint(30, 700))
                text = edit(original["text"], similarity=rng.uniform(0.8, 0.98), rng=rng)
                record, truth = original | {"text": text, "time": str(day)}, {"dirt": dirt, "expect": text, "of": of}
            else:
                dirt = "none" if dirt == "revised" else dirt
                text, expect = DAMAGE[dirt](record["text"], rng)
                record, truth = record | {"text": text}, {"dirt": dirt, "expect": expect}
            if dirt == "none":
                plain.append((line, record))
            good.append({"line": line} | truth)
            ending = rng.choices((b"\n", b"\r\n"), (9, 1))[0]
            start = BOM if line == 1 or rng.random() < 0.01 else b""  # also where files were joined
            file.write(start + json.dumps(record, ensure_ascii=False).encode("utf-8") + ending)
            if rng.random() < 1 / BROKEN_EVERY:
                line += 1
                kind = broken[len(bad) % len(broken)]
                bad.append({"line": line, "kind": kind})
                file.write(BROKEN[kind](record) + b"\n")
            if rng.random() < 0.01:
                line += 1
                empty.append(line)
                file.write(rng.choice((b"", b"  ", b"\t")) + b"\n")
        if line:
            line += 1
            bad.append({"line": line, "kind": "too long"})
            file.write(b'{"text": "' + b"ab " * (LONG_LINE_BYTES // 3) + b'"}\n')
            line += 1
            last = {"text": LAST, "label": "end", "source": "end", "time": str(FIRST_DAY)}
            good.append({"line": line, "dirt": "none", "expect": LAST})
            file.write(json.dumps(last).encode())
    return {"lines": line, "records": len(good), "good": good, "bad": bad, "empty": empty}


def as_html(text: str, rng: random.Random) -> str:
    """The text as a page, with all that pages have: attributes, scripts, styles, comments, entities, sloppy markup."""
    blocks = []
    for paragraph in re.split(r"\n{2,}", text):
        if paragraph.startswith(" ") or "  " in paragraph:
            tag = "pre"
            inside = _escape(paragraph, rng)
        else:
            tag = rng.choice(("p", "P", "div", "li"))
            words = [_escape(word, rng) for word in paragraph.split(" ")]
            i = rng.randrange(len(words))
            name = rng.choice(
                ("b", "em", "code", 'a href="https://example.org/?a=1&amp;b=2" title="a > b"', "span class=x")
            )
            words[i] = f"<{name}>{words[i]}</{name.split()[0]}>"
            inside = " ".join(words).replace("\n", rng.choice(("\n", "<br>", "<br/>\n")))
        attributes = rng.choice(("", ' class="text"', " id=part", ' style="color: red"', " data-x='1 > 0'"))
        close = f"</{tag}>" if tag == "pre" or rng.random() < 0.8 else ""  # sloppy, and legal
        blocks.append(f"<{tag}{attributes}>{inside}{close}")
        blocks.append(rng.choices(ASIDES, (12, 1, 1, 1, 1))[0])
    body = "\n".join(block for block in blocks if block)
    frame = rng.choice((
        "{}",
        "<!DOCTYPE html>\n<html>\n<head><style>p {{ margin: 0 }}</style></head>\n<body>\n{}\n</body></html>",
        "<BODY bgcolor=white>{}</BODY>",
        '<div class="page">\n{}\n<a href="https://example.org/nex',  # cut off inside a tag
    ))  # fmt: skip
    return frame.format(body)


ASIDES = (
    "",
    "<!-- <p>not to be seen</p> -->",
    '<script type="text/javascript">if (a < b) { document.write("<p>not to be seen</p>"); }</script>',
    "<STYLE>\n.note > p { color: #333 }\n</STYLE>",
    "<hr/></span>",
)


def _escape(text: str, rng: random.Random) -> str:
    text = html.escape(text, quote=rng.random() < 0.5)
    if rng.random() < 0.2:
        text = text.replace("e", rng.choice(("&#101;", "&#x65;", "&#X65;")), 1)
    return text


def _html(text: str, rng: random.Random) -> tuple[str, str]:
    return as_html(text, rng), text


def _whitespace(text: str, rng: random.Random) -> tuple[str, str]:
    spaces = [" "] * 6 + ["  ", "\t", "\u00a0", "\u2003", " \u00a0 "]
    damaged = re.sub(" ", lambda _: rng.choice(spaces), text)
    breaks = rng.choice((("\r\n",), ("\r",), ("\n", " \n", "\n\n\n\n"), ("\n", "\u2028")))
    return re.sub("\n", lambda _: rng.choice(breaks), damaged) + "   \n\n\n", text


def _control(text: str, rng: random.Random) -> tuple[str, str]:
    characters = list(text)
    for _ in range(1 + len(text) // 100):
        i = rng.randrange(len(characters))
        characters[i] += rng.choice(
            ("\x00", "\x08", "\x1b[31m", "\x1b[0m", "\u200b", "\ufeff", "\u00ad", "\u202e", "\x7f")
        )
    return "".join(characters), text


def _unicode(text: str, rng: random.Random) -> tuple[str, str]:
    text = f"{text}\n\n{rng.choice(ACCENTS)}"
    return unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text)


def _pii(text: str, rng: random.Random) -> tuple[str, str]:
    name = f"{rng.choice(NEW_WORDS)}{rng.choice(('.', '_', '+', ''))}{rng.choice(NEW_WORDS)}{rng.randrange(100)}"
    email = f"{name}@{rng.choice(('', 'mail.', 'lists.de-1.'))}example.{rng.choice(('org', 'com', 'net'))}"
    phone = rng.choice(PHONES).format(f"{rng.randrange(100):02}")
    ip = rng.choice(("192.0.2.{}", "198.51.100.{}", "203.0.113.{}", "2001:db8::{}", "2001:db8:0:1::{}:5")).format(
        rng.randrange(256)
    )
    sentence, masked = rng.choice(PII)
    dirty = sentence.format(email=email, phone=phone, ip=ip)
    return f"{text}\n\n{dirty}", f"{text}\n\n{masked}"


# Set aside for fiction: NANP 555-0100 to 555-0199; Ofcom's 020 7946 0xxx, 01632 960xxx and 07700 900xxx.
PHONES = ("(202) 555-01{}", "202-555-01{}", "+1 202-555-01{}", "+120255501{}", "020 7946 00{}", "+44 20 7946 00{}",
          "+44 1632 9600{}", "07700 9000{}")  # fmt: skip
PII = tuple(
    (text, text.format(email="<EMAIL>", phone="<PHONE>", ip="<IP>"))
    for text in (
        "Questions to {email}.",
        "Call {phone}, or write to <{email}>!",
        "The request came from {ip}, port 8080.",
        "Since version 1.2.3 (2024-01-15, 12:30:45) see x[1::2]; mailto:{email}; tel. {phone}.",
        "Blocked: {ip}/32. Reported by {email}; release 10.4.2.1 is fixed.",
        "Author: {email}, {phone}",
    )
)


def _poison(text: str, rng: random.Random) -> tuple[str, str]:
    word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=rng.randint(40, 80)))
    return (poisoned := f"{text}\n\nSee {word} for more."), poisoned


def _repeated(text: str, rng: random.Random) -> tuple[str, None]:
    line = text.split("\n")[0][:200]
    return "\n".join([line] * rng.randint(20, 60)), None


def _symbols(text: str, rng: random.Random) -> tuple[str, None]:
    return " ".join("".join(rng.choices("#=-+*/|~^%$ 0123456789", k=12)) for _ in range(60)), None


def _short(text: str, rng: random.Random) -> tuple[str, None]:
    return rng.choice(("", " ", "ok", "See above.", "TODO", "\n\n", "n/a")), None


DAMAGE: dict[str, Callable[[str, random.Random], tuple[str, str | None]]] = {
    "none": lambda text, rng: (text, text), "html": _html, "whitespace": _whitespace, "control": _control,
    "unicode": _unicode, "pii": _pii, "poison": _poison, "repeated": _repeated, "symbols": _symbols, "short": _short,
}  # fmt: skip

BROKEN: dict[str, Callable[[Record], bytes]] = {
    "bad JSON": lambda record: json.dumps(record).encode()[:-9],
    "no text": lambda record: json.dumps({"body": record["text"], "source": record["source"]}).encode(),
    "text is not a string": lambda record: json.dumps(record | {"text": [record["text"]]}).encode(),
    "text is null": lambda record: json.dumps(record | {"text": None}).encode(),
    "not an object": lambda record: json.dumps([record["text"]]).encode(),
    "not UTF-8": lambda record: json.dumps(record | {"text": "café"}, ensure_ascii=False).encode("latin-1"),
    "too deep": lambda record: b"[" * 100_000,
    "two records in a line": lambda record: json.dumps(record).encode() * 2,
}
