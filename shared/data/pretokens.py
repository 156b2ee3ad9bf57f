r"""Text into pretokens, the pieces that a tokenizer never merges across: mostly words with the space before them.

The patterns are written as model makers publish them, with `\p{L}` for any letter. Python's `re` knows no such classes,
so they are spelt out here from `unicodedata`. A character newer than your Python's Unicode (3.11 has version 14) then
counts as a symbol, where a library built on a newer version may see a letter; in all others the two agree.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby

# GPT-2's: contractions; a word, a number or other symbols, each with at most one space before; white space, which
# leaves its last character to the word that follows.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same after every digit has been cut out, as SmolLM2 has it: white space before a digit is the end of its piece.
GPT2_DIGITS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

Split = Callable[[str], list[str]]
Ranges = list[tuple[int, int]]
# Unicode's White_Space. Python's own \s has four more, the separators U+001C to U+001F.
SPACES = [(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
          (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]  # fmt: skip
ITEM = re.compile(r"\\[pP]\{(?P<name>\^?\w+)\}|\\?.", re.DOTALL)  # one character, escape or class of a pattern
BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")


@lru_cache(maxsize=64)
def splitter(pattern: str = GPT2) -> Split:
    r"""A function that cuts a text into pretokens. Joined they are the text, whatever the pattern.

    What the pattern skips becomes a piece of its own. Raises ValueError for a pattern that isn't one.

    >>> splitter()("I'll pay  3 €.")
    ['I', "'ll", ' pay', ' ', ' 3', ' €.']
    """
    # `re` looks characters up to U+FFFF up in a table, but tries the ranges above one by one: four times slower.
    common, rare = compile_pattern(pattern, top=0xFFFF), compile_pattern(pattern)

    def split(text: str) -> list[str]:
        compiled = rare if not text.isascii() and BEYOND_BMP.search(text) else common
        pieces = compiled.findall(text)
        if sum(map(len, pieces)) == len(text):
            return pieces
        pieces, end = [], 0
        for match in compiled.finditer(text):
            pieces += [text[end : match.start()], match[0]]
            end = match.end()
        return [piece for piece in (*pieces, text[end:]) if piece]

    return split


def compile_pattern(pattern: str, top: int = 0x10FFFF) -> re.Pattern[str]:
    r"""The pattern for Python's `re`: \p{L}, \P{L} and \s written out as ranges, up to the character `top`.

    Any general category works (L, Lu, N, Nd, M, P, ...). Raises ValueError for others and for broken patterns.
    """
    out, in_class = [], False
    for item in ITEM.finditer(pattern):
        text, ranges = item[0], _ranges(item, pattern)
        if ranges is not None:
            inside = "".join(f"\\U{first:08x}-\\U{min(last, top):08x}" for first, last in ranges if first <= top)
            text = inside if in_class else f"[{inside}]"
        elif text == "[":
            in_class = True
        elif text == "]":
            in_class = False
        out.append(text)
    try:
        compiled = re.compile("".join(out))
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} can't be used: {error.msg}") from None
    if compiled.groups:
        raise ValueError(f"pattern {pattern!r} has a capturing group; write (?:...) for ( ... )")
    return compiled


def special_pattern(special_tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Cuts a text at its special tokens: `.split` gives [text, token, text, ..., text]. None when there are no tokens.

    Where two tokens fit, the longer one wins. Raises ValueError for an empty one.

    >>> special_pattern(["<|end|>"]).split("a<|end|>b")
    ['a', '<|end|>', 'b']
    """
    names = sorted(special_tokens, key=len, reverse=True)
    if not all(names):
        raise ValueError("special_tokens holds an empty text, which would be found everywhere")
    return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None


def safe_chunks(
    chunks: Iterable[str], split: Split, special_tokens: Iterable[str] = (), size: int = 2**14
) -> Iterator[str]:
    """The same text in other chunks, of about `size` characters, none of which ends inside a pretoken.

    Pretokens of the chunks are then those of the whole, while no more than a chunk is in memory. (A pretoken longer
    than a chunk makes its chunk as long as itself.) What comes next may still change the last two pieces: "'" and "r"
    become "'re". So these wait for the next chunk, and with them whatever could be the beginning of a special token. A
    chunk doesn't end in white space either, for that is cut in one way before a word and in another at a text's end.
    """
    names = list(special_tokens)
    special, margin = special_pattern(names), max(map(len, names), default=1) - 1
    waiting: list[str] = []
    length, enough = 0, size
    for chunk in chunks:
        waiting.append(chunk)
        length += len(chunk)
        if length < enough:
            continue
        text = "".join(waiting)
        parts = special.split(text) if special else [text]
        pieces = [piece for i, part in enumerate(parts) for piece in ([part] if i % 2 else split(part))]
        keep, n_kept = 0, 0
        while pieces and (n_kept < 2 or keep < margin or pieces[-1][-1:].isspace()):
            keep += len(pieces.pop())
            n_kept += 1
        if keep < length:
            yield text[: length - keep]
        waiting, length, enough = [text[length - keep :]], keep, max(size, 2 * keep)
    if length:
        yield "".join(waiting)


def _ranges(item: re.Match[str], pattern: str) -> Ranges | None:
    """The characters a class such as \\p{L} stands for; None for an item that isn't a class."""
    if item[0] in (r"\s", r"\S"):
        ranges, negated = SPACES, item[0] == r"\S"
    elif (name := item["name"]) is not None:
        ranges = _category(name.lstrip("^"))
        if not ranges:
            raise ValueError(f"pattern {pattern!r}: {item[0]} isn't a general category of Unicode, such as \\p{{L}}")
        negated = (item[0][1] == "P") != name.startswith("^")
    else:
        return None
    if not negated:
        return ranges
    edges = [-1, *(edge for pair in ranges for edge in pair), 0x110000]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(last + 1, first - 1) for last, first in gaps if first - last > 1]


@lru_cache
def _category(name: str) -> Ranges:
    """All characters whose general category is `name`, or begins with it, as (first, last)."""
    ranges: Ranges = []
    for first, last, category in _runs():
        if category.startswith(name):
            if ranges and ranges[-1][1] == first - 1:
                first = ranges.pop()[0]
            ranges.append((first, last))
    return ranges


@lru_cache
def _runs() -> list[tuple[int, int, str]]:
    """Neighbouring characters of one category, from U+0000 to U+10FFFF; takes a fifth of a second, once."""
    runs, first = [], 0
    for category, run in groupby(map(unicodedata.category, map(chr, range(0x110000)))):
        last = first + sum(1 for _ in run) - 1
        runs.append((first, last, category))
        first = last + 1
    return runs
