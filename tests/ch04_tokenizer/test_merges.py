"""Exercises 4.2 and 4.3: judged by counts made by hand, and by full recounts."""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from chapters.ch04_tokenizer import bpe
from chapters.judge import exercise, expect, expect_close, expect_equal

# 4.2 pop_most_frequent


def heap_of(entries: Iterable[tuple[bpe.Pair, int]]) -> list[tuple[int, bpe.Later]]:
    heap = [(-count, bpe.Later(pair)) for pair, count in entries]
    heapq.heapify(heap)
    return heap


def pop(entries: Iterable[tuple[bpe.Pair, int]], counts: dict[bpe.Pair, int]) -> object:
    try:
        return bpe.pop_most_frequent(heap_of(entries), Counter(counts))  # a Counter, as in learn_merges
    except (IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


AB, AC, BC = (b"a", b"b"), (b"a", b"c"), (b"b", b"c")


@exercise("4.2")
def test_the_most_frequent_comes_first():
    counts = {AB: 5, AC: 9, BC: 7}
    got = pop(counts.items(), counts)
    expect(
        got is not None,
        because="None came back, although every entry of the heap is valid: an entry holds its count as a negative "
        "number, -9 for 9, so compare pair_counts with minus that. (Or the pair was found, and isn't returned)",
    )
    expect_equal(
        got,
        AC,
        because="the heap's first entry is the one with the largest count, for counts are stored as negatives",
    )


@exercise("4.2")
def test_ties_go_to_the_greater_pair():
    pairs = [(b"a", b"z"), (b"ab", b"a"), (b"b", b"a"), (b"b", b"\xc3"), (b"b", b"ab")]
    for order in (pairs, pairs[::-1]):
        counts = dict.fromkeys(order, 4)
        expect_equal(
            pop(counts.items(), counts),
            (b"b", b"\xc3"),
            because="equally frequent pairs: the greater pair, compared as bytes, is first, in whatever order "
            "they were met. Later sorts the other way round for just this, so take what the heap gives",
        )


@exercise("4.2")
def test_old_entries_are_thrown_away():
    entries = [(AB, 9), (AC, 6), (AB, 2)]  # (a, b) was at 9, and is down to 2 by now
    expect_equal(
        pop(entries, {AB: 2, AC: 6}),
        AC,
        because="the entry with 9 is out of date: pair_counts says 2. Pop until the entry's count is the one in "
        "pair_counts",
    )
    expect_equal(
        pop(entries, {AC: 6}),
        AC,
        because="a pair that pair_counts doesn't hold any more occurs 0 times, and its entries are out of date",
    )
    expect_equal(
        pop([(AB, 2), (AB, 9)], {AB: 9}), AB, because="a count may also have grown: the entry with 9 is the valid one"
    )


@exercise("4.2")
def test_nothing_left():
    expect_equal(
        pop([], {}),
        None,
        because="with no pair left the answer is None, so that training stops; a heap or a max() that is asked "
        "for something out of nothing raises an error instead",
    )
    expect_equal(
        pop([(AB, 3)], {}),
        None,
        because="the only entry is out of date, and then the heap is empty: None again, not an error",
    )


@exercise("4.2")
def test_the_entry_is_gone_afterwards():
    counts = {AB: 5, AC: 9, BC: 7}
    heap = heap_of(counts.items())
    got = [bpe.pop_most_frequent(heap, counts) for _ in range(3)]
    expect_equal(
        got,
        [AC, BC, AB],
        because="the entry must be taken off the heap, or else the next call finds it again (heap[0] only looks)",
    )


# 4.3 apply_merge


class Watched(list):
    """A list that remembers which of its items were looked at."""

    def __init__(self, items: Iterable[list[bytes]]) -> None:
        super().__init__(items)
        self.seen: set[int] = set()

    def __getitem__(self, index):
        self.seen.add(index)
        return super().__getitem__(index)

    def __iter__(self):
        self.seen.update(range(len(self)))
        return super().__iter__()


def as_word(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]


def index(words: list[list[bytes]]) -> defaultdict[bpe.Pair, set[int]]:
    where: defaultdict[bpe.Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for k in range(len(word) - 1):
            where[word[k], word[k + 1]].add(i)
    return where


def recount(words: list[list[bytes]], frequencies: list[int]) -> Counter[bpe.Pair]:
    """All pairs, counted from nothing."""
    counts: Counter[bpe.Pair] = Counter()
    for word, frequency in zip(words, frequencies, strict=True):
        for k in range(len(word) - 1):
            counts[word[k], word[k + 1]] += frequency
    return counts


def nonzero(change: dict[bpe.Pair, int]) -> dict[bpe.Pair, int]:
    return {pair: by for pair, by in sorted(change.items()) if by}


def merged(texts: list[str], frequencies: list[int], pair: bpe.Pair) -> tuple[list[list[bytes]], dict, defaultdict]:
    words = [as_word(text) for text in texts]
    where = index(words)
    change = bpe.apply_merge(pair, words, frequencies, where)
    expect(change is not None, because="nothing came back: return by how much each pair's count changes")
    expect(
        isinstance(change, Mapping),
        because=f"a Counter is wanted, pair -> by how much its count changes; yours is a {type(change).__name__}",
    )
    return words, nonzero(change), where


@exercise("4.3")
def test_the_words_change_in_place():
    words, _, _ = merged(["the", "hat", "thth"], [1, 1, 1], (b"t", b"h"))
    expect_equal(
        words,
        [[b"th", b"e"], [b"h", b"a", b"t"], [b"th", b"th"]],
        because="words[i] must hold the merged word afterwards; assigning to a loop variable changes no list",
    )


@exercise("4.3")
def test_the_neighbours_counts_change_too():
    _, change, _ = merged(["xthe"], [1], (b"t", b"h"))
    want = {(b"h", b"e"): -1, (b"t", b"h"): -1, (b"th", b"e"): 1, (b"x", b"t"): -1, (b"x", b"th"): 1}
    expect_equal(
        change,
        want,
        because="merging t and h in 'xthe' takes away (x,t), (t,h) and (h,e), and creates (x,th) and (th,e): "
        "take all the old pairs off and put all the new ones on",
    )


@exercise("4.3")
def test_each_word_weighs_its_frequency():
    _, change, _ = merged(["ab", "cab"], [7, 100], (b"a", b"b"))
    expect_equal(
        change,
        {(b"a", b"b"): -107, (b"c", b"a"): -100, (b"c", b"ab"): 100},
        because="a word that occurs 100 times changes its pairs' counts by 100",
    )


@exercise("4.3")
def test_a_pair_may_stand_in_a_word_twice():
    _, change, _ = merged(["abab"], [1], (b"a", b"b"))
    expect_equal(
        change,
        {(b"a", b"b"): -2, (b"ab", b"ab"): 1, (b"b", b"a"): -1},
        because="(a,b) stands in 'abab' twice, so its count falls by 2",
    )
    _, change, _ = merged(["aaab"], [1], (b"a", b"a"))
    expect_equal(
        change,
        {(b"a", b"a"): -2, (b"aa", b"a"): 1},
        because="in 'aaab' the pair (a,a) stands twice and merges once; (a,b) is there before and after",
    )


@exercise("4.3")
def test_new_pairs_can_be_found():
    _, _, where = merged(["xthe", "ab"], [1, 1], (b"t", b"h"))
    expect(
        0 in where.get((b"x", b"th"), ()) and 0 in where.get((b"th", b"e"), ()),
        because="where must know that word 0 now holds (x,th) and (th,e), or their own merge will miss it",
    )


@exercise("4.3")
def test_other_words_are_left_alone():
    words = Watched([as_word("the"), *[as_word("abc")] * 50, as_word("bath")])
    where = index(list(words))
    words.seen.clear()
    bpe.apply_merge((b"t", b"h"), words, [1] * len(words), where)
    expect_equal(
        sorted(words.seen),
        [0, 51],
        because="only words 0 and 51 hold the pair, and others were looked at as well. The result may be right, "
        "but with tens of thousands of words and thousands of merges this takes the better part of an "
        "hour; go by where[pair]",
    )


@exercise("4.3")
def test_always_equal_to_a_recount():
    rng = random.Random(0)
    for trial in range(20):
        texts = ["".join(rng.choices("aab", k=rng.randint(1, 9))) for _ in range(8)]
        words, frequencies = [as_word(text) for text in texts], [rng.randint(1, 9) for _ in texts]
        where, counts = index(words), recount(words, frequencies)
        for step in range(6):
            if not (counts := nonzero(counts)):
                break
            pair = max(counts, key=lambda p: (counts[p], p))
            change = bpe.apply_merge(pair, words, frequencies, where)
            counts = Counter(counts)
            counts.update(change)
            truth = recount(words, frequencies)
            expect_equal(
                nonzero(counts),
                nonzero(truth),
                because=f"trial {trial}, merge {step + 1} ({pair}): the counts before plus the change are not "
                "what a full recount of the words gives",
            )
            expect_close(
                truth[pair],
                0,
                because="a merged pair must not stand in any word any more; where may not know "
                "all the words that hold it",
            )
            expect_equal(
                [b"".join(word).decode() for word in words], texts, because="a merge must not change the text of a word"
            )
