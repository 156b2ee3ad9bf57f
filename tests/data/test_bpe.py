"""Training: the judge is a plain loop that counts all pairs again for each merge, written here for itself."""

import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from shared.data import bpe
from shared.data.bpe import learn_merges, train_bpe
from shared.data.tokenizer_json import to_bytes

WORDS = re.compile(r" ?[^ ]+| ")  # what GPT-2's pattern does with letters and single spaces


def plain_bpe(text: str, n_merges: int, special_tokens=()) -> list[tuple[bytes, bytes]]:
    """Every merge counts every pair of every word again."""
    parts = re.split("|".join(map(re.escape, special_tokens)), text) if special_tokens else [text]
    words = [[bytes([b]) for b in word.encode()] for part in parts for word in WORDS.findall(part)]
    merges = []
    for _ in range(n_merges):
        counts = Counter((word[k], word[k + 1]) for word in words for k in range(len(word) - 1))
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for word in words:
            k = 0
            while k < len(word) - 1:
                if (word[k], word[k + 1]) == best:
                    word[k : k + 2] = [word[k] + word[k + 1]]
                k += 1
    return merges


def train(tmp_path, text, vocab_size, special_tokens=(), **options):
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return train_bpe(path, vocab_size, special_tokens, **options)


def test_by_hand(tmp_path):
    vocab, merges = train(tmp_path, "hug hug hug hugs pun", 259)
    # " h" stands 3 times, "u g" 4, "h u" 4: (u, g) is the greater of the two that stand 4 times.
    assert merges == [(b"u", b"g"), (b"h", b"ug"), (b" ", b"hug")]
    assert [vocab[i] for i in (0, 65, 255, 256, 257, 258)] == [b"\0", b"A", b"\xff", b"ug", b"hug", b" hug"]
    assert len(vocab) == 259


def test_special_tokens_come_after_the_bytes_and_cut_the_text(tmp_path):
    special = ["<|end|>", "<|pad|>"]
    vocab, merges = train(tmp_path, "ab<|end|>ab<|end|>ab", 300, special)
    assert (vocab[256], vocab[257]) == (b"<|end|>", b"<|pad|>")
    assert merges == [(b"a", b"b")]
    assert vocab[258] == b"ab"


def test_it_stops_when_no_pair_is_left(tmp_path):
    for text, want in (("ab", [(b"a", b"b")]), ("a", []), ("", []), (" ", []), ("<|end|>", [])):
        vocab, merges = train(tmp_path, text, 1000, ["<|end|>"])
        assert merges == want
        assert len(vocab) == 257 + len(want)


def test_ties_go_to_the_greater_pair(tmp_path):
    # Each pair stands once; compared as bytes, longer is greater than its own beginning.
    assert train(tmp_path, "az ba ab", 259)[1][0] == (b"b", b"a")
    assert train(tmp_path, "ab ac", 258)[1][:2] == [(b"a", b"c"), (b"a", b"b")]


@given(
    st.text("ab c", max_size=60),
    st.integers(0, 12),
    st.sampled_from([(), ("<|end|>",), ("ab",)]),
)
@settings(max_examples=200, deadline=None)
def test_equal_to_a_full_recount(tmp_path_factory, text, n_merges, special_tokens):
    text = re.sub(" +", " ", text)
    path = tmp_path_factory.getbasetemp() / "recount.txt"
    path.write_text(text)
    vocab, merges = train_bpe(path, 256 + len(special_tokens) + n_merges, special_tokens)
    want = plain_bpe(text, n_merges, special_tokens)
    assert merges[: len(want)] == want
    assert list(vocab.values())[256 + len(special_tokens) :] == list(dict.fromkeys(map(b"".join, merges)))


def test_equal_to_a_full_recount_on_a_longer_text(tmp_path):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdeé", k=rng.randint(1, 9))) for _ in range(80)]
    text = " ".join(rng.choices(words, weights=[1 / (i + 1) for i in range(80)], k=1500))
    assert train(tmp_path, text, 256 + 150)[1] == plain_bpe(text, 150)


def test_equal_to_the_library_where_there_are_no_ties(tmp_path):
    """ "ab" more often than "abc", that more often than "abcd", and so on: no two pairs are ever equally frequent."""
    texts = []
    for word, often in (("abcdefgh", 50), ("stuvwxyz", 37), ("中文é", 11)):
        texts += [word[:n] for n in range(2, len(word) + 1) for _ in range(often + 7 * n)]
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    library.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=267, **options))
    pairs = json.loads(library.to_str())["model"]["merges"]
    _, merges = train(tmp_path, "<|end|>".join(texts), 268, ["<|end|>"])
    assert merges == [(to_bytes(first), to_bytes(second)) for first, second in pairs]
    assert len(merges) == 11


def test_the_merges_as_they_come():
    found = list(learn_merges({"hug": 10, "hugs": 5, "pun": 12}))
    assert found[:3] == [((b"u", b"g"), 15), ((b"h", b"ug"), 15), ((b"u", b"n"), 12)]
    counts = [count for _, count in found]
    assert counts == sorted(counts, reverse=True)
    assert list(learn_merges({})) == []


@pytest.mark.parametrize("block", [4, 7, 64])
def test_the_size_of_the_blocks_does_not_show(tmp_path, monkeypatch, block):
    text = "it's naïve 中文中文 🙂🙂 <|end|> don't 'll <|end|>it's\r\n\r\n  x" * 3
    want = train(tmp_path, text, 300, ["<|end|>"])
    monkeypatch.setattr(bpe, "BLOCK", block)
    assert train(tmp_path, text, 300, ["<|end|>"]) == want


def test_line_ends_stay_as_they_are(tmp_path):
    _, merges = train(tmp_path, "a\r\nb\r\nc\r\n", 257)
    assert merges == [(b"\r", b"\n")]


@pytest.mark.parametrize("block", [4, 5, 2**20])
@pytest.mark.parametrize(
    ("data", "place"), [(b"abcdef\xffgh", 6), (b"abcd\xc3", 4), (b"ab\xc3\xa9\xc3\xa9\xe4\xb8x", 6)]
)
def test_a_file_that_is_not_utf8(tmp_path, monkeypatch, block, data, place):
    monkeypatch.setattr(bpe, "BLOCK", block)
    with pytest.raises(ValueError, match=rf"text\.txt is not UTF-8 at byte {place} "):
        train(tmp_path, data, 300)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="vocab_size must be at least 257, .* 1 special tokens; got 256"):
        train(tmp_path, "ab", 256, ["<|end|>"])
    with pytest.raises(ValueError, match="twice: a, a"):
        train(tmp_path, "ab", 300, ["a", "a"])
    with pytest.raises(ValueError, match="empty"):
        train(tmp_path, "ab", 300, [""])
    with pytest.raises(ValueError, match="capturing group"):
        train(tmp_path, "ab", 300, pattern="(a)")
    with pytest.raises(FileNotFoundError):
        train_bpe(tmp_path / "nothing.txt", 300)


def test_the_pattern_decides(tmp_path):
    assert train(tmp_path, "a1a1", 257, pattern=r"[a-z]\p{N}")[1] == [(b"a", b"1")]
    assert train(tmp_path, "a1a1", 257, pattern=r"\p{L}|\p{N}")[1] == []


def test_progress(tmp_path, capsys):
    assert train(tmp_path, "hug hugs", 260, progress=True) == train(tmp_path, "hug hugs", 260)
