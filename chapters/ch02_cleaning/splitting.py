# Yours to finish. Generated from shared/data/splitting.py (version 7e2ec4ee6b5c).
"""Split records into training, validation and test: by source or by time, and measure what a split leaks."""

from chapters import Todo
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Splits = dict[str, list[Record]]
FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def split_of(key: str, fractions: Mapping[str, float], seed: int = 0) -> str:
    """The split that everything with this key belongs to: today, tomorrow, and on another machine.

    The first 8 bytes of the SHA-256 of "SEED:KEY" (UTF-8), read as a big-endian number and divided by 2**64, are a
    point from 0 to 1. The splits share this range out in their order: with {"train": 0.9, "test": 0.1} a point below
    0.9 is "train".  fractions: positive, with a sum of 1, which the callers see to: here they are taken as they
    are, and a point above all edges, which rounding makes possible, goes to the last split.

    >>> [split_of(key, {"train": 0.5, "test": 0.5}) for key in ("a", "b", "c", "d")]
    ['test', 'test', 'test', 'train']
    """
    # exercise 2.8: hash "SEED:KEY" to a point from 0 to 1, then find the split in whose part of the range it falls
    raise Todo("2.8")
    # end


def split_by_source(
    records: Iterable[Record],
    fractions: Mapping[str, float] = FRACTIONS,
    seed: int = 0,
    source: Callable[[Record], str] = lambda record: record["source"],
) -> Splits:
    """All records of a source go to the same split, so that its turns of phrase are never on both sides.

    source: what counts as one: by default a file; `lambda record: record["label"]` keeps whole packages together.
    Raises ValueError for fractions that aren't positive or don't add up to 1.
    """
    _check(fractions)
    splits: Splits = {name: [] for name in fractions}
    for record in records:
        splits[split_of(source(record), fractions, seed)].append(record)
    return splits


def split_at_random(records: Iterable[Record], fractions: Mapping[str, float] = FRACTIONS, seed: int = 0) -> Splits:
    """Each record for itself, by its position. What everyone does, and what leaks."""
    _check(fractions)
    splits: Splits = {name: [] for name in fractions}
    for position, record in enumerate(records):
        splits[split_of(str(position), fractions, seed)].append(record)
    return splits


def split_by_time(records: Iterable[Record], ends: Mapping[str, str], time: str = "time") -> Splits:
    """The past for training, what came later for the test, as it will be in use.

    ends: where each split ends, and the next begins, in their order: {"train": "2023-07", "validation": "2024"}; what
    is later goes to "test".  Times are compared as text, so write them as ISO 8601 does: 2024-01-15.
    Raises ValueError if the ends aren't in order, or for a record without a time.
    """
    if list(ends.values()) != sorted(ends.values()) or "test" in ends:
        raise ValueError(f'ends must be in order, and "test" takes the rest; got {dict(ends)}')
    splits: Splits = {name: [] for name in (*ends, "test")}
    for position, record in enumerate(records):
        if not isinstance(record.get(time), str):
            raise ValueError(f"record {position} has no {time!r} to be split by: {record.get(time)!r}")
        splits[next((name for name, end in ends.items() if record[time] < end), "test")].append(record)
    return splits


@dataclass(frozen=True)
class Leakage:
    """Shares of the test set that the training set knows: the same text, nearly the same, or its source."""

    exact: float
    near: float
    source: float


def leakage(train: Sequence[Record], test: Sequence[Record], n: int = 8, seen: float = 0.7) -> Leakage:
    """How much of the test set is in the training set.

    near: at least this share of a test text's n-grams (of words) stands somewhere in the training set. 70% of 8-grams
    is PaLM's measure of contamination (Chowdhery et al. 2022, section 8). Exact copies are counted in it.
    """
    texts, sources = {record["text"] for record in train}, {record["source"] for record in train}
    grams = {gram for record in train for gram in _hashed_ngrams(record["text"], n)}
    exact = near = source = 0
    for record in test:
        own = _hashed_ngrams(record["text"], n)
        exact += record["text"] in texts
        near += record["text"] in texts or (bool(own) and sum(gram in grams for gram in own) >= seen * len(own))
        source += record["source"] in sources
    total = max(1, len(test))
    return Leakage(exact / total, near / total, source / total)


def _hashed_ngrams(text: str, n: int) -> set[int]:
    words = text.split()
    return {hash(tuple(words[i : i + n])) for i in range(len(words) - n + 1)}  # within one process hash() will do


def _check(fractions: Mapping[str, float]) -> None:
    if not fractions or min(fractions.values()) <= 0 or abs(sum(fractions.values()) - 1) > 1e-9:
        raise ValueError(f"fractions must be positive and add up to 1, not {dict(fractions)}")
