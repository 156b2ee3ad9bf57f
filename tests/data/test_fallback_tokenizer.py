"""The library behind our interface: the same answers as ours, and SentencePiece where ours must pass."""

import json
import logging

import pytest
import tokenizers
from tokenizers import decoders, models

from shared.data.fallback_tokenizer import LibraryTokenizer, load_tokenizer
from shared.data.tokenizer import Tokenizer, TokenizerError
from tests.data.tiny_tokenizers import tiny_backend, tiny_tokenizer


def sentencepiece_backend() -> tokenizers.Tokenizer:
    vocab = {"<unk>": 0, "</s>": 1, "▁": 2, "h": 3, "i": 4, "▁h": 5} | {f"<0x{b:02X}>": 6 + b for b in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "h")], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "</s>"])
    return backend


def test_sentencepiece_spelling():
    tokenizer = LibraryTokenizer(sentencepiece_backend())
    assert tokenizer.encode("▁hié") == [5, 4, 6 + 0xC3, 6 + 0xA9]
    assert tokenizer.decode([5, 4, 6 + 0xC3, 6 + 0xA9]) == " hié"


def test_the_two_agree():
    ours, theirs = tiny_tokenizer(), LibraryTokenizer(tiny_backend(), [261])
    for name in ("vocab_size", "special_tokens", "eos_ids"):
        assert getattr(ours, name) == getattr(theirs, name)
    for text in ("ab ab a<|im_end|>é", ""):
        for allow_special in (False, True):
            ids = theirs.encode(text, allow_special)
            assert ours.encode(text, allow_special) == ids
            assert ours.decode(ids) == theirs.decode(ids) == text
    assert [ours.token_bytes(i) for i in range(262)] == [theirs.token_bytes(i) for i in range(262)]
    assert ours.token_id("Ġab") == theirs.token_id("Ġab")
    for tokenizer in (ours, theirs):
        with pytest.raises(TokenizerError, match="half a character .* at 1"):
            tokenizer.encode("a\ud800")
        with pytest.raises(TokenizerError, match="no token has the id 262"):
            tokenizer.token_bytes(262)
        with pytest.raises(TokenizerError, match="no token 'zz'"):
            tokenizer.token_id("zz")


def test_ours_first_then_the_library(tmp_path, caplog):
    file = tmp_path / "tokenizer.json"
    tiny_backend().save(str(file))
    with caplog.at_level(logging.WARNING):
        assert isinstance(load_tokenizer(tmp_path), Tokenizer)
        assert not caplog.records
        sentencepiece_backend().save(str(file))
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
        tokenizer = load_tokenizer(file)
        assert isinstance(tokenizer, LibraryTokenizer)
        assert tokenizer.eos_ids == {1}
        assert "model.byte_fallback is true" in caplog.text or "decoder" in caplog.text


def test_what_neither_reads(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
    backend = tiny_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match="WordPiece.* not known"):
        LibraryTokenizer(backend)
