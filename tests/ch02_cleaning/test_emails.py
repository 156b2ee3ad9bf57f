"""Exercise 2.4: judged by addresses and what looks like them, and by how the time grows."""

from chapters.ch02_cleaning import cleaning
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch02_cleaning.clock import cpu_seconds, growth


def spans(text: str) -> list[tuple[int, int]]:
    got = cleaning.find_emails(text)
    expect(got is not None, because=NO_RESULT)
    found = list(got)
    for span in found:
        expect(
            isinstance(span, list | tuple) and list(map(type, span)) == [int, int],
            because=f"each address is given as two numbers, (start, end), as match.span() has them; yours gave "
            f"{span!r:.60}",
        )
    return [tuple(span) for span in found]


def emails(text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


@exercise("2.4")
def test_positions_are_start_and_end():
    expect_equal(
        spans("to ada@example.org now"),
        [(3, 18)],
        because="each address is given as (start, end), so that text[start:end] is it and nothing else",
    )


@exercise("2.4")
def test_addresses_of_all_kinds_are_found():
    for address in (
        "a@example.org",
        "ada.lovelace@example.org",
        "bob_b+lists@mail.example.co.uk",
        "x-y%z@a-b.example.com",
        "ADA@EXAMPLE.ORG",
        "ada99@1.example.net",
        "jürgen@bücher.example",
    ):
        expect_equal(
            emails(f"Write to {address} today"),
            [address],
            because=f"{address} is an address: local parts hold dots, plus, minus, per cent, digits and "
            "letters of any language; domains have two labels or more",
        )
    expect_equal(
        emails("ada@example.org,bob@example.com;<cy@example.net>"),
        ["ada@example.org", "bob@example.com", "cy@example.net"],
        because="there are three addresses in it",
    )


@exercise("2.4")
def test_punctuation_around_is_not_part_of_it():
    for before, after in (
        (" ", "."),
        ("(", ")"),
        ("<", ">"),
        ('"', '",'),
        ("mailto:", "?"),
        (" ", "!"),
        (" ...", "..."),
        (" ", ", "),
    ):
        got = emails(f"Ask{before}ada@example.org{after}")
        expect(
            got or not before.endswith("."),
            because=f"in 'Ask{before}ada@example.org{after}' the address wasn't found: a lookbehind such as "
            "(?<![\\w.%+-]) forbids to begin after a dot. Let the pattern step over the signs before the "
            "address, [.%+-]*(\\w…), and take that group's span",
        )
        expect_equal(
            got,
            ["ada@example.org"],
            because=f"in 'Ask{before}ada@example.org{after}' the signs around the address belong to the "
            "sentence: a domain ends with letters, and a local part begins with a letter, digit or _",
        )


@exercise("2.4")
def test_other_uses_of_the_sign_are_left_alone():
    for text in (
        "@property",
        "a @ b",
        "x@y",
        "root@localhost",
        "lodash@4.17.21",
        "@user said",
        "a@",
        "3 apples @ 1.50",
        "me@example.",
        "C = A@B.T",
    ):
        expect_equal(
            emails(text),
            [],
            because=f"{text!r} holds no address: a domain has a dot, and after the last dot two letters or more",
        )


@exercise("2.4")
def test_a_long_name_takes_no_time():
    name = "sphx_glr_auto_examples_model_selection"  # a real documentation file holds it
    for length in (16, 22):
        seconds = cpu_seconds(lambda length=length: cleaning.find_emails(name[:length] + " "), repeats=1)
        expect(
            seconds < 0.1,
            because=f"a word of {length} letters and no @ took {seconds:.1f} s, and each letter more doubles it: a "
            "+ inside a repeated group, as in (\\w+[.-]?)+, gives 2**n ways to read n letters, and all are "
            "tried. Let there be one way only",
        )


@exercise("2.4")
def test_finding_takes_linear_time():
    test_a_long_name_takes_no_time()  # else the texts below would take for ever
    for piece in ("a", "a.", "a-", ".", "%", "a@", "a@b.", "a@bb.", "@", "a@bb.c1 "):
        times = growth(cleaning.find_emails, lambda n, piece=piece: piece * n, 1000)
        expect(
            times < 30,
            because=f"8 times as many {piece!r} took {times:.0f} times as long. If the search may begin at every "
            "letter of a word, each time it reads on to the word's end: a lookbehind such as (?<![\\w.%+-]) "
            "allows the first only",
        )
