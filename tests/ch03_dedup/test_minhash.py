"""Exercises 3.3 and 3.4: judged by Python's integers, by true similarities, and by datasketch."""

import random

import numpy as np
import pytest
from datasketch import MinHash

from chapters.ch03_dedup import minhash as mine
from chapters.judge import exercise, expect, expect_equal
from shared.data import minhash as reference
from tests.ch03_dedup.calling import array, call

EMPTY = 0xFFFFFFFF


# 3.3 minhash


def plain_minhash(x: list[int], counts: list[int], a: list[int], b: list[int]) -> list[list[int]]:
    rows, at = [], 0
    for count in counts:
        part = x[at : at + count]
        at += count
        rows.append([min(((m * v + c) % 2**64 >> 32 for v in part), default=EMPTY) for m, c in zip(a, b, strict=True)])
    return rows


def minhash(x: list[int], counts: list[int], a: list[int], b: list[int]) -> list[list[int]]:
    row = np.array(x, np.uint32), np.array(counts)
    got = call(mine.minhash, *row, np.array(a, np.uint64), np.array(b, np.uint64))
    shape = (len(counts), len(a))
    because = f"one row for each of {shape[0]} documents, one column for each of {shape[1]} functions: {shape}"
    return array(got, shape, np.uint32, because).tolist()


@exercise("3.3")
def test_the_smallest_of_each_document():
    expect_equal(
        minhash([5, 3, 9], [2, 1], [1 << 32], [0]),
        [[3], [9]],
        because="with a = 2**32 the hash of x is x, so the documents 5 3 and 9 have the minima 3 and 9; "
        "5 would be the largest, 0 the lower half of the product",
    )


@exercise("3.3")
def test_each_function_has_its_own_numbers():
    expect_equal(
        minhash([5, 3], [2], [1 << 32, 2 << 32, 1 << 32], [0, 1 << 32, 7 << 32]),
        [[3, 7, 10]],
        because="column i belongs to hash function i, with a[i] and b[i]: x, 2x + 1 and x + 7 here",
    )


@exercise("3.3")
def test_empty_documents():
    got = minhash([5, 3, 9], [0, 2, 0, 0, 1, 0], [1 << 32], [0])
    expect_equal(
        got,
        [[EMPTY], [3], [EMPTY], [EMPTY], [9], [EMPTY]],
        because="a document without shingles gets EMPTY. reduceat takes an empty part for a part of one, so it "
        "hands such a document the next one's first shingle: give it the starts of the others only",
    )
    expect_equal(
        minhash([], [0, 0], [1 << 32], [0]),
        [[EMPTY], [EMPTY]],
        because="with no shingles at all every row is EMPTY: there is no minimum to take then",
    )


@exercise("3.3")
def test_products_have_64_bits():
    got = minhash([0xFFFFFFFF, 0x80000001], [2], [0xFFFFFFFFFFFFFFFF, 3], [5, 0])
    expect_equal(
        got,
        plain_minhash([0xFFFFFFFF, 0x80000001], [2], [0xFFFFFFFFFFFFFFFF, 3], [5, 0]),
        because="a * x + b is computed in 64 bits (uint64, where running over is the modulus), and the upper "
        "32 of them count; in 32 bits, or in floats, digits get lost",
    )


@exercise("3.3")
def test_minhash_equals_pythons_integers():
    rng = random.Random(1)
    counts = [rng.choice([0, 1, 2, 7, 30]) for _ in range(40)]
    x = [rng.randrange(2**32) for _ in range(sum(counts))]
    a, b = ([rng.randrange(2**64) for _ in range(16)] for _ in range(2))
    expect_equal(
        minhash(x, counts, a, b),
        plain_minhash(x, counts, a, b),
        because="each number is the least of (a * x + b) % 2**64 >> 32 over the document's shingles",
    )


# 3.4 one_permutation


def plain_one_permutation(hashes: list[int], counts: list[int], k: int, shifts: list[int]) -> list[list[int]]:
    rows, at = [], 0
    for count in counts:
        fell: dict[int, int] = {}
        for value in hashes[at : at + count]:
            place = (value % 2**32) * k >> 32
            fell[place] = min(fell.get(place, EMPTY), value >> 32)
        at += count
        row = []
        for place in range(k):
            donors = [place, *((place + shift) % k for shift in shifts)]
            row.append(next((fell[donor] for donor in donors if donor in fell), EMPTY))
        rows.append(row)
    return rows


def one_permutation(hashes: list[int], counts: list[int], k: int, shifts: list[int]) -> list[list[int]]:
    row = np.array(hashes, np.uint64), np.array(counts)
    got = call(mine.one_permutation, *row, k, np.array(shifts, np.int64))
    shape = (len(counts), k)
    because = f"one row for each of {shape[0]} documents, with {k} places each, are wanted: {shape}"
    return array(got, shape, np.uint32, because).tolist()


def shingle(place: int, value: int, k: int = 4) -> int:
    """A hash that falls into this place of k with this value."""
    return value << 32 | (place << 32) // k + 1


@exercise("3.4")
def test_each_goes_to_its_place():
    row = [shingle(2, 9), shingle(0, 7), shingle(3, 1), shingle(1, 5)]
    expect_equal(
        one_permutation(row, [4], 4, [2, 1, 3]),
        [[7, 5, 9, 1]],
        because="four shingles, each in a place of its own. The place is (lower 32 bits) * k >> 32, and the upper 32 "
        "bits are what is kept there. With the halves swapped, or with % k, these four fall into one place",
    )


@exercise("3.4")
def test_the_smallest_stays():
    row = [shingle(0, 7), shingle(1, 5), shingle(2, 9), shingle(3, 1), shingle(2, 4), shingle(2, 6)]
    expect_equal(
        one_permutation(row, [6], 4, [2, 1, 3]),
        [[7, 5, 4, 1]],
        because="of 9, 4 and 6, which fall into the same place, 4 stays; plain assignment keeps the last one, "
        "and the signature would depend on the order of the text: use np.minimum.at",
    )


@exercise("3.4")
def test_empty_places_borrow():
    got = one_permutation([shingle(0, 7), shingle(2, 4)], [2], 4, [2, 1, 3])
    expect(
        EMPTY not in got[0],
        because="places that nothing fell into are still EMPTY. Two short texts agree in all their EMPTY places, and "
        "so look alike whatever they say: these places have to borrow",
    )
    expect_equal(
        got,
        [[7, 4, 4, 7]],
        because="place 1 asks place (1 + 2) % 4 = 3, which is empty, then place 2, which has 4; place 3 asks "
        "place 1, then place 0",
    )
    expect_equal(
        one_permutation([shingle(0, 7), shingle(1, 5)], [2], 4, [2, 1, 3]),
        [[7, 5, 7, 5]],
        because="places 2 and 3 first ask the place 2 further on, for 2 is the first of the shifts; asking the nearest "
        "neighbour first fills a long gap with copies of one number",
    )


@exercise("3.4")
def test_nothing_is_borrowed_twice():
    fell = [shingle(0, 7, 8), shingle(3, 4, 8)]
    expect_equal(
        one_permutation(fell, [2], 8, [1, 5, 2, 3, 4, 6, 7]),
        plain_one_permutation(fell, [2], 8, [1, 5, 2, 3, 4, 6, 7]),
        because="a place takes what fell into its donor, never what its donor borrowed: look it up in a copy "
        "made before anything was borrowed",
    )


@exercise("3.4")
def test_documents_keep_to_themselves():
    got = one_permutation([shingle(3, 7), shingle(0, 4)], [0, 1, 0, 1], 4, [2, 1, 3])
    expect_equal(
        got,
        [[EMPTY] * 4, [7] * 4, [EMPTY] * 4, [4] * 4],
        because="each document has its own k places, in one row of docs * k; a document without shingles "
        "stays EMPTY, and borrows from nobody",
    )


@exercise("3.4")
def test_one_permutation_equals_plain_python():
    rng = random.Random(2)
    for k in (1, 2, 7, 128):
        counts = [rng.choice([0, 1, 2, 5, 60, 300]) for _ in range(30)]
        hashes = [rng.randrange(2**64) for _ in range(sum(counts))]
        shifts = rng.sample(range(1, k), k - 1)
        expect_equal(
            one_permutation(hashes, counts, k, shifts),
            plain_one_permutation(hashes, counts, k, shifts),
            because=f"with {k} places and documents of 0 to 300 shingles a plain loop finds otherwise",
        )


# what signatures are good for


def pairs_of_sets(similarity: float, size: int, how_many: int, seed: int) -> list[tuple[set[str], set[str]]]:
    """Sets of shingles with about this Jaccard similarity; their true one is counted below."""
    rng = random.Random(seed)
    shared = round(2 * size * similarity / (1 + similarity))
    drawn = [[str(rng.randrange(2**40)) for _ in range(2 * size)] for _ in range(how_many)]
    return [(set(d[:size]), set(d[:shared] + d[size : 2 * size - shared])) for d in drawn]


def estimates(pairs: list[tuple[set[str], set[str]]], make) -> np.ndarray:
    texts = [" ".join(sorted(members)) for pair in pairs for members in pair]
    rows = make(texts)
    return reference.estimate(rows[::2], rows[1::2])


def by_the_book(texts: list[str]) -> np.ndarray:
    hashes, counts = reference.shingle_hashes(texts, 1)
    return reference.minhash((hashes >> np.uint64(32)).astype(np.uint32), counts, *reference.hash_functions(128))


@pytest.mark.parametrize("make", [by_the_book, lambda texts: reference.signatures(texts, 128, 1)])
@pytest.mark.parametrize("size", [1, 6, 40, 400])
def test_estimates_are_as_good_as_datasketch(make, size):
    for similarity in (0.0, 0.5, 0.85, 1.0):
        pairs = pairs_of_sets(similarity, size, 150, seed=size)
        true = np.array([len(a & b) / len(a | b) for a, b in pairs])
        error = estimates(pairs, make) - true
        peer = []
        for a, b in pairs:
            one, two = MinHash(128), MinHash(128)
            one.update_batch([s.encode() for s in a])
            two.update_batch([s.encode() for s in b])
            peer.append(one.jaccard(two))
        peer_error = np.array(peer) - true
        assert abs(error.mean()) < 0.02
        assert error.std() < max(1.4 * peer_error.std(), 0.005)


def test_signatures_do_not_depend_on_the_batches(monkeypatch):
    texts = ["", "one", "a b c d e f g", "数据清洗和去重", "x " * 5000, "", "a b c d e f h"] * 3
    whole = reference.signatures(texts)
    monkeypatch.setattr(reference, "BATCH_CHARS", 10)
    assert (reference.signatures(texts) == whole).all()
    assert reference.signatures([]).shape == (0, 128)
    assert (whole[0] == EMPTY).all()


@pytest.mark.parametrize("num_perm", [0, -3, 12.0, True])
def test_num_perm_is_checked(num_perm):
    with pytest.raises(ValueError, match="num_perm is the length of a signature"):
        reference.signatures(["a"], num_perm)
