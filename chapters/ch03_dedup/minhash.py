# Yours to finish. Generated from shared/data/minhash.py (version 9e8a4009f533).
"""MinHash: a short row of numbers for a text, in which two texts agree as often as their shingles do.

Broder 1997, "On the resemblance and containment of documents". Hash every shingle and keep the smallest hash: of two
texts' shingles together, the smallest is as likely as any other to be one that both have. So the two minima are equal
with probability |A & B| / |A | B|, the Jaccard similarity; 128 hash functions give 128 such trials.
"""

from chapters import Todo
from collections.abc import Iterator, Sequence

import numpy as np

from shared.data.shingles import NGRAM, Array, shingle_hashes

NUM_PERM = 128
MOST_PERM = 4096
EMPTY = np.uint32(0xFFFFFFFF)  # larger than any hash: no shingle has been here
BATCH_CHARS = 1 << 20


def minhash(x: Array, counts: Array, a: Array, b: Array) -> Array:
    """The signature by the book: for each of k hash functions the smallest value of any shingle.

    x: [total] uint32, the shingles of all documents; counts: [docs], how many belong to each.  a, b: [k] uint64; hash
    function i is (a[i] * x + b[i]) modulo 2**64, of which the upper 32 bits count (multiply-shift: Dietzfelbinger 1996;
    with random a and b it is strongly universal).  Returns [docs, k] uint32; a document without shingles gets EMPTY.

    >>> one = 1 << 32  # so that the upper half of one * x is x itself
    >>> minhash(np.array([5, 3, 9], np.uint32), np.array([2, 0, 1]), np.array([one, 2 * one], np.uint64),
    ...         np.array([0, one], np.uint64)).tolist()
    [[3, 7], [4294967295, 4294967295], [9, 19]]
    """
    # exercise 3.3: for each function hash the whole row at once, then take the minimum of each document's part
    #   np.minimum.reduceat(values, starts) does that, but takes an empty part for a part of one: leave empty ones out
    raise Todo("3.3")
    # end


def one_permutation(hashes: Array, counts: Array, k: int, shifts: Array) -> Array:
    """A signature for which each shingle is hashed once, not k times (Li, Owen and Zhang 2012; Shrivastava 2017).

    hashes: [total] uint64; counts: [docs].  A shingle goes into one of k places, (lower 32 bits) * k >> 32, where the
    smallest of the upper 32 bits stays. A place that no shingle fell into borrows: place p takes what place
    (p + shifts[0]) % k got, if that is empty (p + shifts[1]) % k, and so on; it never takes what was borrowed.
    shifts: 1 to k - 1, in a random order that all documents share.  Returns [docs, k] uint32; EMPTY without shingles.

    >>> low, high = np.array([0, 2, 2], np.uint64) << np.uint64(30), np.array([7, 9, 4], np.uint64) << np.uint64(32)
    >>> one_permutation(low + high, np.array([3]), 4, shifts=np.array([2, 1, 3])).tolist()  # 7 fell in 0, 4 in 2
    [[7, 4, 4, 7]]
    """
    # exercise 3.4: np.minimum.at(flat, where, values) fills the places of all documents, in one flat array
    #   then, for one shift after the other, the places that are still empty look at their donors
    raise Todo("3.4")
    # end


def signatures(texts: Sequence[str], num_perm: int = NUM_PERM, ngram: int = NGRAM) -> Array:
    """The one-permutation signatures of texts, [texts, num_perm] uint32. The same in every process.

    Raises ValueError for a num_perm or ngram out of range.
    """
    check_num_perm(num_perm)
    shifts = borrowing_order(num_perm)
    parts = [one_permutation(*shingle_hashes(batch, ngram), num_perm, shifts) for batch in batches(texts)]
    return np.concatenate(parts) if parts else np.zeros((0, num_perm), np.uint32)


def estimate(a: Array, b: Array) -> Array:
    """The Jaccard similarity that signatures promise: the part of their places where they agree. a, b: [..., k]."""
    return (a == b).mean(axis=-1)


def hash_functions(k: int, seed: int = 0) -> tuple[Array, Array]:
    """a and b of k hash functions for `minhash`, [k] uint64 each."""
    rng = np.random.RandomState(seed)  # its stream is frozen for good: the same numbers in every version of NumPy
    a, b = rng.randint(0, 2**64, (2, k), dtype=np.uint64)
    return a, b


def borrowing_order(k: int, seed: int = 0) -> Array:
    """1 to k - 1 in random order, for `one_permutation`."""
    return np.random.RandomState(seed).permutation(np.arange(1, k))


def batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts a million characters at a time, so that what is computed on the way stays small."""
    start = size = 0
    for i, text in enumerate(texts):
        size += len(text)
        if size >= BATCH_CHARS or i == len(texts) - 1:
            yield texts[start : i + 1]
            start, size = i + 1, 0


def check_num_perm(num_perm: int) -> None:
    """Raises ValueError unless num_perm can be a signature's length.

    An estimate's error falls with the root of the length only, while work and memory grow with all of it.
    """
    if type(num_perm) is not int or not 1 <= num_perm <= MOST_PERM:
        raise ValueError(
            f"num_perm is the length of a signature: an integer from 1 to {MOST_PERM}, not {num_perm!r}. "
            f"With {NUM_PERM} an estimate is off by a few hundredths; four times as many make that half"
        )
