"""Exercises 3.5 to 3.7: judged by simulation, by datasketch's own index, and by scipy's connected components."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from scipy import sparse

from chapters.ch03_dedup import lsh as mine
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_parts
from shared.data import lsh as reference
from tests.ch03_dedup.calling import call


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """The least CPU time of some runs: the same on a busy machine and on an idle one."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


# 3.5 choose_bands


def caught(similarity: float, bands: int, rows: int) -> float:
    """The part of pairs with a band in common, simulated: every number agrees with this probability."""
    agree = np.random.default_rng(0).random((20_000, bands, rows)) < similarity
    return float(agree.all(axis=2).any(axis=1).mean())


def choose_bands(threshold: float, num_perm: int, max_miss: float = 0.01, none: str = NO_RESULT) -> tuple[int, int]:
    got = call(mine.choose_bands, threshold, num_perm, max_miss, none=none)
    expect_parts(got, ("bands", "rows"), because="two numbers are wanted, the bands and the rows of each")
    return tuple(got)


@exercise("3.5")
def test_sixteen_bands_of_eight():
    bands, rows = choose_bands(0.85, 128)
    expect(bands * rows <= 128, because=f"{bands} bands of {rows} need {bands * rows} numbers, and a signature has 128")
    expect(
        caught(0.85, bands, rows) > 0.985,
        because=f"{bands} bands of {rows} miss {1 - caught(0.85, bands, rows):.0%} of the pairs at the threshold, and "
        "1% is allowed. The rule (1 / bands) ** (1 / rows) = threshold puts the middle of the S-curve there, "
        "where more than a third is missed",
    )
    expect_equal(
        (bands, rows),
        (16, 8),
        because="of all rows that miss at most 1% take the most; fewer rows miss even less, and make "
        "candidates of pairs that have little in common",
    )


@exercise("3.5")
def test_bands_for_other_thresholds():
    for threshold, num_perm, want in (
        (0.5, 128, (42, 3)),
        (0.7, 128, (32, 4)),
        (0.95, 256, (12, 21)),
        (0.8, 64, (12, 5)),
    ):
        got = choose_bands(threshold, num_perm)
        expect_equal(
            got,
            want,
            because=f"for a threshold of {threshold} and {num_perm} numbers; as many bands as fit "
            "(num_perm // rows), and the most rows that still catch 99%",
        )


@exercise("3.5")
def test_threshold_one_is_a_single_band():
    expect_equal(
        choose_bands(1.0, 128),
        (1, 128),
        because="texts with equal shingles agree in all numbers: one band of 128 misses none of them",
    )


@exercise("3.5")
def test_more_misses_allowed_more_rows():
    expect_equal(
        choose_bands(0.85, 128, max_miss=0.5),
        (8, 15),
        because="max_miss says how much may be missed; with half allowed, bands of 15 will do",
    )


@exercise("3.5")
def test_a_hopeless_threshold_gets_single_rows():
    expect_equal(
        choose_bands(
            0.01,
            128,
            none="nothing came back: when no number of rows catches enough, the loop ends without a return. What is "
            "left then is (num_perm, 1)",
        ),
        (128, 1),
        because="when no number of rows catches 99%, bands of one number catch the most",
    )


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan"), "0.8", True])
def test_threshold_is_checked(threshold):
    with pytest.raises(ValueError, match="threshold is a Jaccard similarity above 0 and up to 1"):
        reference.choose_bands(threshold, 128)


# 3.6 bucket_pairs


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


# 3.7 join


def firsts(parent: np.ndarray) -> list[int]:
    found = []
    for i in range(len(parent)):
        for _ in range(len(parent)):
            if parent[i] == i:
                break
            i = int(parent[i])
        found.append(i)
    return found


@exercise("3.7")
def test_the_first_is_the_root():
    parent = np.arange(5)
    mine.join(parent, [(1, 3, 0.9), (3, 4, 0.9)])
    expect(
        parent.tolist() != [0, 1, 2, 3, 4],
        because="nothing was joined: parent is changed in place, and nothing is returned",
    )
    expect_equal(
        firsts(parent),
        [0, 1, 2, 1, 1],
        because="1, 3 and 4 are one cluster, and its root is the first of them, 1: the later root names the "
        "earlier, whatever the order of the pair",
    )


@exercise("3.7")
def test_clusters_are_joined_by_their_roots():
    parent = np.arange(6)
    mine.join(parent, [(1, 4, 0.9), (3, 4, 0.9), (2, 5, 0.9)])
    expect_equal(
        firsts(parent),
        [0, 1, 2, 1, 1, 2],
        because="4 is with 1 already, so 3 must end up with 1 too. Setting parent[4] = 3 forgets the link to 1: "
        "it is the roots of 3 and 4 that are joined",
    )


@exercise("3.7")
def test_roots_may_be_far():
    parent = np.arange(8)
    mine.join(parent, [(6, 7, 1.0), (5, 6, 1.0), (4, 5, 1.0), (3, 7, 1.0), (0, 7, 1.0)])
    expect_equal(
        firsts(parent),
        [0, 1, 2, 0, 0, 0, 0, 0],
        because="the root is several names away: follow parent until someone names itself, not one step",
    )


@exercise("3.7")
def test_joined_twice_and_in_parts():
    parent = np.arange(4)
    for pair in ((2, 3, 1.0), (2, 3, 1.0), (1, 3, 1.0)):
        mine.join(parent, [pair])
    expect_equal(firsts(parent), [0, 1, 1, 1], because="a second call goes on with the clusters of the first")


@exercise("3.7")
def test_long_chains_take_no_time():
    n = 2000
    chain = [(i, n - 1, 1.0) for i in range(n - 2, -1, -1)]  # from the last document each time, whose root moves on
    parent = np.arange(n)
    mine.join(parent, chain)
    expect_equal(firsts(parent)[-1], 0, because="2000 links in a row make one cluster, and its first is 0")
    times = cpu_seconds(lambda: mine.join(np.arange(n), chain), 1) / cpu_seconds(
        lambda: reference.join(np.arange(n), chain)
    )
    expect(
        times < 15,
        because=f"a chain of 2000 takes {times:.0f} times as long as it could: each look-up walks all of it, step by "
        "step. Halve the path as you walk: parent[doc] = parent[parent[doc]], before the step",
    )


@exercise("3.7")
def test_clusters_equal_scipys():
    rng = random.Random(4)
    for n, links in ((50, 20), (200, 150), (200, 600)):
        pairs = [(*sorted(rng.sample(range(n), 2)), 0.9) for _ in range(links)]
        parent = np.arange(n)
        mine.join(parent, pairs)
        graph = sparse.coo_array((np.ones(links), ([p[0] for p in pairs], [p[1] for p in pairs])), shape=(n, n))
        label = sparse.csgraph.connected_components(graph, directed=False)[1]
        want = [int(np.flatnonzero(label == label[i])[0]) for i in range(n)]
        expect_equal(
            firsts(parent),
            want,
            because=f"{links} links among {n}: scipy finds other clusters, or the root isn't a cluster's first",
        )


# the parts together


def test_the_s_curve_is_what_happens():
    for similarity, bands, rows in ((0.85, 16, 8), (0.7, 16, 8), (0.5, 42, 3)):
        assert abs(caught(similarity, bands, rows) - reference.candidate_probability(similarity, bands, rows)) < 0.02


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


@pytest.mark.parametrize("docs", [[0, 1, 2, 3, 4], [[4, 1], [2, 3]]])
def test_roots_of_many(docs):
    parent = np.array([0, 0, 1, 2, 4])
    assert reference.roots(parent, np.array(docs)).tolist() == np.array([0, 0, 0, 0, 4])[docs].tolist()
