"""The filters of quality: each rule by a text that breaks it."""

import random

import pytest

from shared.data import quality


def test_length():
    assert quality.length_problem("one two three", min_words=3) is None
    assert quality.length_problem("one two", min_words=3) == "too short: 2 words, at least 3 are asked for"
    assert quality.length_problem("one " * 11, max_words=10) == "too long: 11 words, at most 10 are allowed"
    assert quality.length_problem("", min_words=0) is None


def test_character_set():
    assert quality.charset_problem("Plain words, 1 number.") is None
    assert quality.charset_problem("한국어 문서 é") is None
    assert quality.charset_problem("+---+---+ 1 2 3 ab").startswith("few letters: 14%")
    assert quality.charset_problem("caf\ufffd au lait").startswith("wrongly decoded: 1 times")
    assert quality.charset_problem("") is None


def test_repetition_is_gophers():
    """The limits of table A1 in Rae et al. 2021, written out again."""
    limits = quality.GOPHER
    assert (limits.duplicate_lines, limits.duplicate_line_chars) == (0.30, 0.20)
    assert (limits.duplicate_paragraphs, limits.duplicate_paragraph_chars) == (0.30, 0.20)
    assert limits.top_ngram == {2: 0.20, 3: 0.18, 4: 0.16}
    assert limits.duplicate_ngrams == {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def test_each_repetition_rule_has_a_text_that_breaks_it():
    rng = random.Random(0)

    def words(n: int) -> str:
        return " ".join("".join(rng.choices("abcdefghij", k=5)) for _ in range(n))

    assert quality.repetition_problem(words(200)) is None
    assert quality.repetition_problem("") is None
    short = quality.repetition_problem("\n\n".join(["one"] * 3 + [words(50)]))
    assert short.startswith("repeated paragraphs: 50% of them")
    long = words(40)
    assert quality.repetition_problem("\n\n".join([words(9) for _ in range(6)] + [long, long])).startswith(
        "repeated paragraphs"
    )
    assert quality.repetition_problem("\n".join(["one"] * 3 + [words(50)])).startswith("repeated lines: 50% of them")
    assert "of the characters" in quality.repetition_problem("\n".join([words(9) for _ in range(6)] + [long, long]))
    assert quality.repetition_problem(" ".join(f"very good {words(1)}" for _ in range(20))).startswith("one 2-gram")
    phrase = words(10)
    assert quality.repetition_problem(f"{words(30)} {phrase} {words(5)} {phrase}").startswith("repeated 5-grams")


def test_top_ngram():
    assert quality.top_ngram_fraction(["a", "b", "c", "a", "b", "d"], 2) == pytest.approx(4 / 6)
    assert quality.top_ngram_fraction(["a", "b", "c"], 2) == 0
    assert quality.top_ngram_fraction([], 2) == 0
    words = ["a", "b", "xx", "yy", "a", "b", "xx", "yy"]
    assert quality.top_ngram_fraction(words, 2) == pytest.approx(8 / 12)  # of those that come twice the longest
    assert quality.duplicate_fractions([]) == (0, 0)


def test_perplexity_is_handed_in():
    def fake(text: str) -> float:
        return float(len(text))

    assert quality.perplexity_problem("abc", fake, 10) is None
    assert quality.perplexity_problem("a" * 11, fake, 10) == "perplexity: 11, at most 10 is allowed"
    assert quality.perplexity_problem("abc", lambda text: float("nan"), 10) is not None
