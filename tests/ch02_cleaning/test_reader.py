"""Exercises 2.1 and 2.2: judged by bytes.split on the whole, a meter on the memory, and lines made by hand."""

import json
import traceback
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch02_cleaning import reader
from chapters.judge import exercise, expect, expect_equal, expect_raises


def lines(data: bytes, block: int, max_bytes: int = 1000) -> list[bytes | None]:
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    got = reader.bounded_lines(blocks, max_bytes)
    expect(got is not None, because="nothing came back: yield every line as soon as it is complete")
    return list(got)


# 2.1 bounded_lines


@exercise("2.1")
def test_a_line_goes_on_in_the_next_block():
    data = b"one\ntwo\nthree\n"
    for block in range(1, len(data) + 1):
        expect_equal(lines(data, block), [b"one", b"two", b"three"],
                     because="blocks are cut anywhere: what stands after a block's last line break is the beginning of "
                             "a line that the next block goes on with")


@exercise("2.1")
def test_the_last_line_needs_no_line_break():
    expect_equal(lines(b"one\ntwo", 3), [b"one", b"two"],
                 because="what follows the last line break is a line too: many files end without one, and the last "
                         "record is as good as the first")


@exercise("2.1")
def test_nothing_after_the_last_line_break_is_no_line():
    expect_equal(lines(b"one\ntwo\n", 4), [b"one", b"two"],
                 because="b'one\\ntwo\\n' has two lines: the empty piece after its last line break isn't one")
    expect_equal(lines(b"", 4), [], because="no blocks, no lines")


@exercise("2.1")
def test_empty_lines_keep_the_count_right():
    expect_equal(lines(b"\none\n\n\ntwo\n", 2), [b"", b"one", b"", b"", b"two"],
                 because="an empty line is a line: leave it out, and every line after it is reported with a wrong "
                         "number")


@exercise("2.1")
def test_only_a_line_feed_ends_a_line():
    data = '{"text":\r"a\x0bb\x0cc\u2028d\x85e"}'.encode()
    expect_equal(lines(data + b"\nnext", 5), [data, b"next"],
                 because=r"only \n ends a line of JSONL: \r may stand between a record's parts, and splitlines cuts "
                         r"there")
    expect_equal(lines(b"one\r\ntwo\r\n", 4), [b"one\r", b"two\r"],
                 because=r"only b'\n' is taken off; JSON ignores the \r that is left")


@exercise("2.1")
def test_a_long_line_comes_out_as_none():
    expect_equal(lines(b"ab\nfar too long\ncd\n", 4, max_bytes=5), [b"ab", None, b"cd"],
                 because="a line above max_bytes is None, once; the rest of it isn't a line of its own, and the line "
                         "after it is read like any other")
    expect_equal(lines(b"far too long", 4, max_bytes=5), [None], because="the last line can be too long as well")
    expect_equal(lines(b"far too long\n", 100, max_bytes=5), [None],
                 because="a line can be too long within a single block too")
    expect_equal(lines(b"12345\n123456\n", 3, max_bytes=5), [b"12345", None],
                 because="max_bytes itself is still allowed: only a longer line is None")


@exercise("2.1")
def test_a_long_line_is_not_held_in_memory():
    def blocks() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(32):
            yield b"x" * 65_536
        yield b'"}\n{"text": "next"}\n'

    peaks = []
    for _ in range(2):  # the first run may pay for something else, such as a garbage collection
        tracemalloc.start()
        got = list(reader.bounded_lines(blocks(), max_bytes=100_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    peak = min(peaks)
    expect_equal(got, [None, b'{"text": "next"}'], because="a line of 2 MB is None, and the one after it is whole")
    expect(peak < 1_000_000,
           because=f"reading a line of 2 MB with max_bytes = 100000 took {peak / 1e6:.1f} MB: its bytes have to go as "
                   "soon as there are too many, not when the line ends")


@exercise("2.1")
def test_lines_come_before_the_file_has_ended():
    asked = []

    def blocks() -> Iterator[bytes]:
        for block in (b"one\n", b"two\n", b"three\n"):
            asked.append(block)
            yield block

    first = next(iter(reader.bounded_lines(blocks(), 100)))
    expect_equal((first, len(asked)), (b"one", 1),
                 because="a line is given out as soon as it is complete: the file may be larger than the memory")


@exercise("2.1")
@settings(max_examples=200, deadline=None, report_multiple_bugs=False)
@given(st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\xff", b"long enough", b""]), max_size=30),
       st.integers(1, 7), st.integers(0, 12))
def test_lines_equal_those_of_the_whole(pieces, block, max_bytes):
    data = b"".join(pieces)
    want = [line if len(line) <= max_bytes else None for line in data.split(b"\n")]
    if want[-1] == b"":
        want.pop()
    expect_equal(lines(data, block, max_bytes), want,
                 because=f"{data!r} in blocks of {block}, at most {max_bytes} bytes a line: the lines should be those "
                         "of the whole, cut at its line breaks")


# 2.2 parse_record


FORMS = ("not UTF-8", "not JSON", "not an object", "no text", "text is not a string")


def parsed(raw: bytes, because: str) -> dict:
    try:
        return reader.parse_record(raw)
    except ValueError as error:
        expect(False, because=f"{raw[:40]!r} is a good record, and it was refused ({error}): {because}")
        raise


def refused(raw: bytes, form: str, because: str) -> None:
    """A ValueError has to come, and its message has to begin with the form, up to the colon."""
    message, own = "", True
    with expect_raises(ValueError, because=because):
        try:
            reader.parse_record(raw)
        except ValueError as error:
            message = str(error)
            frames = traceback.extract_tb(error.__traceback__)
            own = type(error) is ValueError and Path(frames[-1].filename).parent.name != "json"  # else Python's own
            raise
    expect(not any(f": {known}" in message for known in FORMS),
           because=f"the message is {message!r}, two forms in one: an error of your own was raised inside the try, and "
                   "the except below caught it like json's. Only decoding and json.loads belong in the try; check what "
                   "came out of it afterwards")
    begins = message.split(":")[0]
    expect_equal(begins, form,
                 because=because if begins in FORMS or not own else
                 f"the message is {message!r}, and the docstring asks for {form + ': …'!r}: the reader counts the bad "
                 "lines by what stands before the colon, word for word")


@exercise("2.2")
def test_a_record_is_returned_whole():
    record = {"text": "  one\ntwo \u2028 é 한 \n", "label": 3, "extra": {"a": [1, None]}}
    for raw in (json.dumps(record).encode(), json.dumps(record, ensure_ascii=False).encode() + b"\r"):
        expect_equal(parsed(raw, "it is plain JSON with a text"), record,
                     because="the record comes back with all its fields, and with its text as it was, white space at "
                             "its ends too: what to do about that is for the cleaners to say")


@exercise("2.2")
def test_a_byte_order_mark_is_no_fault():
    expect_equal(parsed(b'\xef\xbb\xbf{"text": "ok"}', "a byte order mark stands before it, as Windows programs write "
                                                      "it; the codec utf-8-sig takes it away"), {"text": "ok"},
                 because="a byte order mark in front of the record is taken away, and the record is kept")


@exercise("2.2")
def test_an_empty_text_is_a_text():
    expect_equal(parsed(b'{"text": ""}', "its text is empty, and still a string; whether it is worth keeping is for "
                                         "the quality filters to say"), {"text": ""}, because="an empty text is kept")


@exercise("2.2")
def test_bytes_that_are_not_utf8_are_refused():
    refused('{"text": "café"}'.encode("latin-1"), "not UTF-8",
            because="0xe9 alone is é in Latin-1 and nothing in UTF-8: say so; errors='ignore' or 'replace' would "
                    "change the text without a word")


@exercise("2.2")
def test_the_encoding_is_not_guessed():
    guessed = "json.loads, given bytes, guesses the encoding and lets this pass. Decode the bytes yourself, as UTF-8"
    refused('{"text": "hello"}'.encode("utf-16"), "not UTF-8", because=f"this line is UTF-16, and not UTF-8. {guessed}")
    refused(b'{"text": "\xed\xa0\x80"}', "not UTF-8",
            because=f"0xed 0xa0 0x80 is half a surrogate pair, which no UTF-8 may hold. {guessed}")


@exercise("2.2")
def test_broken_json_is_refused():
    for raw in (b'{"text": "cut o', b"hello", b'{"text": "a"} {"text": "b"}', b"{'text': 'a'}"):
        refused(raw, "not JSON", because=f"{raw!r} is not one JSON value")


@exercise("2.2")
def test_deep_nesting_is_refused():
    refused(b"[" * 100_000, "not JSON",
            because="json raises RecursionError, which is no ValueError, for a line of 100000 opening brackets: one "
                    "such line would end the whole run")


@exercise("2.2")
def test_endless_numbers_are_refused():
    refused(b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "not JSON",
            because="Python makes no integer of 5000 digits, and json passes its ValueError on as it is: that is no "
                    "JSONDecodeError. Catch ValueError, which both are")


@exercise("2.2")
def test_json_that_is_no_object_is_refused():
    for raw in (b'["text"]', b'"text"', b"12", b"null"):
        refused(raw, "not an object",
                because=f"{raw.decode()} is JSON, but no object with fields: check that before you look for text in it")


@exercise("2.2")
def test_a_missing_text_is_refused():
    refused(b'{"body": "hello"}', "no text",
            because="without a text there is nothing to learn from: say that it is missing, for it may be called "
                    "something else there")


@exercise("2.2")
def test_a_text_that_is_no_string_is_refused():
    for raw in (b'{"text": null}', b'{"text": ["a"]}', b'{"text": 3}', b'{"text": {}}'):
        refused(raw, "text is not a string",
                because=f"{raw.decode()}: the cleaners that come next expect a string, and would fail far from the "
                        "line that is to blame")
