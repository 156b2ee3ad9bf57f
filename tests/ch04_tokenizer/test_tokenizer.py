"""Exercises 4.4 and 4.5: judged by ids worked out by hand and by the tokenizers library."""

import random
import unicodedata
from collections.abc import Iterator, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from chapters.ch04_tokenizer import tokenizer
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_raises
from shared.data.tokenizer_json import to_bytes, to_spelling

# 4.4 merge_by_rank


class LookedUp(dict):
    """Ranks that notice when somebody goes through all of them."""

    walked = False

    def __iter__(self) -> Iterator:
        self.walked = True
        return super().__iter__()

    def items(self):
        self.walked = True
        return super().items()

    keys = __iter__


def ranks_of(*pairs: str) -> dict[tuple[bytes, bytes], int]:
    """ "t h" -> (b"t", b"h"), in order of rank."""
    return {tuple(part.encode() for part in pair.split()): rank for rank, pair in enumerate(pairs)}


def merge(piece: bytes, ranks: Mapping[tuple[bytes, bytes], int]) -> list[bytes]:
    got = tokenizer.merge_by_rank(piece, ranks)
    expect(got is not None, because=NO_RESULT)
    expect(isinstance(got, list), because=f"a list of tokens is wanted; yours is a {type(got).__name__}")
    expect(
        all(isinstance(token, bytes) for token in got),
        because=f"tokens are bytes, and {got!r:.60} holds others: list(piece), or a loop over piece, gives integers. "
        "bytes([byte]) makes a token of one",
    )
    return got


@exercise("4.4")
def test_one_pair():
    expect_equal(merge(b"ab", {(b"a", b"b"): 5}), [b"ab"], because="a and b have a rank, so they become one token")
    expect_equal(
        merge(b"ab", {(b"a", b"b"): 0}),
        [b"ab"],
        because="0 is a rank, the best there is. It counts as false: 'ranks.get(pair) or NEVER' and 'if "
        "ranks.get(pair)' take it for none. ranks.get(pair, NEVER) doesn't",
    )


@exercise("4.4")
def test_the_lowest_rank_is_first():
    got = merge(b"abc", ranks_of("b c", "a b"))
    expect_equal(
        got,
        [b"a", b"bc"],
        because="(b,c) was learnt before (a,b), so it is merged first, although it stands further right; "
        "and then no (a,b) is left",
    )


@exercise("4.4")
def test_a_merge_makes_new_neighbours():
    got = merge(b"there", ranks_of("h e", "t he", "r e", "the re"))
    expect_equal(
        got,
        [b"there"],
        because="after a merge the new token has neighbours too, and their ranks count: look again until nothing "
        "merges any more",
    )


@exercise("4.4")
def test_not_the_longest_token():
    ranks = ranks_of("c d", "a b", "ab c")
    expect_equal(
        merge(b"abcd", ranks),
        [b"ab", b"cd"],
        because="BPE replays the merges in the order they were learnt. Taking the longest token from the left "
        "would give 'abc' and 'd', and the model has never seen a text cut like that",
    )


@exercise("4.4")
def test_equal_neighbours_from_the_left():
    got = [merge(b"a" * n, ranks_of("a a", "aa aa")) for n in range(6)]
    want = [[], [b"a"], [b"aa"], [b"aa", b"a"], [b"aaaa"], [b"aaaa", b"a"]]
    expect_equal(got, want, because="of several equal pairs the leftmost is merged first, and pairs may not overlap")


@exercise("4.4")
def test_bytes_nobody_merges():
    expect_equal(
        merge("é!".encode(), ranks_of("a b")),
        [b"\xc3", b"\xa9", b"!"],
        because="bytes are the smallest tokens: what no merge knows stays one token a byte",
    )


@exercise("4.4")
def test_the_ranks_are_looked_up():
    ranks = LookedUp({(bytes([a]), bytes([b])): 256 * a + b for a in range(97, 123) for b in range(97, 123)})
    got = merge(b"zyx", ranks)
    expect_equal(got, [b"z", b"yx"], because="of (z,y) and (y,x) the second has the lower rank")
    expect(
        not ranks.walked,
        because="going through all the merges for every pretoken is right and far too slow: a real model has 48,900, "
        "and a word has five pairs. Look the word's pairs up in ranks",
    )


@exercise("4.4")
def test_equal_to_the_library():
    words = ["the", "then", "there", "other", "mother", "bathe", "heat", "eat", "tea", "中文", "中国", "naïve"]
    rng = random.Random(0)
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator([" ".join(rng.choices(words, k=200))], trainer)
    state = library.model.__getstate__()
    ranks = merges_of(state)
    for _ in range(300):
        piece = "".join(rng.choices([*words, *"thearmob", "中", "ï"], k=rng.randint(1, 4)))
        want = [to_bytes(token.value) for token in library.model.tokenize(to_spelling(piece.encode()))]
        expect_equal(
            merge(piece.encode(), ranks),
            want,
            because=f"the tokens of {piece!r} are not those of the tokenizers library with the same merges",
        )


def merges_of(state: bytes) -> Mapping[tuple[bytes, bytes], int]:
    import json

    pairs = json.loads(state)["merges"]
    return {(to_bytes(first), to_bytes(second)): rank for rank, (first, second) in enumerate(pairs)}


# 4.5 decode


def byte_tokenizer(*extra: bytes) -> tokenizer.Tokenizer:
    """Ids 0 to 255 are the bytes, then come `extra`."""
    return tokenizer.Tokenizer(dict(enumerate([*(bytes([byte]) for byte in range(256)), *extra])), [], ["<|end|>"])


def decoded(ids: object, *extra: bytes) -> str:
    try:
        return byte_tokenizer(*extra).decode(ids)
    except UnicodeDecodeError as error:
        return f"UnicodeDecodeError: {error}"


@exercise("4.5")
def test_a_character_may_be_spread_over_tokens():
    expect_equal(
        decoded([0xC3, 0xA9]),
        "é",
        because="é is two bytes, here two tokens, and neither is a character: join the bytes of all tokens first, "
        "then decode once",
    )
    expect_equal(
        decoded([256, 257], "中".encode()[:2], "中文".encode()[2:]),
        "中文",
        because="a token may end in the middle of one character and the next begin there: join the bytes first",
    )


@exercise("4.5")
def test_broken_bytes_show():
    expect_equal(
        decoded([97, 0xFF, 98]),
        "a\ufffdb",
        because="a model may write any byte. One that is no character becomes U+FFFD: an error would lose the "
        "whole answer, and dropping it would hide that something is wrong",
    )
    expect_equal(decoded([97, 0xF0, 0x9F]), "a\ufffd", because="half an emoji at the end is one U+FFFD")


@exercise("4.5")
def test_plain_and_special():
    expect_equal(decoded([]), "", because="no ids, no text")
    expect_equal(decoded([72, 105, 256]), "Hi<|end|>", because="special tokens are written out by their names")
    expect_equal(decoded(iter([72, 105])), "Hi", because="ids may come one by one; go through them once only")


@exercise("4.5")
def test_any_text_comes_back():
    rng = random.Random(0)
    for _ in range(100):
        text = "".join(rng.choices("aé中🙂\n \u0301\u200b", k=12))
        data, pieces = text.encode(), []
        while data:
            cut = rng.randint(1, 5)
            pieces.append(data[:cut])
            data = data[cut:]
        known = list(dict.fromkeys(piece for piece in pieces if len(piece) > 1))
        ids = [piece[0] if len(piece) == 1 else 256 + known.index(piece) for piece in pieces]
        got = decoded(ids, *known)
        expect(
            got == text
            or not isinstance(got, str)
            or unicodedata.normalize("NFC", got) != unicodedata.normalize("NFC", text),
            because=f"{ascii(text)} came back as {ascii(got)}: it looks the same, for letters and their accents were "
            "put together (NFC) or taken apart. What was encoded has to come back, character for character",
        )
        expect_equal(got, text, because="wherever the tokens cut the bytes, the text must come back")


@exercise("4.5")
def test_an_unknown_id_is_an_error():
    with expect_raises(
        tokenizer.TokenizerError,
        because="no token has the id 99999. Left out, a wrong tokenizer would go unnoticed; self.token_bytes(id) "
        "raises TokenizerError, which says so",
    ):
        byte_tokenizer().decode([72, 99_999])
