"""Exercise 2.6: judged by a tokenizer whose tokens are bytes, and by trying every length."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch02_cleaning import cleaning
from chapters.judge import exercise, expect, expect_equal, expect_raises


def utf8(text: str) -> list[int]:
    return list(text.encode())


def from_utf8(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def cut(text: str, max_tokens: int) -> str:
    try:
        return cleaning.truncate_by_tokens(text, max_tokens, utf8, from_utf8)
    except ValueError as error:
        expect(
            False,
            because=f"cutting {text!r} to {max_tokens} tokens raised {error!r}: a character has up to 4 "
            "tokens here, so up to 3 steps back are needed; and no tokens is a text too, the empty "
            "one",
        )
        raise


@exercise("2.6")
def test_a_text_that_fits_stays():
    for text, n in (("", 0), ("abc", 3), ("abc", 100), ("né", 3)):
        expect_equal(
            cut(text, n), text, because=f"{text!r} has {len(utf8(text))} tokens: with {n} allowed it stays whole"
        )


@exercise("2.6")
def test_a_long_text_is_cut():
    expect_equal(cut("abcdef", 4), "abcd", because="each letter is one token here, so 4 letters stay")
    expect_equal(cut("abcdef", 0), "", because="no tokens, no text")
    expect_equal(cut("ééé", 4), "éé", because="tokens are counted, not characters: é has two here")


@exercise("2.6")
def test_no_character_is_cut_in_two():
    for text, n, want in (("café!", 4, "caf"), ("a한b", 3, "a"), ("a😀b", 4, "a"), ("a😀b", 5, "a😀"), ("😀", 3, "")):
        expect_equal(
            cut(text, n),
            want,
            because=f"{text!r} cut to {n} tokens ends in the middle of a character, and decodes to \ufffd "
            "there: go back to where that character begins",
        )


@exercise("2.6")
def test_a_replacement_character_of_the_text_stays():
    expect_equal(
        cut("a\ufffdbc", 4),
        "a\ufffd",
        because="this \ufffd stands in the text itself: compare with the text, and don't strip the character",
    )


@exercise("2.6")
def test_half_a_replacement_character_is_no_whole_one():
    expect_equal(
        cut("a\ufffdbc", 3),
        "a",
        because="\ufffd has 3 tokens here, and 2 of them decode to a whole \ufffd again: 'a\ufffd' is how "
        "the text begins, and has 4 tokens where 3 are allowed. Encode what you would return once "
        "more, and count",
    )


@exercise("2.6")
def test_a_tokenizer_that_changes_texts_is_refused():
    with expect_raises(
        ValueError,
        because="a tokenizer that turns everything to lower case doesn't give the text "
        "back: its pieces are not the beginning of it, and cutting with it would "
        "change it",
    ):
        cleaning.truncate_by_tokens("HELLO WORLD, HELLO", 9, lambda text: utf8(text.lower()), from_utf8)


@exercise("2.6")
@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(st.text(st.sampled_from("aé한😀\ufffd\u0301 "), max_size=20), st.integers(0, 40))
def test_the_longest_beginning_that_fits(text, max_tokens):
    want = max((text[:i] for i in range(len(text) + 1) if len(utf8(text[:i])) <= max_tokens), key=len)
    expect_equal(
        cut(text, max_tokens),
        want,
        because=f"{text!r} with {max_tokens} tokens: the longest beginning with at most so many is wanted",
    )
