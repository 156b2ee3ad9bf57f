"""Deduplicating the book's own corpus: ours, rensa and datasketch on the same documents, against brute force."""

import importlib
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from shared.data.corpus import make_corpus
from shared.data.dedup import deduplicate
from shared.data.duplicates import THRESHOLD, exact_duplicates, near_duplicates
from shared.data.lsh import Pair
from shared.data.minhash import NUM_PERM
from shared.data.shingles import NGRAM, Array, words
from shared.measure.progress import progress_bar

DATASKETCH_DOCUMENTS = 3_000  # it is slow, and its rate doesn't depend on how many there are


def bench_dedup(documents: int = 30_000, repeats: int = 3, progress: bool = True) -> dict[str, Any]:
    """Documents per second from the texts to what is kept, ours and its peers', and what ours finds and misses.

    All get the same texts, the threshold 0.85, 128 permutations and shingles of 5 words; all run in one process, on one
    thread, taking turns; the best of `repeats` counts.  rensa runs as its README says (RMinHashDeduplicator.add_pairs);
    it and datasketch, which runs once, on the first 3,000 texts, get their shingles from the same line of Python, and
    that counts, as ours do.  rensa and datasketch don't compare texts; ours does, in the same time.
    precision, recall: of the pairs, among texts that differ, against all pairs compared.  bytes_per_doc: the most that
    deduplicating the file ever holds, by tracemalloc, over the number of documents.
    documents: at most so many; the corpus may have fewer.  Raises RuntimeError when rensa isn't installed.
    """
    try:
        rensa = importlib.import_module("rensa")
    except ImportError:
        raise RuntimeError(
            "the peer of this benchmark is missing; install it: pip install 'your-own-parts[bench]'"
        ) from None
    corpus = make_corpus("docs", progress=progress)
    with corpus.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in islice(file, documents)]

    seconds: dict[str, float] = {}
    with progress_bar("deduplicating", 2 * repeats + 3, enabled=progress) as step:
        for _ in range(repeats):
            for name, run in (("ours", lambda: near_duplicates(texts)), ("rensa", lambda: run_rensa(rensa, texts))):
                took, result = timed(run)
                seconds[name] = min(took, seconds.get(name, took))
                if name == "ours":
                    found = result
                else:
                    rensa_kept = sum(result)
                step()
        sample = texts[:DATASKETCH_DOCUMENTS]
        datasketch_s, _ = timed(lambda: run_datasketch(sample))
        step()
        first = exact_duplicates(texts)
        distinct = [i for i, original in enumerate(first) if i == original]
        truth = {(distinct[i], distinct[j]) for i, j, _ in all_pairs([texts[i] for i in distinct])}
        step()
        bytes_per_doc = peak_bytes(texts) / len(texts)
        step()
    pairs = {(i, j) for i, j, _ in found.pairs}
    right = len(pairs & truth)
    return {
        "docs_per_s": len(texts) / seconds["ours"],
        "rensa_docs_per_s": len(texts) / seconds["rensa"],
        "datasketch_docs_per_s": len(sample) / datasketch_s,
        "precision": right / max(len(pairs), 1),
        "recall": right / max(len(truth), 1),
        "bytes_per_doc": bytes_per_doc,
        "documents": len(texts), "megabytes": sum(len(text.encode()) for text in texts) / 1e6, "true_pairs": len(truth),
        "kept": sum(i == kept for i, kept in enumerate(found.kept)), "rensa_kept": rensa_kept,
        "datasketch_documents": len(sample), "threshold": THRESHOLD, "num_perm": NUM_PERM, "ngram": NGRAM,
        "repeats": repeats,
    }  # fmt: skip


def plain_shingles(text: str, n: int = NGRAM) -> set[str]:
    """The shingles as one writes them in Python: the peers' and the brute force's."""
    found = text.split() if text.isascii() else words(text)
    if len(found) < n:
        return {" ".join(found)} if found else set()
    return set(map(" ".join, zip(*(found[i:] for i in range(n)), strict=False)))


def run_rensa(rensa: Any, texts: Sequence[str]) -> list[bool]:
    """Whether rensa keeps each text."""
    judge = rensa.RMinHashDeduplicator(threshold=THRESHOLD, num_perm=NUM_PERM, use_lsh=True)
    return judge.add_pairs((str(i), plain_shingles(text)) for i, text in enumerate(texts))


def run_datasketch(texts: Sequence[str], params: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """The pairs that datasketch takes for near duplicates, with its own bands or with these (bands, rows)."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM, params=params)
    pairs = []
    for i, text in enumerate(texts):
        signature = MinHash(num_perm=NUM_PERM)
        signature.update_batch([shingle.encode() for shingle in plain_shingles(text)])
        pairs += [(j, i) for j in index.query(signature)]
        index.insert(i, signature)
    return pairs


def all_pairs(texts: Sequence[str], threshold: float = THRESHOLD, n: int = NGRAM) -> list[Pair]:
    """Every pair (i, j, similarity) whose true Jaccard similarity reaches the threshold; texts without words left out.

    As exact as comparing all pairs, and far cheaper (Chaudhuri, Ganti and Kaushik 2006): a set of m shingles and one
    that is similar enough share at least ceil(threshold * m) of them, so they share one of the m + 1 less that many
    rarest. Only who shares one of these is compared; a product of sparse matrices finds who does, another compares.
    """
    number: dict[str, int] = {}
    sets = [[number.setdefault(shingle, len(number)) for shingle in plain_shingles(text, n)] for text in texts]
    sizes = np.array([len(members) for members in sets], np.int64)
    doc = np.repeat(np.arange(len(sets)), sizes)
    shingle = np.array([member for members in sets for member in members], np.int64)
    frequency = np.bincount(shingle, minlength=1)
    order = np.lexsort((shingle, frequency[shingle], doc))  # within each document, the rarest first
    rank = np.arange(len(doc)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    prefix = (sizes + 1 - np.ceil(threshold * sizes - 1e-9).astype(np.int64))[doc]
    rare = order[(rank < prefix) & (frequency[shingle[order]] > 1)]

    def matrix(entries: Array) -> sparse.csr_array:
        ones = np.ones(len(entries), np.int64)
        return sparse.csr_array((ones, (doc[entries], shingle[entries])), shape=(len(sets), max(len(number), 1)))

    whole, part = matrix(order), matrix(rare)
    i, j = sparse.triu(part @ part.T, k=1).nonzero()
    found: list[tuple[int, int, float]] = []
    for at in range(0, len(i), 10_000):
        a, b = i[at : at + 10_000], j[at : at + 10_000]
        shared = whole[a].multiply(whole[b]).sum(axis=1)
        similarity = shared / (sizes[a] + sizes[b] - shared)
        good = similarity >= threshold
        found += zip(a[good].tolist(), b[good].tolist(), similarity[good].tolist(), strict=True)
    return sorted(found)


def peak_bytes(texts: Sequence[str]) -> int:
    """The most that deduplicating these texts, in a file, holds at any one time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}) + "\n")
        running = tracemalloc.is_tracing()
        tracemalloc.start()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        deduplicate(path, Path(folder) / "kept.jsonl", progress=False)
        peak = tracemalloc.get_traced_memory()[1]
        if not running:
            tracemalloc.stop()
        return peak - before


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of wall clock, and the result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result
