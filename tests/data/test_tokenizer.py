"""The tokenizer, by a tiny one whose ids can be worked out by hand."""

import json
import random
import tracemalloc

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from shared.data.bpe import train_bpe
from shared.data.pretokens import GPT2_DIGITS
from shared.data.tokenizer import PieceCache, Tokenizer, TokenizerError, merge_by_rank, merge_long
from tests.data.test_pretokens import LLAMA3
from tests.data.tiny_tokenizers import CORPUS, from_backend, tiny_backend, tiny_tokenizer


@pytest.fixture(scope="module")
def tiny():
    return tiny_tokenizer()


def test_ids_by_hand(tiny):
    assert tiny.encode("ab ab a") == [256, 257, 32, 97]
    assert tiny.encode("é") == [0xC3, 0xA9]
    assert tiny.encode("") == []
    assert tiny.vocab_size == 262
    assert tiny.special_tokens == {"<|endoftext|>": 259, "<|im_start|>": 260, "<|im_end|>": 261}
    assert tiny.eos_ids == frozenset({261})
    assert tiny.token_id("<|im_end|>") == 261
    assert tiny.token_id("Ġab") == 257


def test_special_tokens_are_text_unless_allowed(tiny):
    text = "a<|im_end|>"
    assert tiny.encode(text, allow_special=True) == [97, 261]
    assert tiny.encode(text) == [97, 258, *b"im", *b"_", *b"end", *b"|>"]


def test_token_bytes(tiny):
    assert [tiny.token_bytes(i) for i in (0, 32, 255, 256)] == [b"\0", b" ", b"\xff", b"ab"]
    assert [tiny.token_bytes(i) for i in (257, 261)] == [b" ab", b"<|im_end|>"]
    assert b"".join(map(tiny.token_bytes, range(256))) == bytes(range(256))


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_and_holds_no_special_token(text):
    tiny = tiny_tokenizer()
    for spoiled in (text, text + "<|im_end|>", f"<|im_start|>{text}<|endoftext|>"):
        ids = tiny.encode(spoiled)
        assert max(ids, default=0) < 259
        assert b"".join(map(tiny.token_bytes, ids)) == spoiled.encode()
        assert tiny.decode(ids) == spoiled


def test_half_a_character_decodes_to_a_replacement(tiny):
    assert tiny.decode([0xC3]) == "\ufffd"
    assert tiny.decode([0xC3, 0xA9]) == "é"


def test_bad_input_is_named(tiny, tmp_path):
    for id in (-1, 262, 10**6):
        with pytest.raises(TokenizerError, match=f"no token has the id {id}; there are 262"):
            tiny.token_bytes(id)
    with pytest.raises(TokenizerError, match="no token '<nope>'"):
        tiny.token_id("<nope>")
    for allow_special in (False, True):
        with pytest.raises(TokenizerError, match="half a character .* at 2"):
            tiny.encode("ab\ud83d", allow_special)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_an_unknown_character_cannot_become_a_special_token():
    """With `unk` set to the end-of-text token, a character outside the vocabulary would end the text."""
    backend = tokenizers.Tokenizer(models.BPE({"<|endoftext|>": 0, "a": 1, "b": 2}, [], unk_token="<|endoftext|>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    assert backend.encode("a?b").ids == [1, 0, 2]
    assert from_backend(backend).encode("a?b") == [1, 2]


def test_added_tokens_that_are_not_special_stay_tokens():
    backend = tiny_backend()
    backend.add_tokens([AddedToken("<tab>", special=False)])
    tokenizer = from_backend(backend)
    assert tokenizer.encode("a<tab>b") == [97, 262, 98]
    assert tokenizer.token_bytes(262) == b"<tab>"
    assert "<tab>" not in tokenizer.special_tokens


BYTES = {byte: bytes([byte]) for byte in range(256)}


def test_special_tokens_get_the_next_ids_unless_they_have_one():
    tokenizer = Tokenizer(BYTES | {256: b"<a>"}, [], ["<a>", "<b>", "<c>", "<b>"])
    assert tokenizer.special_tokens == {"<a>": 256, "<b>": 257, "<c>": 258}
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("x<b><a>", allow_special=True) == [120, 257, 256]
    assert Tokenizer(BYTES, [], {"<x>": 300}).encode("<x>", allow_special=True) == [300]
    assert Tokenizer(BYTES, []).encode("<x>", allow_special=True) == list(b"<x>")


def test_the_longer_special_token_wins():
    tokenizer = Tokenizer(BYTES, [], ["<e>", "<e><e>"])
    assert tokenizer.encode("<e><e><e>", allow_special=True) == [257, 256]


def test_a_merge_cannot_make_a_special_token():
    """Else the text "ab" would come out as the special token, whoever wrote it."""
    vocab, merges = BYTES | {256: b"ab"}, [(b"a", b"b")]
    assert Tokenizer(vocab, merges).encode("ab") == [256]
    with pytest.raises(TokenizerError, match=r"merges\[0\] makes b'ab' .* not all of them are ordinary tokens"):
        Tokenizer(vocab, merges, ["ab"])
    with pytest.raises(TokenizerError, match=r"merges\[0\] makes b'ab'"):
        Tokenizer(BYTES, merges)
    with pytest.raises(TokenizerError, match="eos_ids holds 999"):
        Tokenizer(BYTES, [], eos_ids=[999])
    with pytest.raises(ValueError, match="empty"):
        Tokenizer(BYTES, [], [""])


def test_whole_pretokens_first_where_the_model_wants_it():
    """Llama 3's ignore_merges: "abc" is in the vocabulary, and the merges would never get there."""
    vocab = BYTES | {256: b"bc", 257: b"abc"}
    assert Tokenizer(vocab, [(b"b", b"c")]).encode("abc") == [97, 256]
    tokenizer = Tokenizer(vocab, [(b"b", b"c")], ignore_merges=True)
    assert tokenizer.encode("abc") == [257]
    assert tokenizer.encode("abcd") == [97, 256, 100]


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_the_heap_finds_the_same_merges(piece):
    rng = random.Random(0)
    pieces, ranks = [bytes([b]) for b in b"abc\x00\xff"], {}
    for rank in range(40):
        pair = (rng.choice(pieces), rng.choice(pieces))
        ranks.setdefault(pair, rank)
        pieces.append(pair[0] + pair[1])
    piece = bytes(b"abc\x00\xff"[b % 5] for b in piece)
    assert merge_long(piece, ranks) == merge_by_rank(piece, ranks)
    assert b"".join(merge_long(piece, ranks)) == piece


def test_a_very_long_pretoken_takes_no_longer_than_others():
    """In a quarter of a million rounds over a quarter of a million ranks this would take hours."""
    tokenizer = Tokenizer(BYTES | {256: b"aa", 257: b"aaaa"}, [(b"a", b"a"), (b"aa", b"aa")])
    assert tokenizer.encode("a" * 250_001) == [257] * 62_500 + [97]


def test_the_cache_of_pretokens_is_bounded():
    asked = []
    cache = PieceCache(lambda piece: asked.append(piece) or [len(piece)], limit=10, longest=20)
    for i in range(1000):
        assert cache[str(i % 12)] == [len(str(i % 12))]
        assert len(cache) <= 10
    asked.clear()
    assert cache["x" * 21] == cache["x" * 21] == [21]
    assert asked == ["x" * 21] * 2


TEXTS_IN_PIECES = st.lists(st.one_of(st.sampled_from(["ab", " ab", "<|im_", "end|>", "'", "re", "  ", "\n", "é", "🙂"]),
                                     st.text(max_size=5)), max_size=20)  # fmt: skip


@given(TEXTS_IN_PIECES, st.booleans())
@settings(max_examples=300, deadline=None)
def test_pieces_of_a_text_get_the_ids_of_the_whole(pieces, allow_special):
    tiny = tiny_tokenizer()
    whole = tiny.encode("".join(pieces), allow_special)
    assert list(tiny.encode_iterable(iter(pieces), allow_special)) == whole


def test_a_long_stream_needs_little_memory(tiny):
    """Two megabytes go through. Their pretokens alone, as Python objects, would take 30 MB."""
    line = "ab ab 12 and <|im_end|> so on, it's a line like any other\n" * 10
    list(tiny.encode_iterable([line]))
    tracemalloc.start()
    count = sum(1 for _ in tiny.encode_iterable(line for _ in range(2_000_000 // len(line))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == len(tiny.encode(line)) * (2_000_000 // len(line))
    assert peak < 6 * 2**20


def test_a_stream_is_read_as_it_is_needed(tiny):
    def endless():
        while True:
            yield "ab ab "

    ids = tiny.encode_iterable(endless())
    assert [next(ids) for _ in range(4)] == [256, 257, 257, 257]


@pytest.mark.parametrize("pattern", [None, GPT2_DIGITS, LLAMA3])
def test_saved_and_loaded_by_us_and_by_the_library(tmp_path, pattern):
    text = tmp_path / "text.txt"
    text.write_text(CORPUS)
    options = {} if pattern is None else {"pattern": pattern}
    vocab, merges = train_bpe(text, 400, ["<|end|>", "<|pad|>"], **options)
    tokenizer = Tokenizer(vocab, merges, ["<|end|>", "<|pad|>"], **options, added_tokens=["<tab>"], eos_ids=[256])
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    for name in ("vocab", "merges", "special_tokens", "added_tokens", "pattern", "eos_ids", "vocab_size"):
        assert getattr(again, name) == getattr(tokenizer, name), name
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    for sample in (CORPUS, CORPUS[::-1], "a<|end|>b<tab> <|pad|><|pad", "", "  \n 3 33"):
        ids = library.encode(sample).ids
        assert again.encode(sample, allow_special=True) == tokenizer.encode(sample, allow_special=True) == ids
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False) == sample


def test_save_keeps_what_else_stands_in_the_config(tmp_path, tiny):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "eos_token_id": 5}')
    tiny.save(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"temperature": 0.2, "eos_token_id": [261]}
    tiny.save(tmp_path / "alone.json")
    assert Tokenizer.load(tmp_path / "alone.json").vocab == tiny.vocab


@pytest.mark.parametrize(
    ("generation", "config", "want"),
    [
        ({"eos_token_id": 259}, {"eos_token_id": [260]}, {259, 260, 261}),  # <|im_end|>, 261, ends a turn in any case
        ({"eos_token_id": [259, 261]}, {}, {259, 261}),
        ({}, {"eos_token_id": None}, {261}),
        (None, None, {261}),
    ],
)
def test_end_tokens_from_all_files(tmp_path, generation, config, want):
    tiny_backend().save(str(tmp_path / "tokenizer.json"))
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path).eos_ids == want
    assert Tokenizer.load(tmp_path / "tokenizer.json").eos_ids == want
