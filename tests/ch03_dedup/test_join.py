"""Exercise 3.7: judged by chains and clusters made by hand, and by scipy's connected components."""

import random

import numpy as np
import pytest
from scipy import sparse

from chapters.ch03_dedup import lsh as mine
from chapters.judge import exercise, expect, expect_equal
from shared.data import lsh as reference
from tests.ch02_cleaning.clock import cpu_seconds


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


@pytest.mark.parametrize("docs", [[0, 1, 2, 3, 4], [[4, 1], [2, 3]]])
def test_roots_of_many(docs):
    parent = np.array([0, 0, 1, 2, 4])
    assert reference.roots(parent, np.array(docs)).tolist() == np.array([0, 0, 0, 0, 4])[docs].tolist()
