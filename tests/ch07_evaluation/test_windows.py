"""Exercise 7.1: judged by counting which tokens each window predicts."""

from chapters.ch07_evaluation import perplexity
from chapters.judge import exercise, expect, expect_equal, expect_parts


def windows(length: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    got = perplexity.windows(length, window, stride)
    expect(got is not None, because="windows gives None: does it return its list?")
    got = list(got)
    for w in got:
        expect_parts(w, ("begin", "first", "end"), because="each item of the list is a Window(begin, first, end)")
    return [tuple(w) for w in got]


@exercise("7.1")
def test_first_window():
    got = windows(length=10, window=6, stride=3)
    expect(len(got) > 0, because="there are no windows: a text of ten tokens needs some")
    expect_equal(
        got[0],
        (0, 1, 6),
        because="the first window reads tokens 0 to 5 and predicts from token 1 on: nothing stands before token 0, and "
        "`end` is the first token that is no longer counted",
    )


@exercise("7.1")
def test_each_token_once():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (5, 4, 1), (1000, 64, 32), (65, 64, 32)):
        predicted = [i for _, first, end in windows(length, window, stride) for i in range(first, end)]
        expect(
            len(predicted) == len(set(predicted)),
            because="some tokens are predicted twice: where windows overlap, only what the last window hasn't reached "
            "counts, and the rest is context",
        )
        expect_equal(
            predicted,
            list(range(1, length)),
            because="tokens 1 to length - 1 are each predicted once, in order; the end of the text may fill only a "
            "part of a stride, and it counts, too",
        )


@exercise("7.1")
def test_no_window_predicts_nothing():
    for length, window, stride in ((20, 8, 4), (10, 6, 3), (6, 6, 3), (12, 6, 3)):
        for begin, first, end in windows(length, window, stride):
            expect(
                first < end,
                because=f"of {length} tokens, the window ({begin}, {first}, {end}) predicts nothing: stop once the end "
                "of the text is reached",
            )


@exercise("7.1")
def test_enough_context():
    for length, window, stride in ((10, 6, 3), (100, 16, 4), (33, 8, 7), (1000, 64, 32)):
        for begin, first, end in windows(length, window, stride):
            expect(
                end - begin <= window,
                because=f"a window from {begin} to {end} is longer than {window} tokens; the model may not have room",
            )
            expect(
                first - begin >= (window - stride if first > 1 else 1),
                because=f"token {first} is predicted from only {first - begin} tokens; after the first window each has "
                f"at least window - stride = {window - stride} before it, so windows must overlap",
            )


@exercise("7.1")
def test_begins_as_early_as_it_may():
    expect_equal(
        windows(length=10, window=6, stride=3),
        [(0, 1, 6), (3, 6, 9), (4, 9, 10)],
        because="a window ends where its last token does, and begins `window` tokens before that: the last one of ten "
        "tokens is 4 to 10, which gives its token all the context there is room for",
    )


@exercise("7.1")
def test_short_texts():
    for length, window, stride in ((4, 6, 3), (6, 6, 3), (3, 6, 3), (2, 6, 3), (100, 1024, 512)):
        got = windows(length, window, stride)
        expect(
            len(got) > 0,
            because=f"{length} tokens and a window of {window}: there are no windows. A text that fits needs one, and "
            "so does one that is shorter by more than a stride",
        )
        expect_equal(
            got,
            [(0, 1, length)],
            because=f"{length} tokens fit in a window of {window}, so there is one, and it ends where the text does; "
            "no window begins before token 0",
        )
    expect_equal(windows(length=1, window=6, stride=3), [], because="a single token predicts nothing")
