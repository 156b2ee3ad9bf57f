# Yours to finish. Generated from shared/data/shingles.py (version d1fd9e8e9a89).
"""Shingles: a text as the set of its runs of n words. As strings, which define them, and as hashes, which are fast.

A word is a run of characters between white space, or a single Chinese or Japanese character: "数据 cleaning" has three.
One rule serves English, code, and Chinese, where nobody writes spaces. Case and punctuation count.
"""

from chapters import Todo
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

Array = np.ndarray

NGRAM = 5
MOST_NGRAM = 1000
WIDE = re.compile("[\u3001-\u9fff]{1,4096}")  # kana and ideographs; in pieces, for the sake of memory
OTHER_SPACE = re.compile(r"[^\S\x00-\x20]")  # white space that isn't ASCII
CONTROLS = dict.fromkeys(range(32), " ")
SEPARATOR = re.compile(rb"[\x00-\x20]")

BLOCK = 1 << 17  # bytes that are hashed at a time: what NumPy makes of them has to fit the processor's cache
LONGEST = 2 * BLOCK  # a word that is longer still is cut, but only for hashing
BASE = 0x9E3779B5  # 5 modulo 8, so that its powers run through a quarter of all 32-bit numbers
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def spaced(text: str) -> str:
    """The text in Unicode's composed form (NFC), with spaces where its words part."""
    if text.isascii():
        return text
    text = OTHER_SPACE.sub(" ", unicodedata.normalize("NFC", text))
    return WIDE.sub(lambda run: f" {' '.join(run[0])} ", text)


def words(text: str) -> list[str]:
    """The text's words, in order; control characters separate, like white space."""
    return spaced(text).translate(CONTROLS).split()


def shingles(text: str, n: int = NGRAM) -> set[str]:
    """All runs of n words, each joined by single spaces. A text with fewer words has one shingle, an empty one none.

    >>> sorted(shingles("to be or not to be or", 3))  # "to be or" stands there twice
    ['be or not', 'not to be', 'or not to', 'to be or']
    >>> shingles("去重 once", 5)
    {'去 重 once'}
    """
    # exercise 3.1: slide a window of n words along the text, one word at a time, and collect what it shows
    raise Todo("3.1")
    # end


def jaccard(a: set[str], b: set[str]) -> float:
    """What two sets share, as a part of all they have: |a & b| / |a | b|. Two empty sets are equal: 1."""
    shared = len(a & b)
    union = len(a) + len(b) - shared
    return shared / union if union else 1.0


def shingle_hashes(texts: Sequence[str], n: int = NGRAM) -> tuple[Array, Array]:
    """A 64-bit hash for every shingle of every text, repeated ones too, all in one row.

    Returns (hashes [total] uint64, counts [texts] int64): the first counts[0] belong to texts[0], and so on.  Shingles
    that are equal have equal hashes, in every process and on every machine.  n: at least 1.
    """
    check_ngram(n)
    found = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for block in _blocks(texts):
        hashes, counts = window_hashes(*word_hashes(block), n)
        found.append((mix(hashes), counts))
    return np.concatenate([hashes for hashes, _ in found]), np.concatenate([counts for _, counts in found])


def window_hashes(hashes: Array, counts: Array, n: int, multiplier: np.uint64 = MULTIPLIER) -> tuple[Array, Array]:
    """A hash for each window of n words: (h0 * m + h1) * m + h2 and so on, modulo 2**64.

    hashes: [total] uint64, one for each word, document after document; counts: [docs], how many belong to each.
    No window crosses from a document into the next. A document with fewer than n words has one window, in which the
    missing ones count as 0; one without words has none.  Returns (hashes [windows] uint64, windows of each [docs]).

    >>> hashes = np.array([1, 2, 3, 4, 5, 6, 7], np.uint64)  # the documents 1 2 3 4, and 5, and 6 7, and an empty one
    >>> windows, counts = window_hashes(hashes, np.array([4, 1, 2, 0]), 3, multiplier=np.uint64(10))
    >>> windows.tolist(), counts.tolist()
    ([123, 234, 500, 670], [2, 1, 1, 0])
    """
    # exercise 3.2: a window at every word first, by adding shifted copies of the whole row; then drop those that cross
    #   left, the number of words from here to the document's end, tells what to add and what to drop
    raise Todo("3.2")
    # end


def word_hashes(documents: Sequence[bytes]) -> tuple[Array, Array]:
    """A 32-bit hash for each word of each document, without a loop over words.

    documents: text as UTF-8, words parted by bytes up to 32.  Returns (hashes [total] uint64, words of each [docs]).
    A word's hash is the sum of byte[i] * BASE**i over its bytes, counted from its start. One running sum over the block
    gives all of them: the sum at its end less the sum at its start, divided by BASE**start (modulo 2**32, where every
    odd number has an inverse).
    """
    blob = b"\n".join([*documents, b""])
    found, places, at = [], [], 0
    while at < len(blob):
        cut = SEPARATOR.search(blob, at + BLOCK, at + LONGEST)
        size = (cut.start() if cut else min(at + LONGEST, len(blob))) - at
        block = np.frombuffer(blob, np.uint8, size, at)
        inside = np.zeros(size + 2, bool)
        np.greater(block, 32, out=inside[1:-1])
        edges = np.flatnonzero(inside[1:] != inside[:-1])  # a word's start, its end, the next one's start, ...
        start, end = edges[::2], edges[1::2]
        sums = np.zeros(size + 1, np.uint32)
        np.cumsum(np.multiply(block, POWERS[:size], dtype=np.uint32), out=sums[1:])
        found.append((sums[end] - sums[start]) * INVERSE_POWERS[start])
        places.append(start + at)
        at += size
    ends = np.cumsum([len(document) + 1 for document in documents])
    counts = np.diff(np.searchsorted(np.concatenate(places), ends), prepend=0)
    return np.concatenate(found).astype(np.uint64), counts


def mix(hashes: Array) -> Array:
    """Stir 64-bit hashes, so that each bit of the result depends on all bits; equal stay equal, different different."""
    hashes = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return hashes ^ (hashes >> np.uint64(32))


def check_ngram(n: int) -> None:
    """Raises ValueError unless n can be a number of words."""
    if type(n) is not int or not 1 <= n <= MOST_NGRAM:
        raise ValueError(f"ngram is the number of words in a shingle: an integer from 1 to {MOST_NGRAM}, not {n!r}")


def _blocks(texts: Sequence[str]) -> Iterator[list[bytes]]:
    """The texts as UTF-8, up to BLOCK bytes at a time; a longer one alone, since no cut in it may depend on others."""
    block: list[bytes] = []
    size = 0
    for text in texts:
        document = spaced(text).encode("utf-8", "surrogatepass")
        if block and size + len(document) > BLOCK:
            yield block
            block, size = [], 0
        block.append(document)
        size += len(document)
    if block:
        yield block


def _powers(base: int) -> Array:
    """base**i modulo 2**32, for i = 0, 1, 2, ..."""
    factors = np.full(LONGEST, base, np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)


POWERS = _powers(BASE)
INVERSE_POWERS = _powers(pow(BASE, -1, 2**32))
