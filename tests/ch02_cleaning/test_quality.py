"""Exercise 2.7: judged by small texts counted by hand, and by a slow count of all pairs of n-grams."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch02_cleaning import quality
from chapters.judge import exercise, expect_close


@exercise("2.7")
def test_nothing_repeated_is_0():
    for words, n in (([], 2), (["one"], 2), (["a", "b", "c", "d"], 2), (["a", "a", "a"], 4)):
        expect_close(quality.duplicate_ngram_fraction(words, n), 0.0,
                     because=f"{words} has no {n}-gram twice (or none at all): the share is 0, and nothing is divided "
                             "by 0")


@exercise("2.7")
def test_the_first_time_is_no_repetition():
    expect_close(quality.duplicate_ngram_fraction(["ab", "cd", "ab", "cd"], 2), 0.5,
                 because="'ab cd' comes twice: the second time is a repetition, half of the letters; the first is not")


@exercise("2.7")
def test_letters_are_counted_and_not_words():
    words = ["a", "bb", "a", "bb", "cccccc"]
    expect_close(quality.duplicate_ngram_fraction(words, 2), 3 / 12,
                 because="the repeated 'a bb' is 3 of 12 letters; by words it would be 2 of 5, and a page full of "
                         "short words would look worse than it is")


@exercise("2.7")
def test_overlapping_repetitions_count_once():
    expect_close(quality.duplicate_ngram_fraction(["ab"] * 6, 2), 5 / 6,
                 because="'ab ab' begins at each of five places, and is new at the first only; the others overlap, and "
                         "cover five words: count a word once, however many n-grams it is in")


@exercise("2.7")
def test_words_are_not_glued():
    expect_close(quality.duplicate_ngram_fraction(["ab", "c", "x", "a", "bc"], 2), 0.0,
                 because="'ab c' and 'a bc' are different pairs, though joined they are both 'abc': keep the words "
                         "apart, as a tuple")


@exercise("2.7")
@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=14), st.integers(1, 5))
def test_equals_a_slow_count(words, n):
    inside = {
        position
        for later in range(len(words) - n + 1)
        for earlier in range(later)
        if all(words[earlier + k] == words[later + k] for k in range(n))
        for position in range(later, later + n)
    }
    letters = sum(len(words[position]) for position in inside)
    expect_close(quality.duplicate_ngram_fraction(words, n), letters / max(1, len("".join(words))),
                 because=f"{words}, n = {n}: comparing all pairs of {n}-grams gives {letters} repeated letters")
