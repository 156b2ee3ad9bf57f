"""Exercises 3.1 and 3.2: judged by a regular expression and by Python's integers, which don't run over."""

import random
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from chapters import ROOT
from chapters.ch03_dedup import shingles as mine
from chapters.judge import exercise, expect, expect_equal, expect_parts
from shared.data import shingles as reference
from tests.ch03_dedup.calling import array, call

WORD = re.compile(r"[\u3001-\u9fff]|[^\s\x00-\x20\u3001-\u9fff]+")
CODE = "def f(x):\n    return x + 1  # add one\n"
TEXTS = [
    "",
    " \n\t ",
    "one",
    "one two",
    "to be or not to be or",
    CODE,
    "数据清洗，去重。",
    "用 NumPy 做数据清洗 at scale",
    "caf\u00e9 cafe\u0301",
    "a\u00a0b\u3000c\x85d\u2028e",
    "nul\x00byte\x1bescape",
    "😀😀 😀",
    "x" * 5000,
    "ア イウ, エ",
]


def plain_words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFC", text))


def plain_shingles(text: str, n: int) -> set[str]:
    found = plain_words(text)
    return {" ".join(found[i : i + n]) for i in range(len(found)) if i == 0 or i + n <= len(found)}


# 3.1 shingles


def shingles(text: str, n: int) -> set[str]:
    got = call(mine.shingles, text, n)
    expect(
        isinstance(got, set | frozenset),
        because=f"the shingles are a set, in which what stands there twice counts once; yours are a "
        f"{type(got).__name__}",
    )
    return got


@exercise("3.1")
def test_windows_are_of_words():
    got = shingles("red\n  green", 2)
    expect(
        got != {"red green", "green"},
        because="'green' is a window of one word, and two are asked for: no window begins at a word that has fewer "
        "than n - 1 words after it",
    )
    expect_equal(
        got,
        {"red green"},
        because="a shingle is a run of words, joined by single spaces: take them from words(text); slices of "
        "the text itself are characters, and a line break more makes them differ",
    )


@exercise("3.1")
def test_windows_overlap():
    expect_equal(
        sorted(shingles("a b c d e", 3)),
        ["a b c", "b c d", "c d e"],
        because="five words have three windows of three: one starts at every word that has two more after it. "
        "A missing last one is range's end, off by one; two missing are windows that don't overlap",
    )


@exercise("3.1")
def test_a_short_text_has_one_shingle():
    expect_equal(
        [shingles("one two", 5), shingles("one", 5)],
        [{"one two"}, {"one"}],
        because="a text of fewer than n words is one shingle, all of it. With none, two different short texts "
        "are two empty sets, and those are equal: all short texts would be taken for one",
    )


@exercise("3.1")
def test_an_empty_text_has_none():
    expect_equal(
        [shingles("", 5), shingles(" \n ", 1)],
        [set(), set()],
        because="a text without words has no shingle; yours seems to have the empty string for one",
    )


@exercise("3.1")
def test_chinese_goes_by_characters():
    expect_equal(
        shingles("数据清洗", 3),
        {"数 据 清", "据 清 洗"},
        because="words(text) takes every Chinese character for a word; split() would find a single one, and "
        "two articles that differ in one character would share nothing",
    )


@exercise("3.1")
def test_shingles_of_all_kinds_of_text():
    for text in TEXTS:
        for n in (1, 2, 3, 5):
            expect_equal(
                shingles(text, n),
                plain_shingles(text, n),
                because=f"these are the runs of {n} words in {text[:30]!r}",
            )


def test_words_are_what_the_docstring_says():
    assert reference.words("用 NumPy 做数据") == ["用", "NumPy", "做", "数", "据"]
    for text in TEXTS:
        assert reference.words(text) == plain_words(text), text


def test_jaccard():
    assert reference.jaccard({1, 2, 3}, {2, 3, 4, 5}) == 2 / 5
    assert reference.jaccard(set(), set()) == 1.0
    assert reference.jaccard(set(), {1}) == 0.0


# 3.2 window_hashes


def plain_windows(row: list[int], counts: list[int], n: int, multiplier: int) -> tuple[list[int], list[int]]:
    hashes, windows, at = [], [], 0
    for count in counts:
        document, before = row[at : at + count], len(hashes)
        at += count
        for i in range(count):
            if i == 0 or i + n <= count:
                value = 0
                for j in range(n):
                    value = value * multiplier + (document[i + j] if i + j < count else 0)
                hashes.append(value % 2**64)
        windows.append(len(hashes) - before)
    return hashes, windows


def windows(row: list[int], counts: list[int], n: int, multiplier: int = 10) -> tuple[list[int], list[int]]:
    rows = np.array(row, np.uint64), np.array(counts, np.int64)
    got = call(mine.window_hashes, *rows, n, np.uint64(multiplier))
    expect_parts(
        got,
        ("hashes", "counts"),
        because="two arrays are wanted: the hash of every window, and how many windows each document has",
    )
    hashes = array(got[0], None, np.uint64, because="it holds one number for each window, in one row")
    expect_equal(np.shape(got[1]), (len(counts),), because="the second result has one number for each document")
    return hashes.tolist(), np.asarray(got[1]).tolist()


@exercise("3.2")
def test_no_window_crosses():
    hashes, _ = windows([1, 2, 3, 4, 5, 6], [3, 3], 3)
    expect_equal(
        len(hashes),
        2,
        because="two documents of three words have one window each; 234 and 345 lie in both. Drop windows "
        "with fewer than n words left in their own document",
    )


@exercise("3.2")
def test_a_window_at_every_word():
    hashes, _ = windows([1, 2, 3, 4], [4], 3)
    expect_equal(
        hashes,
        [123, 234],
        because="with multiplier 10 the windows of 1 2 3 4 read 123 and 234: each step multiplies what is "
        "there and adds the next word. A plain sum forgets the order: a b c would equal c b a",
    )


@exercise("3.2")
def test_a_short_document_has_one_window():
    hashes, _ = windows([5, 6, 7, 1, 2, 3], [1, 2, 3], 3)
    expect_equal(
        len(hashes),
        3,
        because="documents of one and of two words have one window each: a document's first "
        "window stays, however few words are left",
    )
    expect(
        hashes[:2] != [567, 671],
        because="567 and 671 hold words of the next document; 5 alone is 500, and 6 7 is 670: left > j tells whether "
        "word j is still in this document",
    )
    expect_equal(
        hashes,
        [500, 670, 123],
        because="what a short document lacks counts as 0, and a 0 takes a place like any word: 5 is 500, and 6 7 is "
        "670. Every step multiplies, whether a word is left to add or not",
    )


@exercise("3.2")
def test_windows_are_counted():
    _, counts = windows([1, 2, 3, 4, 5, 6, 7], [4, 1, 2, 0], 3)
    expect_equal(
        counts,
        [2, 1, 1, 0],
        because="the second result says how many windows each document has: count - n + 1, at least 1, and 0 "
        "for a document without words; these are not its words",
    )


@exercise("3.2")
def test_windows_equal_pythons_integers():
    rng = random.Random(0)
    for n in (1, 2, 3, 5):
        counts = [rng.choice([0, 0, 1, 2, 3, 4, 5, 6, 20]) for _ in range(50)]
        row = [rng.randrange(2**32) for _ in range(sum(counts))]
        multiplier = rng.randrange(2**63, 2**64)
        hashes, found = plain_windows(row, counts, n, multiplier)
        got = windows(row, counts, n, multiplier)
        expect_equal(got[1], found, because=f"windows of {n} in documents of 0 to 20 words are miscounted")
        expect_equal(got[0], hashes, because=f"the hash of a window of {n} should be Python's result modulo 2**64")


@exercise("3.2")
def test_no_documents_and_no_words():
    for counts in ([], [0, 0]):
        hashes, _ = windows([], counts, 3)
        expect_equal(hashes, [], because=f"documents of {counts} words have no windows")


# the fast way is the plain way


def test_equal_shingles_have_equal_hashes_and_different_ones_different_hashes():
    texts = [*TEXTS, *(f"{a} and {b}" for a in ("ab", "ba", "abba", "baab") for b in ("12", "21", "1221"))]
    known: dict[str, int] = {}
    for text in texts:
        for n in (1, 2, 5):
            hashes, counts = reference.shingle_hashes([text], n)
            found = plain_words(text)
            in_order = [" ".join(found[i : i + n]) for i in range(len(found)) if i == 0 or i + n <= len(found)]
            assert counts.tolist() == [len(in_order)] == [len(hashes)]
            for shingle, value in zip(in_order, hashes.tolist(), strict=True):
                assert known.setdefault(f"{n} {shingle}", value) == value, shingle
    assert len(set(known.values())) == len(known)


def test_hashes_do_not_depend_on_the_company():
    texts = [*TEXTS, "w " * 3000, "long " + "y" * 300_000 + " word", "z" * 600_000, "数据" * 5000] * 2
    together, counts = reference.shingle_hashes(texts, 3)
    alone = [reference.shingle_hashes([text], 3)[0] for text in texts]
    assert counts.tolist() == [len(one) for one in alone]
    assert (together == np.concatenate(alone)).all()


def test_hashes_are_the_same_in_another_process():
    code = (
        "from shared.data.shingles import shingle_hashes; from shared.data.minhash import signatures;"
        "t = ['a b c', '数据']; print(shingle_hashes(t, 2)[0].tolist(), signatures(t, 8).tolist())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_an_enormous_document():
    text = " ".join(f"w{i % 50_000}" for i in range(400_000))  # several blocks
    hashes, counts = reference.shingle_hashes(["a", text, "b"], 5)
    assert counts.tolist() == [1, 399_996, 1]
    assert len(np.unique(hashes[1:-1])) == len(plain_shingles(text, 5)) == 50_000


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "5"])
def test_ngram_is_checked(n):
    with pytest.raises(ValueError, match="ngram is the number of words in a shingle"):
        reference.shingle_hashes(["a"], n)
