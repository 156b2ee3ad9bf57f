"""Exercise 3.6, and the candidates made of it: judged by a dictionary, and by datasketch's own index."""

import random
from collections import defaultdict
from itertools import combinations

import numpy as np
from datasketch import MinHash, MinHashLSH

from chapters.ch03_dedup import lsh as mine
from chapters.judge import exercise, expect, expect_equal
from shared.data import lsh as reference
from tests.ch02_cleaning.clock import cpu_seconds
from tests.ch03_dedup.calling import call


def bucket_pairs(keys: list[int]) -> list[tuple[int, int]]:
    return [pair for part in parts_of(keys) for pair in part]


def parts_of(keys: list[int]) -> list[list[tuple[int, int]]]:
    got = call(mine.bucket_pairs, np.array(keys, np.uint64), none="nothing came back: yield an array for every gap")
    expect(
        not isinstance(got, np.ndarray),
        because="all pairs came back as one array; arrays are wanted, one for each gap, each given out by a yield: "
        "who has enough links after the neighbours need not pay for the rest",
    )
    parts = []
    for part in got:
        expect(
            isinstance(part, np.ndarray) and part.ndim == 2 and part.shape[1] == 2,
            because=f"each yield gives an array [pairs, 2], a row for each pair; yours gave {part!r:.60}. "
            "np.stack([first, second], axis=1) puts two columns together",
        )
        parts.append(list(map(tuple, part.tolist())))
    return parts


def plain_pairs(keys: list[int]) -> list[tuple[int, int]]:
    buckets = defaultdict(list)
    for i, key in enumerate(keys):
        buckets[key].append(i)
    return sorted(pair for members in buckets.values() for pair in combinations(members, 2))


@exercise("3.6")
def test_every_pair_in_the_bucket():
    got = bucket_pairs([7, 7, 7, 7])
    expect_equal(
        sorted(map(sorted, got)),
        [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]],
        because="four equal keys make six pairs: neighbours in sorted order, those two apart, and those three "
        "apart. With three pairs you have the neighbours only, or the first with each other one",
    )


@exercise("3.6")
def test_the_smaller_number_comes_first():
    got = bucket_pairs([9, 1, 9, 1, 9])
    expect_equal(
        sorted(got),
        [(0, 2), (0, 4), (1, 3), (2, 4)],
        because="the first column holds the earlier document; sort the keys stably (kind='stable'), and equal "
        "keys keep their documents in order",
    )


@exercise("3.6")
def test_nobody_shares_anything():
    expect_equal(bucket_pairs([3, 1, 2]), [], because="three different keys have no pairs")
    expect_equal(bucket_pairs([]), [], because="no documents, no pairs")
    expect_equal(bucket_pairs([5]), [], because="one document makes no pair")


@exercise("3.6")
def test_neighbours_come_first():
    got = [sorted(part) for part in parts_of([7, 5, 7, 6, 7, 5]) if part]
    expect_equal(
        got,
        [[(0, 2), (1, 5), (2, 4)], [(0, 4)]],
        because="first come the neighbours of all buckets, in one array, then those two apart: dedup.py stops after "
        "the first when a bucket is one cluster already. Bucket by bucket, it would stop after one bucket",
    )


@exercise("3.6")
def test_pairs_equal_a_dictionary_of_buckets():
    rng = random.Random(3)
    for n, kinds in ((60, 5), (300, 200), (40, 1)):
        keys = [rng.randrange(kinds) * 2**50 for _ in range(n)]
        got = bucket_pairs(keys)
        expect_equal(len(got), len(set(got)), because="a pair comes more than once")
        expect_equal(sorted(got), plain_pairs(keys), because=f"{n} documents with {kinds} different keys")


@exercise("3.6")
def test_work_follows_the_pairs():
    keys = [*range(20_000), 5, 6]
    expect_equal(
        sorted(bucket_pairs(keys)),
        [(5, 20_000), (6, 20_001)],
        because="20,002 documents, two pairs: sorting brings equal keys together",
    )
    row = np.array(keys, np.uint64)
    times = cpu_seconds(lambda: list(mine.bucket_pairs(row))) / cpu_seconds(lambda: list(reference.bucket_pairs(row)))
    expect(
        times < 30,
        because=f"for 20,002 documents with two pairs it takes {times:.0f} times as long as it could. Go on to the "
        "next gap with those only that had an equal at this one, and stop when nobody is left; comparing all with "
        "all, or trying every gap, is the square of the documents",
    )


def test_candidates_equal_datasketchs_index():
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 2**32, (300, 128), dtype=np.uint32)
    for i in range(100, 300):  # copies of the first hundred, each with some numbers of its own
        same = rng.random(128) < rng.uniform(0.5, 1.0)
        rows[i] = np.where(same, rows[i % 100], rows[i])
    index, want = MinHashLSH(num_perm=128, params=(16, 8)), []
    for i, row in enumerate(rows):
        signature = MinHash(128, hashvalues=row, scheme="affine32")
        want += [(j, i) for j in index.query(signature)]
        index.insert(i, signature)
    got = reference.candidate_pairs(reference.band_keys(rows, 16, 8))
    assert [tuple(pair) for pair in got.tolist()] == sorted(want)
    assert len(want) > 100


def test_no_candidates():
    assert reference.candidate_pairs(np.zeros((1, 4), np.uint64)).shape == (0, 2)
    assert reference.candidate_pairs(np.arange(8, dtype=np.uint64).reshape(2, 4)).shape == (0, 2)


def test_verify_compares_in_truth():
    sets = [{1, 2, 3, 4}, {1, 2, 3, 4, 5}, {1, 2}, set()]
    assert reference.verify([(0, 1), (0, 2), (1, 3)], sets.__getitem__, 0.8) == [(0, 1, 0.8)]
    assert reference.verify([(3, 3)], sets.__getitem__, 1.0) == [(3, 3, 1.0)]
