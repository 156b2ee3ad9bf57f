# Yours to finish. Generated from shared/data/reader.py (version 62df189c3d98).
"""Read JSONL as it comes: a line at a time, in bounded memory, with a report on what is no record.

One JSON object a line, with at least a string "text". A bad line is reported with its file, its number and its reason;
the lines around it are read all the same.
"""

from chapters import Todo
import codecs
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MAX_LINE_BYTES = 10_000_000
BLOCK_BYTES = 1 << 16
GZIP = b"\x1f\x8b"
OUT_OF_RANGE = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}|\d{200}")  # signs of a number that JSON can't spell
UNSUPPORTED = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}

Record = dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """A line that is no record.  line: counted from 1.  start: how it begins, to recognise it by."""

    path: str
    line: int
    reason: str
    start: str = ""

    def __str__(self) -> str:
        said = self.reason + (f"  [{self.start}]" if self.start else "")
        return f"{self.path}:{self.line}: {printable(said)}"


@dataclass
class ReadStats:
    """What was read.  lines = good + empty + bad, but for what is missing at the end of a broken gzip file."""

    lines: int = 0
    good: int = 0
    empty: int = 0
    bad: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # without what differs from line to line
    first_bad: list[BadLine] = field(default_factory=list)
    keep: int = 1000  # of the bad lines are kept one by one: a file may have millions

    def add(self, bad: BadLine) -> None:
        """Count a bad line, and keep it as long as fewer than `keep` have been kept."""
        self.bad += 1
        self.reasons[bad.reason.split(":")[0]] += 1
        if len(self.first_bad) < self.keep:
            self.first_bad.append(bad)

    def __str__(self) -> str:
        parts = [f"{self.lines} lines: {self.good} good, {self.empty} empty, {self.bad} bad"]
        return "\n".join(parts + [f"  {count:6}  {reason}" for reason, count in self.reasons.most_common()])


def read_jsonl(
    path: Path | str,
    on_bad: Callable[[BadLine], None] | None = None,
    stats: ReadStats | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Record]:
    """All records of a JSONL file, plain or gzipped (told by its first bytes), in their order.

    on_bad is called for every bad line; stats counts them, and all else. With neither, a bad line raises ValueError.
    Memory: about two lines of max_line_bytes, however long the file's lines are.  OSError if there is no such file.
    """
    path, stats_ = Path(path), stats or ReadStats()

    def report(line: int, reason: str, raw: bytes = b"") -> None:
        bad = BadLine(str(path), line, reason, raw[:60].decode("utf-8", "replace"))
        stats_.add(bad)
        if on_bad is not None:
            on_bad(bad)
        elif stats is None:
            raise ValueError(f"{bad}\nPass stats=ReadStats() or on_bad=... to skip and count such lines.")

    problems: list[str] = []
    with path.open("rb") as file:
        for number, raw in enumerate(bounded_lines(_blocks(file, problems), max_line_bytes), 1):
            stats_.lines = number
            if raw is None:
                report(number, f"too long: more than {max_line_bytes} bytes")
            elif not raw.removeprefix(codecs.BOM_UTF8).strip():
                stats_.empty += 1
            else:
                try:
                    record = parse_record(raw)
                    check_numbers(raw, record)
                except ValueError as error:
                    report(number, str(error), raw)
                    continue
                record["text"] = _mended(record["text"])
                stats_.good += 1
                yield record
    for problem in problems:
        report(stats_.lines + 1, problem)


def count_lines(path: Path | str) -> int:
    """How many lines `read_jsonl` will see, found by looking for line breaks alone: for a progress bar."""
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        for block in _blocks(file, []):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def bounded_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Cut blocks of bytes into lines, without their b"\\n".  A line of more than max_bytes comes out as None.

    Blocks are cut anywhere. What follows the last line break is a line as well, unless nothing does. Holds at most
    max_bytes of a line, and a block: a long line's bytes are let go of as they come.

    >>> list(bounded_lines([b"ab\\nc", b"d\\n\\nlong", b"er\\nlast"], max_bytes=5))
    [b'ab', b'cd', b'', None, b'last']
    """
    # exercise 2.1: keep what stands after a block's last line break, until the next block completes it
    #   as soon as it is longer than max_bytes drop it, and remember that this line is lost until its end comes
    raise Todo("2.1")
    # end


def parse_record(raw: bytes) -> Record:
    """One line as a record.  Raises ValueError that says what is wrong, in this form:

    "not UTF-8: …", "not JSON: …", "not an object: …", "no text: …" or "text is not a string: …".
    A byte order mark at the start is no fault. An empty text is a text. A line nested so deeply that json gives up
    is "not JSON" too.

    >>> parse_record(b'{"text": "ok", "label": 3}')
    {'text': 'ok', 'label': 3}
    """
    # exercise 2.2: decode ("utf-8-sig" takes the mark away), parse, and check; each step has its own way to fail
    raise Todo("2.2")
    # end


def check_numbers(raw: bytes, record: Record) -> None:
    """Raises ValueError for a number that couldn't be written as JSON again: NaN, Infinity, or one like 1e999."""
    if OUT_OF_RANGE.search(raw):  # nearly always found inside a text; only now is it worth a closer look
        try:
            json.dumps(record, allow_nan=False)
        except ValueError:
            raise ValueError("number out of range: NaN, infinity or above 1.8e308; JSON can't write those") from None


def check_compression(start: bytes, path: Path | str) -> None:
    """Raises ValueError for a file that begins like one compressed in a way that isn't read here."""
    for magic, name in UNSUPPORTED.items():
        if start.startswith(magic):
            raise ValueError(f"{path}: compressed with {name}; unpack it first, or use gzip")


def printable(text: str) -> str:
    """The text with escapes for all that a terminal would act on, or couldn't show: "\\x1b[31m" and not a red line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _blocks(file: BinaryIO, problems: list[str]) -> Iterator[bytes]:
    """The file's bytes, unpacked.  Damage in a gzip file ends it, and goes into problems: what came before counts."""
    start = file.read(8)
    check_compression(start, file.name)
    file.seek(0)
    if not start.startswith(GZIP):
        while block := file.read(BLOCK_BYTES):
            yield block
        return
    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while block := unpacked.read1(BLOCK_BYTES):
                yield block
        except (EOFError, OSError, zlib.error) as error:
            problems.append(f"damaged gzip: {error}")


def _mended(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can spell and UTF-8 can't, joined or replaced by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
