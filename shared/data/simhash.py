"""SimHash: 64 bits for a text, most of which a similar text shares (Charikar 2002; Manku, Jain and Das Sarma 2007).

Where MinHash estimates what two sets share, SimHash estimates the angle between two vectors of counts.
"""

from collections.abc import Sequence

import numpy as np

from shared.data.lsh import candidate_pairs
from shared.data.minhash import batches
from shared.data.shingles import NGRAM, Array, shingle_hashes

BITS = 64


def simhash(hashes: Array, counts: Array) -> Array:
    """Each shingle votes with its hash, bit by bit; what more than half of a document's shingles vote for is set.

    hashes: [total] uint64; counts: [docs].  Returns [docs] uint64; 0 for a document without shingles.

    >>> simhash(np.array([0b1100, 0b1010, 0b1001, 0b0110], np.uint64), np.array([3, 1])).tolist()  # 0b1000, 0b0110
    [8, 6]
    """
    # exercise 3.8: count each bit's votes in each document, and set the bits that have more than half
    #   np.unpackbits and np.packbits (both with bitorder="little") go from bytes to bits and back
    votes = np.unpackbits(hashes.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")  # [total, 64]
    some = counts > 0
    starts = (np.cumsum(counts) - counts)[some]
    bits = np.zeros((len(counts), BITS), bool)
    if len(starts):
        bits[some] = 2 * np.add.reduceat(votes, starts, axis=0, dtype=np.int64) > counts[some, None]
    return np.packbits(bits, axis=1, bitorder="little").view("<u8")[:, 0].astype(np.uint64)
    # end


def simhashes(texts: Sequence[str], ngram: int = NGRAM) -> Array:
    """The SimHash of each text, [texts] uint64."""
    parts = [simhash(*shingle_hashes(batch, ngram)) for batch in batches(texts)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def distance(a: Array, b: Array) -> Array:
    """How many of the 64 bits differ."""
    return np.bitwise_count(a ^ b)


def close_pairs(prints: Array, max_distance: int = 3) -> Array:
    """All pairs [pairs, 2] that differ in at most max_distance bits; none is missed, none is a false alarm.

    Cut the bits into max_distance + 1 blocks: that many differences leave at least one block untouched (Manku 2007,
    section 3), so equal blocks find all candidates.  Raises ValueError unless 0 <= max_distance < 64.
    """
    if not 0 <= max_distance < BITS:
        raise ValueError(f"max_distance is a number of bits from 0 to {BITS - 1}, not {max_distance!r}")
    edges = np.linspace(0, BITS, max_distance + 2).astype(int)
    keys = np.stack([
        prints >> np.uint64(low) & np.uint64(2 ** int(high - low) - 1)
        for low, high in zip(edges, edges[1:], strict=False)
    ], axis=1)  # fmt: skip
    pairs = candidate_pairs(keys)
    return pairs[distance(prints[pairs[:, 0]], prints[pairs[:, 1]]) <= max_distance]
