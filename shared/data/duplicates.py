"""Duplicates among texts in memory: equal ones by a dictionary, near ones by MinHash, bands, and a true comparison."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shared.data.lsh import (
    Pair,
    band_keys,
    candidate_pairs,
    check_threshold,
    choose_bands,
    join,
    roots,
    verify,
)
from shared.data.minhash import NUM_PERM, estimate, signatures
from shared.data.shingles import NGRAM, Array, shingles

THRESHOLD = 0.85
SETS_AT_HAND = 2048
SLACK = 4


@dataclass(frozen=True)
class Duplicates:
    """kept: for each text the number of the one that is kept in its place, its own number if it is kept itself.
    pairs: (i, j, true Jaccard similarity), the near duplicates among the texts that no earlier text equals.
    candidates: how many pairs were compared to find them.
    """

    kept: list[int]
    pairs: list[Pair]
    candidates: int


def exact_duplicates(texts: Sequence[str]) -> list[int]:
    """For each text the number of the first that equals it: its own, if there is no earlier one.

    Equal is: in Unicode's composed form (NFC), and without white space at the ends.

    >>> exact_duplicates(["a b", "c", "a b "])
    [0, 1, 0]
    """
    first: dict[str, int] = {}
    return [first.setdefault(normal_form(text), i) for i, text in enumerate(texts)]


def fingerprint(text: str) -> bytes:
    """SHA-256 of the text's normal form: 32 bytes to know it by when the texts themselves can't stay in memory."""
    return hashlib.sha256(normal_form(text).encode("utf-8", "surrogatepass")).digest()


def normal_form(text: str) -> str:
    """The text in Unicode's composed form (NFC), without white space at its ends."""
    return (text if text.isascii() else unicodedata.normalize("NFC", text)).strip()


def first_equal(digests: Array) -> Array:
    """For each document the first with the same digest. digests: [docs, 4] uint64. Returns [docs] int64."""
    order = np.lexsort(digests.T)  # stable: equals stay in the order of the file
    ranked = digests[order]
    new = np.ones(len(order), bool)
    new[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    first = np.empty(len(order), np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def near_duplicates(
    texts: Sequence[str], threshold: float = THRESHOLD, num_perm: int = NUM_PERM, ngram: int = NGRAM
) -> Duplicates:
    """Exact duplicates first, then, among the rest, the pairs whose shingles' Jaccard similarity reaches threshold.

    A pair found is a pair that is; a pair missed is possible (at the threshold itself about one in a hundred, far
    fewer above).  Of each cluster the first text is kept.  Raises ValueError unless 0 < threshold <= 1 and num_perm and
    ngram are at least 1.
    """
    check_threshold(threshold)
    parent = np.array(exact_duplicates(texts), np.int64)
    distinct = np.flatnonzero(parent == np.arange(len(parent)))
    candidates = candidates_among([texts[i] for i in distinct.tolist()], threshold, num_perm, ngram)
    shingles_of = lru_cache(SETS_AT_HAND)(lambda i: shingles(texts[i], ngram))
    pairs = verify(distinct[candidates].tolist(), shingles_of, threshold)
    join(parent, pairs)
    return Duplicates(roots(parent, np.arange(len(parent))).tolist(), pairs, len(candidates))


def candidates_among(texts: Sequence[str], threshold: float, num_perm: int, ngram: int) -> Array:
    """The pairs [pairs, 2] of texts worth comparing: their signatures agree in a whole band, and well enough in all."""
    rows = signatures(texts, num_perm, ngram)
    pairs = candidate_pairs(band_keys(rows, *choose_bands(threshold, num_perm)))
    return pairs[likely(rows[pairs[:, 0]], rows[pairs[:, 1]], threshold)]


def likely(a: Array, b: Array, threshold: float) -> Array:
    """Whether signatures [pairs, k] agree well enough for a comparison: bool [pairs].

    That is, no more than SLACK standard deviations below the threshold. Of pairs that reach it, one in 30,000 doesn't.
    """
    return estimate(a, b) >= threshold - SLACK * (threshold * (1 - threshold) / a.shape[-1]) ** 0.5
