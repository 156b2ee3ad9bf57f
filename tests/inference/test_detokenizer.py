"""Text as it streams: judged by Python's own decoder over all bytes, and by a search that looks at every character."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.inference.detokenizer import Detokenizer


class Pieces:
    """A tokenizer whose token i stands for the i-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.token_bytes = pieces.__getitem__


def stream(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """What is sent for each token and at the end, and whether a stop text was met; tokens after it are not added."""
    detokenizer, sent = Detokenizer(Pieces(pieces), stop), []
    for i in range(len(pieces)):
        sent.append(detokenizer.add(i))
        if detokenizer.stopped:
            break
    sent.append(detokenizer.flush())
    return sent, detokenizer.stopped


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def text_before_stop(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Read character by character; the moment the text ends in a stop text, cut that off."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=30), places=st.lists(st.integers(0, 200), max_size=30))
@example(text="naïve 日本語 👩‍👩‍👧 é", places=list(range(50)))
def test_whole_characters_only(text, places):
    pieces = cut(text.encode(), places)
    sent, _ = stream(pieces)
    assert "".join(sent) == text  # so no U+FFFD that isn't the text's own
    seen = b""
    for piece, n in zip(pieces, range(1, len(sent)), strict=True):
        seen += piece
        complete = seen.decode(errors="ignore")  # all that could be sent by now
        assert "".join(sent[:n]) == complete


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=30), places=st.lists(st.integers(0, 200), max_size=30))
def test_bytes_that_are_no_text_become_replacement_characters(data, places):
    assert "".join(stream(cut(data, places))[0]) == data.decode(errors="replace")


def test_broken_bytes_are_replaced_as_soon_as_they_are_hopeless():
    assert stream([b"\xe6\x97", b"a", b"b"])[0] == ["", "\ufffda", "b", ""]
    assert stream([b"\xff", b"a"])[0] == ["\ufffd", "a", ""]
    assert stream([b"a", b"\xf0\x9f"])[0] == ["a", "", "\ufffd"]  # cut off at the end
    assert stream([b"\xf0", b"\x9f", b"\x98", b"\x80"])[0] == ["", "", "", "😀", ""]


STOPS = st.lists(st.text("ab日", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


@settings(max_examples=500, deadline=None)
@given(text=st.text("ab日", max_size=14), places=st.lists(st.integers(0, 60), max_size=20), stop=STOPS)
@example(text="aab", places=[1, 2], stop=("ab",))  # the first a must be sent though it looked like a beginning
@example(text="abc", places=[], stop=("abc", "b"))
def test_stop_texts(text, places, stop):
    """However the tokens cut the text, the answer is the same, and nothing of a stop text is ever sent."""
    pieces = cut(text.encode(), places)
    sent, stopped = stream(pieces, stop)
    assert ("".join(sent), stopped) == text_before_stop(text, stop)
    seen = b""
    longest = max(map(len, stop))
    for piece, n in zip(pieces, range(1, len(sent) - stopped), strict=False):
        seen += piece
        held = len(seen.decode(errors="ignore")) - len("".join(sent[:n]))
        assert held < longest  # nothing is held back without need


def test_only_what_may_become_a_stop_text_is_held_back():
    assert stream([b"one E", b"N", b"X E", b"ND", b"!"], ("END",))[0] == ["one ", "", "ENX ", "", ""]
    assert stream([b"a\n", b"b\n", b"\nc"], ("\n\n",))[0] == ["a", "\nb", "", ""]
    assert stream([b"a\n", b"b\n"], ("\n\n",))[0] == ["a", "\nb", "\n"]


def test_after_a_stop_text_nothing_is_sent():
    detokenizer = Detokenizer(Pieces([b"yes. no", b"more", b"\xf0"]), (". ",))
    assert [detokenizer.add(0), detokenizer.add(1), detokenizer.add(2), detokenizer.flush()] == ["yes", "", "", ""]
    assert detokenizer.stopped


def test_a_character_cut_at_the_limit_is_left_out():
    half = "🎉".encode()[:3]
    for cut_off, text in ((True, "party "), (False, "party \ufffd")):
        detokenizer = Detokenizer(Pieces([b"party ", half]))
        assert detokenizer.add(0) + detokenizer.add(1) + detokenizer.flush(cut=cut_off) == text


def test_a_stop_text_in_the_last_bytes():
    sent, stopped = stream([b"ok", b"\xf0\x9f"], ("\ufffd",))
    assert ("".join(sent), stopped) == ("ok", True)


@pytest.mark.real
@pytest.mark.parametrize("text", ["Grüße aus 東京! 😀👍🏽 naïve\u200d🏳️‍🌈", "क्षत्रिय مرحبا \U0001f9ff"])
def test_the_real_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer)
    sent = [detokenizer.add(id) for id in ids]
    assert "".join(sent) + detokenizer.flush() == text
    assert "\ufffd" not in "".join(sent)
    assert "" in sent  # some character was indeed split, or this test shows nothing
