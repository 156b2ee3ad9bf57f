"""A corpus with planted copies: documents, and edited copies of some of them whose true similarity is known."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.data.corpus import Record, write_record

SHARE = 0.25  # of the documents get copies
MAX_COPIES = 3
MIN_WORDS = 40  # in a shorter text a single edit already changes most shingles
_WORDS = "alpha beta gamma delta river stone cloud paper seven early north quiet copper winter garden signal"
NEW_WORDS = _WORDS.split()


def words_5(text: str) -> set[tuple[str, ...]]:
    """The text's runs of five words, lower case, split at white space."""
    words = text.lower().split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def chars_5(text: str) -> set[str]:
    """The text's runs of five characters, as they stand."""
    return {text[i : i + 5] for i in range(len(text) - 4)}


def jaccard(a: set[Any], b: set[Any]) -> float:
    """Shared members over all members; 0 for two empty sets, which share nothing."""
    union = len(a | b)
    return len(a & b) / union if union else 0.0


def make_near_duplicates(documents: Iterator[Record], seed: int, path: Path) -> dict[str, Any]:
    """Write the documents with edited copies among them.  Returns the truth.

    "pairs": [{"a", "b", "words_5", "chars_5"}], where a < b are records counted from 0, and the other two the true
    Jaccard similarities of their 5-word and their 5-character shingles.  All pairs within a family (a document and its
    copies) are listed. Documents that were alike before, by nature, are not: only a comparison of all pairs finds them.
    """
    rng = random.Random(seed)
    placed: list[tuple[float, int, Record]] = []  # where it goes, its family, the record
    for family, record in enumerate(documents):
        position = rng.random()
        placed.append((position, family, record))
        if len(record["text"].split()) >= MIN_WORDS and rng.random() < SHARE:
            for copy in range(rng.randint(1, MAX_COPIES)):
                text = edit(record["text"], similarity=rng.choice((1.0, rng.uniform(0.4, 1.0))), rng=rng)
                record_ = record | {"text": text, "source": f"mirror-{copy + 1}/{record['source']}"}
                placed.append((rng.uniform(position, 1.0), family, record_))  # the original comes first
    placed.sort(key=lambda item: item[0])
    families: dict[int, list[int]] = {}
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for index, (_, family, record) in enumerate(placed):
            families.setdefault(family, []).append(index)
            write_record(file, record)
    pairs = []
    for members in families.values():
        sets = [(words_5(placed[i][2]["text"]), chars_5(placed[i][2]["text"])) for i in members if len(members) > 1]
        for later in range(1, len(sets)):
            for earlier in range(later):
                pairs.append({
                    "a": members[earlier],
                    "b": members[later],
                    "words_5": jaccard(sets[earlier][0], sets[later][0]),
                    "chars_5": jaccard(sets[earlier][1], sets[later][1]),
                })  # fmt: skip
    return {"records": len(placed), "pairs": sorted(pairs, key=lambda pair: (pair["a"], pair["b"]))}


def edit(text: str, similarity: float, rng: random.Random) -> str:
    """A copy whose 5-word shingles have about this Jaccard similarity with the text's.  1.0: an exact copy.

    A replaced word changes the five shingles it is in: with m of them in n words the similarity is about
    (n - 5m) / (n + 5m), which gives m.
    """
    words = text.split(" ")
    filled = [i for i, word in enumerate(words) if word.strip()]
    edits = round(len(text.split()) * (1 - similarity) / (5 * (1 + similarity)))
    for i in rng.sample(filled, min(edits, len(filled))):
        words[i] = rng.choice(NEW_WORDS)
    return " ".join(words)
