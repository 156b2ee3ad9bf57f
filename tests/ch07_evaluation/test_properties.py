"""Exercise 7.5: judged by sentences in which a reader sees at once what is mentioned."""

from chapters.ch07_evaluation import properties
from chapters.judge import exercise, expect


def mentioned(text: str, phrase: str) -> bool:
    got = properties.mentions(text, phrase)
    expect(got is not None, because="mentions gives None: does it return its result, on every path?")
    return bool(got)


@exercise("7.5")
def test_whole_words():
    for text, phrase in (
        ("The Parisian cafe was full.", "Paris"),
        ("There are 42 of them.", "4"),
        ("Pi is 3.14159.", "3"),
        ("There are 1,700 of them.", "700"),
        ("The category is open.", "cat"),
    ):
        expect(
            not mentioned(text, phrase),
            because=f"{text!r} doesn't mention {phrase!r}: it is only a part of a word or of a number. `in` on texts "
            "finds parts; compare units",
        )


@exercise("7.5")
def test_found():
    for text, phrase, why in (
        ("It is Paris.", "Paris", "a full stop after the word doesn't matter"),
        ("It is PARIS!", "Paris", "case doesn't matter; units() takes care of it, for both of them"),
        ("the answer is 42", "42", "the phrase may be the last thing in the text; mind where the places end"),
        ("Paris", "Paris", "the phrase may be all of the text"),
        ("Use C++ for that.", "C++", "a phrase may hold signs, and they are no pattern; \\b finds no border after +"),
        ("It is $5 (five).", "$5", "a phrase may hold signs that mean something in a regular expression"),
        ("Of New\n  York, of course", "New York", "line breaks and several spaces are as good as one"),
        ("首都は東京です", "東京", "Japanese has no spaces between words, and units() knows"),
    ):
        expect(mentioned(text, phrase), because=f"{text!r} mentions {phrase!r}: {why}")


@exercise("7.5")
def test_every_place_is_tried():
    for text in ("A new day in New York", "New New York"):
        expect(
            mentioned(text, "New York"),
            because=f"{text!r} mentions 'New York', though not where its first word stands for the first time: try "
            "every place, and begin anew at each",
        )


@exercise("7.5")
def test_in_order_and_side_by_side():
    for text in ("York is new.", "New towns such as York", "York New"):
        expect(
            not mentioned(text, "New York"),
            because=f"{text!r} holds both words, but not one after the other: a set of words forgets their order",
        )


@exercise("7.5")
def test_signs_count():
    for text, phrase in (("Use C for that.", "C++"), ("It costs 5.", "$5"), ("New, York", "New York")):
        expect(
            not mentioned(text, phrase),
            because=f"{text!r} doesn't mention {phrase!r}: signs are units like any others, and none may be dropped",
        )


@exercise("7.5")
def test_nothing():
    expect(not mentioned("Anything", ""), because="an empty phrase is never mentioned")
    expect(
        not mentioned("Anything at all", " \n"),
        because="a phrase of spaces has no units, so it is as empty as one of nothing: ask whether there are units",
    )
    expect(not mentioned("", "Paris"), because="an empty text mentions nothing")
    expect(not mentioned("", ""), because="an empty phrase is never mentioned, not even by an empty text")
    expect(not mentioned("new", "new york city"), because="the phrase is longer than the text")


@exercise("7.5")
def test_a_pattern_is_text():
    expect(not mentioned("abc", "a.c"), because="a phrase is text and no pattern: a.c isn't abc")
