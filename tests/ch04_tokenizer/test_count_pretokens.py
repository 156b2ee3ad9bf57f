"""Exercise 4.1: judged by counts made by hand, and by the tokenizers library's pre-tokenizer."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from tokenizers import pre_tokenizers

from chapters.ch04_tokenizer import bpe
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from shared.data.pretokens import Split, splitter
from shared.data.tokenizer_json import to_bytes

SPLIT = splitter()


def counted(text: str, split: Split, special_tokens: Sequence[str] = ()) -> Mapping[str, int]:
    got = bpe.count_pretokens(text, split, special_tokens)
    expect(got is not None, because=NO_RESULT)
    expect(
        isinstance(got, Mapping),
        because=f"a Counter is wanted, which says how often each pretoken occurs; yours is a {type(got).__name__}",
    )
    return got


@exercise("4.1")
def test_words_keep_their_space():
    got = counted("to be or not to be", SPLIT)
    expect_equal(
        dict(got),
        {"to": 1, " be": 2, " or": 1, " not": 1, " to": 1},
        because="a pretoken is what split(text) gives, with the space before the word; text.split() throws the "
        "spaces away, and they could never be decoded again",
    )


@exercise("4.1")
def test_a_special_token_is_not_text():
    got = counted("ab<|end|>cd", SPLIT, ["<|end|>"])
    expect(
        "<|" not in got and "end" not in got and "|>" not in got,
        because="the special token was cut up and counted like ordinary text; cut the text at special tokens first, "
        "then split only what lies between (every second part of special_pattern(...).split)",
    )
    expect(
        "<|end|>" not in got,
        because="the special token itself was counted; it is no pretoken, and nothing in it is ever merged",
    )


@exercise("4.1")
def test_the_two_sides_stay_apart():
    got = dict(counted("ab<|end|>cd", SPLIT, ["<|end|>"]))
    expect(
        "abcd" not in got,
        because="what stands before a special token and what stands after it are two texts: taken out and joined "
        "they make 'abcd', a word that is in neither, and a merge could reach across",
    )
    expect(
        got not in ({"ab": 1}, {"cd": 1}),
        because=f"only {next(iter(got), '')!r} was counted, one part of the two. counts = Counter(...) inside the loop "
        "begins anew with every part, and a return inside it ends with the first; counts.update(...) adds",
    )
    expect_equal(got, {"ab": 1, "cd": 1}, because="'ab<|end|>cd' has the pretokens 'ab' and 'cd', once each")


@exercise("4.1")
def test_capitals_count():
    expect_equal(
        dict(counted("The the", SPLIT)),
        {"The": 1, " the": 1},
        because="a pretoken is text as it stands, with its capitals: in lower case it could never be decoded again",
    )


@exercise("4.1")
def test_the_longer_special_token_wins():
    for names in (["<|a|>", "<|a|>b"], ["<|a|>b", "<|a|>"]):
        expect_equal(
            dict(counted("x<|a|>by", SPLIT, names)),
            {"x": 1, "y": 1},
            because="where one special token is the beginning of another, the longer one is meant, in whatever order "
            "they are given. A pattern of your own tries them in that order; special_pattern puts the longest first",
        )


@exercise("4.1")
def test_parts_are_split_one_by_one():
    got = counted("a  <|x|>  b<|y|>c", SPLIT, ["<|x|>", "<|y|>"])
    expect_equal(
        dict(got),
        {"a": 1, "  ": 1, " ": 1, " b": 1, "c": 1},
        because="white space before a special token ends a text, white space after one begins a text; each part "
        "must be split by itself",
    )


@exercise("4.1")
def test_counts_are_those_of_the_library():
    rng = random.Random(0)
    words = ["it's", " ", "  ", "\n", "naïve", " 12", "3.5", "!?", "中文", "🙂", "\t", " the", "<|end|>", "'ll", "²"]
    library = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for _ in range(50):
        text = "".join(rng.choices(words, k=20))
        parts = text.split("<|end|>")
        want = Counter(to_bytes(piece).decode() for part in parts for piece, _ in library.pre_tokenize_str(part))
        expect_equal(
            dict(counted(text, SPLIT, ["<|end|>"])),
            dict(want),
            because=f"the counts for {text!r} are not those of the tokenizers library",
        )
