"""The cleaners that the book gives: judged by unicodedata, ipaddress, hand-made texts, and by how their time grows."""

import ipaddress
import threading
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.data import cleaning
from shared.data.guard import TooSlow, time_limit
from tests.ch02_cleaning.clock import growth

PIECES = st.sampled_from([
    "a", "B", "é", "e\u0301", "한", "😀", "👩\u200d🔬", "1", "192.0.2.1", "2001:db8::7", "a@b.org", "+44 1632 960123",
    "202-555-0143", " ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u00a0", "\u3000", "\x00",
    "\x1b[1m", "\x1b]0;t\x07", "\x1b", "\u200b", "\ufeff", "\u00ad", "\u202e", "<", ">", "<b>", "<EMAIL>",
    "&lt;", "@", ".",
    ":", "-", "(", ")", "+", "0", "x² ½", "ﬁ", "\u0300", "\u0327", "\ud800", "[", "m", "020 7946 0123", "/", "=",
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=40)
CLEANERS = {
    "control": cleaning.remove_control_characters,
    "unicode": cleaning.normalise_unicode,
    "whitespace": cleaning.normalise_whitespace,
    "pii": cleaning.mask_pii,
}


@pytest.mark.parametrize("name", CLEANERS)
@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
def test_a_second_time_changes_nothing(name, text):
    once = CLEANERS[name](text)
    assert CLEANERS[name](once) == once


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_the_four_in_a_row_are_stable(text):
    def clean(text):
        for cleaner in CLEANERS.values():
            text = cleaner(text)
        return text

    once = clean(text)
    assert clean(once) == once


@pytest.mark.parametrize("name", CLEANERS)
@pytest.mark.parametrize("text", ["", "Two\n\n    indented lines.\n", "naïve café 한국어 👩\u200d🔬 ها\u200cفارسی"])
def test_good_text_stays(name, text):
    assert CLEANERS[name](text.strip("\n")) == text.strip("\n")


@pytest.mark.parametrize("name", CLEANERS)
@pytest.mark.parametrize("piece", [
    "a", " ", "\n", "\t", "\x00", "\x1b[", "\x1b]0;", "e\u0301", "\u0301\u0327", "a@", "a.", "1.", "1.2.3.4 ",
    "+1", "+1 2 ",
    "1:", "::", "(020", "0123 ", "\u00a0", "é",
])  # fmt: skip
def test_time_grows_as_the_text_does(name, piece):
    assert growth(CLEANERS[name], lambda n: piece * n, 2000) < 32  # 8 times the text; 64 would be quadratic


# remove_control_characters


def test_control_characters_go_and_white_space_stays():
    everything = "".join(map(chr, range(0x110000)))
    gone = set(everything) - set(cleaning.remove_control_characters(everything))
    assert {chr(c) for c in range(0x20)} - gone == set("\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f")
    assert all(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") for c in gone)
    assert not any(c.isspace() for c in gone)
    assert not gone & set("\u200c\u200d")  # the joiners of Persian and of emoji


def test_escape_sequences_go_whole():
    text = "\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1b[?25lend"
    assert cleaning.remove_control_characters(text) == "red link end"
    assert cleaning.remove_control_characters("a\x1bb") == "ab"


# normalise_unicode


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_form_nfc(text):
    assert cleaning.normalise_unicode(text) == unicodedata.normalize("NFC", text)  # no run of 30 marks in it


def test_compatibility_characters_are_not_replaced():
    assert cleaning.normalise_unicode("x² ½ ™ ﬁ Ａ") == "x² ½ ™ ﬁ Ａ"
    assert unicodedata.normalize("NFKC", "x² ½ ™ ﬁ Ａ") == "x2 1⁄2 TM fi A"


def test_a_tower_of_marks_is_cut():
    tower = "a" + "\u0301\u0327" * 5000 + "b"
    assert len(cleaning.normalise_unicode(tower)) <= 32
    assert cleaning.normalise_unicode("e" + "\u0301" * 30) == unicodedata.normalize("NFC", "e" + "\u0301" * 30)


# normalise_whitespace


@pytest.mark.parametrize(("text", "want"), [
    ("a  b\t c\u00a0\u2003d", "a b c d"),
    ("a\r\nb\rc\u2028d\x0be\x85f", "a\nb\nc\nd\ne\nf"),
    ("a \n b\t\n\n\n\n\nc  ", "a\n b\n\nc"),
    ("\n\n  a\n\n", "  a"),
    ("\tx = 1\n\t\ty", "    x = 1\n        y"),
    ("\u00a0\u00a0a", "  a"),
    (" \n \n", ""),
])  # fmt: skip
def test_white_space(text, want):
    assert cleaning.normalise_whitespace(text) == want


@given(TEXTS)
def test_white_space_keeps_the_words(text):
    assert cleaning.normalise_whitespace(text).split() == text.split()


# mask_pii


@pytest.mark.parametrize(("text", "want"), [
    ("ada@example.org.", "<EMAIL>."),
    ("(ada@example.org, bob@example.com)", "(<EMAIL>, <EMAIL>)"),
    ("from 192.0.2.1, 198.51.100.255.", "from <IP>, <IP>."),
    ("http://203.0.113.9:8080/x", "http://<IP>:8080/x"),
    ("192.0.2.0/24", "<IP>/24"),
    ("[2001:db8::1]:443, 2001:DB8:0:0:0:0:0:1!", "[<IP>]:443, <IP>!"),
    ("::ffff:192.0.2.1.", "<IP>."),
    ("call (202) 555-0143, 202-555-0143 or +1 202-555-0143.", "call <PHONE>, <PHONE> or <PHONE>."),
    ("+44 20 7946 0123; 020 7946 0123; +12025550143", "<PHONE>; <PHONE>; <PHONE>"),
    ("tel:+1-202-555-0143?", "tel:<PHONE>?"),
])  # fmt: skip
def test_personal_data_is_masked_and_punctuation_stays(text, want):
    assert cleaning.mask_pii(text) == want


@pytest.mark.parametrize("text", [
    "version 1.2.3", "since 2024-01-15", "at 12:30:45.123", "v1.2.3.4 and version 10.4.2.1", "numpy==1.26.4.0",
    "x[1::2] and a[::-1]", "std::vector::size", "de:ad:be:ef:00:01", "127.0.0.1, 0.0.0.0 and ::1", "1.2.3.4.5",
    "256.1.1.1",
    "3.14159265358979", "1e+10 +1.234567890", "[100 200 3000]", "978-3-16-148410-0", "2024-01-15T12:30", "0.5 0.25",
    "555 1234", "@property", "a @ b", "lodash@4.17.21", "1-2-3", "12345678901234567890", "::", "a::b", "1:2:3",
    "uuid 123e4567-e89b-12d3-a456-426614174000",
])  # fmt: skip
def test_other_numbers_and_signs_stay(text):
    assert cleaning.mask_pii(text) == text


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_addresses_of_ipaddress_are_found(address):
    spelled = str(address)
    nobody = address.is_loopback or address.is_unspecified
    short = address.version == 6 and spelled.count(":") < 3  # 1::2 may be a slice
    masked = spelled if nobody or short else "<IP>"
    assert cleaning.mask_pii(f"from {spelled}, today") == f"from {masked}, today"


@given(st.lists(st.integers(0, 999), min_size=4, max_size=4))
def test_four_numbers_are_an_address_when_ipaddress_says_so(numbers):
    spelled = ".".join(map(str, numbers))
    try:
        address = ipaddress.ip_address(spelled)
        masked = not (address.is_loopback or address.is_unspecified)
    except ValueError:
        masked = False
    assert cleaning.mask_pii(f"({spelled})") == ("(<IP>)" if masked else f"({spelled})")


# is_html


@pytest.mark.parametrize("page", [
    "<!DOCTYPE html><p>x", "<!-- c --><p>x</p>", "  <html><body>x", "<p>One.</p>", "<DIV class=x>x", "<li>x",
    "One.<br>Two.</p><p>Three.</p><ul><li>x</li></ul>", "<h1>x</h1>", "<table><tr><td>1",
])  # fmt: skip
def test_pages_are_known(page):
    assert cleaning.is_html(page)


@pytest.mark.parametrize("text", [
    "Plain.", "if a < b: c", "Use <b> for bold, as in <b>x</b>.", "<your-name> is asked for", "List<String> x",
    "<class 'int'>",
    "", "The <p> element: <p>one</p>.", "<EMAIL> wrote",
])  # fmt: skip
def test_text_about_pages_is_no_page(text):
    assert not cleaning.is_html(text)


# truncate_by_tokens with a real tokenizer


@pytest.mark.real
def test_truncation_with_the_real_tokenizer(tokenizer):
    text = "The café in 서울 has 3 tables. 😀👩\u200d🔬 x² = ½\n\n    def f(): pass\n" * 3
    total = len(tokenizer.encode(text))
    for n in range(total + 2):
        head = cleaning.truncate_by_tokens(text, n, tokenizer.encode, tokenizer.decode)
        assert text.startswith(head)
        assert n - 3 <= len(tokenizer.encode(head)) <= n or n >= total
        assert "\ufffd" not in head
    with pytest.raises(ValueError, match="at least 0"):
        cleaning.truncate_by_tokens(text, -1, tokenizer.encode, tokenizer.decode)


# time_limit


def test_a_limit_must_be_one_that_can_be_kept():
    for wrong in (0, -1, float("nan"), float("inf"), 1e10, 1e-9):
        with pytest.raises(ValueError, match=r"from 0\.001 to 1,000,000 seconds, not "), time_limit(wrong):
            pass
    for right in (0.001, 1e6):
        with time_limit(right):
            pass


def test_a_limit_in_a_thread_is_refused():
    caught: list[Exception] = []

    def work() -> None:
        try:
            with time_limit(1.0):
                pass
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_unicode_towers_would_not_be_stopped_and_so_they_are_cut_first():
    """The limit can't interrupt unicodedata.normalize: it comes too late."""
    import time

    tower = "a" + "\u0301\u0327" * 12_000

    def stopped_after(run) -> float:
        start = time.process_time()
        try:
            with time_limit(0.02):
                run()
        except TooSlow:
            pass
        return time.process_time() - start

    assert stopped_after(lambda: unicodedata.normalize("NFC", tower)) > 0.1
    cleaning.normalise_unicode("é")  # the first call makes its pattern
    assert stopped_after(lambda: cleaning.normalise_unicode(tower)) < 0.05
