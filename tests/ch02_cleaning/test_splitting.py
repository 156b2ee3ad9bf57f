"""Exercise 2.8: judged by the recipe worked out anew from SHA-256's hexadecimal digits, and by counting."""

import hashlib
from collections import Counter
from fractions import Fraction

from chapters.ch02_cleaning import splitting
from chapters.judge import exercise, expect, expect_equal

HALVES = {"train": 0.5, "test": 0.5}
SIXTEEN = {f"split {i:02}": 1 / 16 for i in range(16)}  # in the order of the alphabet, so that sorting does no harm
KEYS = [f"package/module_{i}.py" for i in range(4000)]


def point(key: str, seed: int) -> Fraction:
    return Fraction(int(hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()[:16], 16), 16**16)


@exercise("2.8")
def test_follows_the_recipe():
    halves = {"one": 0.5, "two": 0.5}
    keys = [*KEYS[:50], "", "a" * 5000]
    got = [splitting.split_of(key, halves) for key in keys]
    without_seed = [int(hashlib.sha256(key.encode()).hexdigest(), 16) >> 255 for key in keys]
    expect(got != [("one", "two")[half] for half in without_seed],
           because="the key was hashed without its seed: what is hashed is '0:KEY', with seed 0")
    for key, name in zip(keys, got, strict=True):
        expect_equal(name, "one" if point(key, 0) < Fraction(1, 2) else "two",
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
    for first, last in (("test", "train"), ("train", "test")):
        for key in KEYS[:40]:
            want = first if point(key, 0) < Fraction(1, 5) else last
            expect_equal(splitting.split_of(key, {first: 0.2, last: 0.8}), want,
                         because="the first split named takes the range from 0 on, whatever it is called: don't sort "
                         "them")


@exercise("2.8")
def test_the_seed_counts():
    for seed in (1, 2):
        for key in KEYS[:40]:
            want = "train" if point(key, seed) < Fraction(1, 2) else "test"
            expect_equal(splitting.split_of(key, HALVES, seed), want,
                         because="another seed is another split: hash 'SEED:KEY', with the seed in front")


@exercise("2.8")
def test_the_key_counts_as_it_is():
    for key, why in (("README.md", "capitals count: README.md and readme.md are two files"),
                     ("Package/Module.py", "capitals count: they are part of the name"),
                     ("é.py", "é is two bytes in UTF-8; dropped or replaced, é.py and ü.py are one file"),
                     ("한국어/파일.py", "each of these letters is three bytes in UTF-8, and all of them count"),
                     (" a.py ", "white space at the ends is part of the key")):
        expect_equal(splitting.split_of(key, SIXTEEN), f"split {int(point(key, 0) * 16):02}",
                     because=f"{key!r} is hashed as it is: {why}")


@exercise("2.8")
def test_what_is_left_at_the_end_goes_to_the_last():
    for fractions in ({"train": 0.1, "test": 0.1}, {"test": 0.125, "train": 0.125}):  # so that it happens often
        first, last = fractions
        for key in KEYS[:100]:
            try:
                got = splitting.split_of(key, fractions)
            except ValueError as error:
                expect(False, because=f"fractions with a sum of 0.2 raised {error!r}: whoever calls split_of has "
                                      "checked them; here they aren't checked, as its docstring says")
                raise
            expect(got is not None, because="a point above all edges, which rounding makes possible, got None: it "
                                            "belongs to the last split")
            expect_equal(got, first if point(key, 0) < Fraction(fractions[first]) else last,
                         because=f"the point is {float(point(key, 0)):.3f}, and the splits end at {fractions[first]} "
                                 f"and {sum(fractions.values())}. Fractions like 0.7 + 0.2 + 0.1 add up to a little "
                                 "less than 1, and a point above all edges belongs to the last split, whatever it is "
                                 "called; the edges are not stretched, and None is no split")
