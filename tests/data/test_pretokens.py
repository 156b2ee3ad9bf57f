"""Cutting text into pretokens: the tokenizers library's pre-tokenizers are the judge."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from shared.data.pretokens import GPT2, GPT2_DIGITS, compile_pattern, safe_chunks, special_pattern, splitter
from shared.data.tokenizer_json import to_bytes

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WHOLE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LIBRARY = {
    GPT2: pre_tokenizers.ByteLevel(add_prefix_space=False),
    GPT2_DIGITS: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    LLAMA3: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), WHOLE]),
}
PATTERNS = [pytest.param(GPT2, id="gpt2"), pytest.param(GPT2_DIGITS, id="digits"), pytest.param(LLAMA3, id="llama3")]
# Whatever the patterns treat specially, in all combinations.
ODD = ["'", "'s", "'ll", "'LL", *"resſv", " ", "  ", *"\n\r\t\u00a0\u2028\u3000\x1c\x85", *"1²Ⅻ½٣", "é", "e\u0301"]
ODD += [*"中𝒳🙂\U00020000\u200b\u200d!_-"]
odd_texts = st.lists(st.sampled_from(ODD), max_size=12).map("".join)
# Characters that this Python's Unicode doesn't know yet are left out: the library may know them.
known = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=20)
texts = st.one_of(odd_texts, known, st.tuples(odd_texts, known, odd_texts).map("".join))


def library_pieces(pattern, text):
    return [to_bytes(piece).decode() for piece, _ in LIBRARY[pattern].pre_tokenize_str(text)]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=texts)
@example("it's  we'Re\n\n x²y3.5Ⅻ \u00a0\u2028 é🙂!? \x1c\x1dz")
@example("'ſ 'K")
@settings(max_examples=400, deadline=None)
def test_the_pieces_are_those_of_the_library(pattern, text):
    assert splitter(pattern)(text) == library_pieces(pattern, text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_character_falls_where_the_library_puts_it(pattern):
    """One of each general category, and all white space, beside a letter, a number, a symbol and a space."""
    spaces = {chr(i) for i in range(0x11000) if chr(i).isspace()}
    first = {unicodedata.category(chr(i)): chr(i) for i in range(0x10FFFF, -1, -1) if not 0xD800 <= i <= 0xDFFF}
    del first["Cn"]
    assert len(first) == 28
    for character in sorted(spaces | set(first.values())):
        text = f"a{character}a1{character}1!{character}! {character} {character}"
        assert splitter(pattern)(text) == library_pieces(pattern, text), hex(ord(character))


@given(
    texts, st.sampled_from([r"\w+", r"\p{L}+", r"[^\s]+|\s+", r"\P{L}", r"\p{Lu}\p{Ll}*", r"x*", r"(?:[^\p{N}\S]+|a)"])
)
@settings(max_examples=300, deadline=None)
def test_no_text_is_lost_whatever_the_pattern(text, pattern):
    assert "".join(splitter(pattern)(text)) == text


def test_what_the_pattern_skips():
    assert splitter(r"\p{L}+")("ab, cd!") == ["ab", ", ", "cd", "!"]
    assert splitter(r"\p{L}+")("") == []


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\p{L}", "aé中ʰ𝒳", "1 !²\u0301"),
        (r"\P{L}", "1 !²\u0301", "aé中ʰ𝒳"),
        (r"\p{^L}", "1!", "a中"),
        (r"\P{^L}", "a中", "1!"),
        (r"\p{Lu}", "AÉ𝒳", "aé中"),
        (r"\p{N}", "1²Ⅻ½٣", "a!"),
        (r"\s", " \n\u00a0\u2028\u3000\x85", "a\x1c\x1f\u200b"),
        (r"\S", "a\x1c\x1f\u200b", " \n\u00a0\u2028\u3000\x85"),
        (r"[^\s\p{L}\p{N}]", "!🙂\x1c", "a1 \n"),
        (r"[\S]", "a\x1c", " \u00a0"),
        (r"[\]\p{Nd}]", "]1", "a["),
    ],
)
def test_classes(pattern, yes, no):
    compiled = compile_pattern(pattern)
    assert all(compiled.fullmatch(character) for character in yes)
    assert not any(compiled.fullmatch(character) for character in no)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\p{Greek}", r"\\p\{Greek\} isn't a general category"),
        ("(a)b", "capturing group"),
        ("[a", "unterminated character set"),
        ("a{3,1}", "can't be used"),
    ],
)
def test_bad_patterns_are_named(pattern, message):
    with pytest.raises(ValueError, match=message):
        splitter(pattern)


def test_special_pattern():
    assert special_pattern([]) is None
    assert special_pattern(["<|a|>"]).split("<|a|>x<|a|>") == ["", "<|a|>", "x", "<|a|>", ""]
    assert special_pattern(["ab", "abc"]).split("abcab") == ["", "abc", "", "ab", ""]
    with pytest.raises(ValueError, match="empty"):
        special_pattern(["a", ""])


SPECIAL = ["<|end|>", "<|end|><|end|>", "ab"]


def pieces_of(text, split, special):
    parts = special.split(text) if special else [text]
    return [piece for i, part in enumerate(parts) for piece in ([part] if i % 2 else split(part))]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(
    words=st.lists(st.sampled_from([*ODD, "<|end|>", "<|en", "d|>", "<|", "a", "b"]), max_size=30),
    cuts=st.lists(st.integers(1, 4), max_size=40),
    size=st.integers(1, 9),
    names=st.sampled_from([[], SPECIAL]),
)
@settings(max_examples=400, deadline=None)
def test_chunks_end_between_pieces(pattern, words, cuts, size, names):
    """Wherever the text is cut on the way in, the chunks' pieces are the whole text's."""
    text, split, special = "".join(words), splitter(pattern), special_pattern(names)
    chunks, rest = [], text
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    out = list(safe_chunks([*chunks, rest], split, names, size=size))
    assert "".join(out) == text
    assert [piece for chunk in out for piece in pieces_of(chunk, split, special)] == pieces_of(text, split, special)


def test_chunks_come_as_soon_as_they_can():
    taken = 0

    def source():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield "some words "

    chunks = safe_chunks(source(), splitter(), size=100)
    first = next(chunks)
    assert taken == 10
    assert 90 < len(first) < 110
    assert sum(map(len, chunks)) == 11 * 1000 - len(first)


def test_a_piece_without_end_is_not_read_again_and_again():
    """A megabyte of one letter in small chunks: the text waiting doubles before it is looked at once more."""
    looked_at = 0

    def split(text):
        nonlocal looked_at
        looked_at += len(text)
        return splitter()(text)

    assert "".join(safe_chunks(["a" * 1000] * 1000, split, size=1000)) == "a" * 1_000_000
    assert looked_at < 4_000_000
