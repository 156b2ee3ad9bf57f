"""Locality-sensitive hashing: find the pairs that may be similar without looking at all pairs, then make sure.

A signature is cut into bands of `rows` numbers each. Texts that agree in a whole band are candidates (Indyk and Motwani
1998; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4). Candidates are no result: what counts
is their true similarity.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from shared.data.shingles import Array, jaccard

MAX_MISS = 0.01
Pair = tuple[int, int, float]


def candidate_probability(similarity: float | Array, bands: int, rows: int) -> float | Array:
    """How likely a pair of this similarity is to agree in at least one band: the S-curve.

    One band of `rows` numbers agrees with probability similarity**rows; all bands fail to with (1 - that)**bands.
    """
    return 1 - (1 - similarity**rows) ** bands


def choose_bands(threshold: float, num_perm: int, max_miss: float = MAX_MISS) -> tuple[int, int]:
    """(bands, rows) for a signature of num_perm numbers, as many bands as fit, so that little is missed.

    Of all rows for which a pair exactly at the threshold is missed with probability at most max_miss, the most: more
    rows mean fewer candidates in vain. If none will do, rows is 1.  Raises ValueError unless 0 < threshold <= 1.

    >>> choose_bands(0.85, 128), choose_bands(0.5, 128), choose_bands(1.0, 128)
    ((16, 8), (42, 3), (1, 128))
    """
    check_threshold(threshold)
    # exercise 3.5: try rows from num_perm down; the S-curve at the threshold says how many are caught
    for rows in range(num_perm, 1, -1):
        bands = num_perm // rows
        if 1 - candidate_probability(threshold, bands, rows) <= max_miss:
            return bands, rows
    return num_perm, 1
    # end


def band_keys(signatures: Array, bands: int, rows: int) -> Array:
    """A 64-bit number for each band of each signature, equal where bands are equal. Returns [docs, bands] uint64."""
    factors = np.random.RandomState(0).randint(0, 2**63, rows, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    keys = np.empty((len(signatures), bands), np.uint64)
    for band in range(bands):
        keys[:, band] = signatures[:, band * rows : (band + 1) * rows].astype(np.uint64) @ factors
    return keys


def bucket_pairs(keys: Array) -> Iterator[Array]:
    """All pairs of documents with equal keys, each once, as arrays [pairs, 2] whose first column is the smaller.

    keys: [docs].  Sorting brings equal keys together. First come neighbours in that order, then those two apart, and
    so on, until no equal keys stand so far apart.  Work and memory follow the pairs there are, not all pairs.

    >>> [pairs.tolist() for pairs in bucket_pairs(np.array([7, 5, 7, 6, 7]))]
    [[[0, 2], [2, 4]], [[0, 4]]]
    """
    # exercise 3.6: sort, stably, so that equal keys keep their documents in order; then compare keys gap apart
    #   whoever has no equal at this gap has none at a larger one
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    at, gap = np.arange(len(keys)), 1
    while True:
        at = at[at + gap < len(keys)]
        at = at[ranked[at] == ranked[at + gap]]
        if not len(at):
            return
        yield np.stack([order[at], order[at + gap]], axis=1)
        gap += 1
    # end


def candidate_pairs(keys: Array) -> Array:
    """The pairs that share a key in at least one band, each once, in order. keys: [docs, bands]. Returns [pairs, 2]."""
    found = [pairs for band in keys.T for pairs in bucket_pairs(band)]
    if not found:
        return np.zeros((0, 2), np.int64)
    pairs = np.concatenate(found)
    return np.stack(np.divmod(np.unique(pairs[:, 0] * len(keys) + pairs[:, 1]), len(keys)), axis=1)


def verify(pairs: Iterable[tuple[int, int]], shingles_of: Callable[[int], set[str]], threshold: float) -> list[Pair]:
    """The pairs whose true Jaccard similarity is at least the threshold, as (i, j, similarity)."""
    found = []
    for i, j in pairs:
        similarity = jaccard(shingles_of(i), shingles_of(j))
        if similarity >= threshold:
            found.append((i, j, similarity))
    return found


def join(parent: Array, pairs: Iterable[Pair]) -> None:
    """Clusters by union-find (Tarjan 1975), in place: put the clusters of i and j together, for each (i, j, ...).

    parent: [docs], at first np.arange(docs). Who names itself is its cluster's root; everyone else names another of the
    cluster, and following the names ends at the root.  The root is the cluster's first document.

    >>> parent = np.arange(6)
    >>> join(parent, [(1, 4, 0.9), (3, 4, 0.9)])  # 4 goes with 1, and takes 3 along
    >>> parent.tolist()
    [0, 1, 2, 1, 1, 5]
    """
    # exercise 3.7: follow the names from i and from j to their roots, then let the later root name the earlier
    #   on the way halve the path (parent[i] = parent[parent[i]]), or long chains take quadratic time
    for i, j, *_ in pairs:
        tops = []
        for doc in (i, j):
            while parent[doc] != doc:
                parent[doc] = parent[parent[doc]]
                doc = parent[doc]
            tops.append(doc)
        parent[max(tops)] = min(tops)
    # end


def roots(parent: Array, docs: Array) -> Array:
    """The root of each of these documents, all at once. docs: any shape."""
    found = parent[docs]
    while (parent[found] != found).any():
        found = parent[found]
    return found


def check_threshold(threshold: float) -> None:
    """Raises ValueError unless 0 < threshold <= 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise ValueError(f"threshold is a Jaccard similarity above 0 and up to 1, not {threshold!r}")
