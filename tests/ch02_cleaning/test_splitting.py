"""Exercise 2.8: judged by the recipe worked out anew from SHA-256's hexadecimal digits, and by counting."""

import hashlib
from collections import Counter
from fractions import Fraction

from chapters.ch02_cleaning import splitting
from chapters.judge import exercise, expect, expect_equal

HALVES = {"train": 0.5, "test": 0.5}
KEYS = [f"package/module_{i}.py" for i in range(4000)]


def point(key: str, seed: int) -> Fraction:
    return Fraction(int(hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()[:16], 16), 16**16)


@exercise("2.8")
def test_follows_the_recipe():
    for key in [*KEYS[:50], "", "한국어/é.py", "a" * 5000]:
        want = "train" if point(key, 0) < Fraction(1, 2) else "test"
        expect_equal(splitting.split_of(key, HALVES), want,
                     because=f"{key[:30]!r}: the point is the first 8 bytes of sha256('0:KEY') as a big-endian number, "
                             "over 2**64. Python's own hash() differs from run to run, and another recipe puts "
                             "tomorrow's copy of a record on the other side")


@exercise("2.8")
def test_the_shares_are_right():
    fractions = {"train": 0.7, "validation": 0.1, "test": 0.2}
    counts = Counter(splitting.split_of(key, fractions) for key in KEYS)
    expect_equal(set(counts), set(fractions),
                 because="each of the three splits gets some of 4000 keys, and each key one of the three: the ranges "
                         "add up, so 'validation' goes from 0.7 to 0.8 and 'test' from 0.8 to 1")
    for name, fraction in fractions.items():
        expect(abs(counts[name] / len(KEYS) - fraction) < 0.03,
               because=f"{name} should get {fraction:.0%} of the keys and got {counts[name] / len(KEYS):.0%}: add the "
                       "fractions up as you go, so that each split begins where the one before it ends")


@exercise("2.8")
def test_the_order_is_that_of_the_fractions():
    for key in KEYS[:40]:
        want = "test" if point(key, 0) < Fraction(1, 5) else "train"
        expect_equal(splitting.split_of(key, {"test": 0.2, "train": 0.8}), want,
                     because="the first split named takes the range from 0 on, whatever it is called")


@exercise("2.8")
def test_the_seed_counts():
    for seed in (1, 2):
        for key in KEYS[:40]:
            want = "train" if point(key, seed) < Fraction(1, 2) else "test"
            expect_equal(splitting.split_of(key, HALVES, seed), want,
                         because="another seed is another split: hash 'SEED:KEY', with the seed in front")


@exercise("2.8")
def test_what_is_left_at_the_end_goes_to_the_last():
    names = {splitting.split_of(key, {"train": 0.1, "test": 0.1}) for key in KEYS[:200]}
    expect_equal(names, {"train", "test"},
                 because="fractions like 0.7 + 0.2 + 0.1 add up to a little less than 1: a point above all edges "
                         "belongs to the last split, and None is no split")
