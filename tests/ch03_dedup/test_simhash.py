"""Exercise 3.8: judged by counting votes one by one, and by what SimHash promises."""

import random
from itertools import combinations

import numpy as np
import pytest

from chapters.ch03_dedup import simhash as mine
from chapters.judge import exercise, expect_equal
from shared.data import simhash as reference
from tests.ch03_dedup.calling import array, call


def plain_simhash(hashes: list[int], counts: list[int]) -> list[int]:
    prints, at = [], 0
    for count in counts:
        part, value = hashes[at : at + count], 0
        at += count
        for bit in range(64):
            votes = sum(1 if h >> bit & 1 else -1 for h in part)
            value |= (votes > 0) << bit
        prints.append(value)
    return prints


def simhash(hashes: list[int], counts: list[int]) -> list[int]:
    got = call(mine.simhash, np.array(hashes, np.uint64), np.array(counts))
    return array(got, (len(counts),), np.uint64, f"one number for each of {len(counts)} documents is wanted").tolist()


@exercise("3.8")
def test_bits_stand_where_they_belong():
    expect_equal(
        simhash([1, 1 << 63, 0xFF00], [1, 1, 1]),
        [1, 1 << 63, 0xFF00],
        because="a document with one shingle has that shingle's hash. Bits in another order come of unpackbits "
        "and packbits without bitorder='little'",
    )


@exercise("3.8")
def test_the_majority_decides():
    expect_equal(
        simhash([0b001, 0b011, 0b111], [3]),
        [0b011],
        because="bit 0 has three votes of three and bit 1 two: set; bit 2 has one of three: not set. 7 is any "
        "vote at all, 1 is all of them",
    )


@exercise("3.8")
def test_every_shingle_votes():
    expect_equal(
        simhash([6, 6, 1], [3]),
        [6],
        because="6 stands in the text twice, and votes twice: two of three. In a set of the hashes it has one vote of "
        "two",
    )


@exercise("3.8")
def test_a_tie_is_no_majority():
    expect_equal(
        simhash([0b01, 0b10], [2]),
        [0],
        because="one vote of two is a tie, and a tie sets nothing: more than half are needed",
    )


@exercise("3.8")
def test_empty_documents_vote_for_nothing():
    for counts, want in (([0, 1, 0, 1], [0, 6, 0, 5]), ([0, 1, 0, 1, 0], [0, 6, 0, 5, 0])):
        expect_equal(
            simhash([6, 5], counts),
            want,
            because="a document without shingles has 0; reduceat hands it the next one's first shingle, unless it "
            "gets the starts of the others only",
        )
    expect_equal(simhash([], [0]), [0], because="without any shingle every document has 0")


@exercise("3.8")
def test_long_documents():
    expect_equal(
        simhash([1] * 200 + [3] * 100, [300]),
        [1],
        because="300 shingles vote for bit 0 and 100 for bit 1; counted in 8 bits, 300 votes are 44: "
        "give reduceat a dtype that can hold them",
    )


@exercise("3.8")
def test_simhash_equals_counting():
    rng = random.Random(0)
    counts = [rng.choice([0, 1, 2, 3, 10, 300]) for _ in range(30)]
    hashes = [rng.randrange(2**64) for _ in range(sum(counts))]
    expect_equal(
        simhash(hashes, counts),
        plain_simhash(hashes, counts),
        because="votes counted one by one say otherwise; with 300 shingles they don't fit into 8 bits",
    )


def test_similar_texts_are_close_and_others_far():
    rng = random.Random(1)
    words = [f"w{rng.randrange(10_000)}" for _ in range(300)]
    edited = words[:150] + ["new"] + words[151:]
    other = [f"v{rng.randrange(10_000)}" for _ in range(300)]
    prints = reference.simhashes([" ".join(text) for text in (words, edited, other, [])])
    assert reference.distance(prints[0], prints[1]) < 10
    assert reference.distance(prints[0], prints[2]) > 16
    assert prints[3] == 0
    assert reference.simhashes([]).shape == (0,)


@pytest.mark.parametrize("max_distance", [0, 3, 6])
def test_close_pairs_equal_all_pairs(max_distance):
    rng = random.Random(2)
    prints = [rng.randrange(2**64) for _ in range(40)]
    for value in prints[:40]:
        for bits in (0, 2, 3, 4, 6):
            prints.append(value ^ sum(1 << bit for bit in rng.sample(range(64), bits)))
    want = [
        (i, j) for i, j in combinations(range(len(prints)), 2) if (prints[i] ^ prints[j]).bit_count() <= max_distance
    ]
    got = reference.close_pairs(np.array(prints, np.uint64), max_distance)
    assert [tuple(pair) for pair in got.tolist()] == want


@pytest.mark.parametrize("max_distance", [-1, 64])
def test_distance_is_checked(max_distance):
    with pytest.raises(ValueError, match="max_distance"):
        reference.close_pairs(np.zeros(2, np.uint64), max_distance)
