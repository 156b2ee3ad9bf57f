"""The benchmark runs on a small corpus, and refuses to compare unequal work."""

import os
import types

import pytest

from shared.data import bpe, tokenizer
from shared.data.bench_bpe import bench_bpe, take_documents

DOCUMENTS = ["the cat sat on the mat, and the dog didn't.", "12 cafés, 中文 🙂", "x = [1, 2, 3]\n\n  y"] * 20


def test_report(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    report = bench_bpe(300, repeats=1, documents=DOCUMENTS)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    assert all(report[key] > 0 for key in ("train_s", "tokenizers_train_s", "encode_mb_s", "tokenizers_encode_mb_s"))
    assert (report["documents"], report["vocab_size"]) == (60, 300)
    assert report["bytes"] == len("".join(DOCUMENTS).encode())
    assert bench_bpe(300, repeats=1, documents=DOCUMENTS)["tokens"] == report["tokens"]
    assert "TOKENIZERS_PARALLELISM" not in os.environ


def test_unequal_work_is_refused():
    class Wrong(tokenizer.Tokenizer):
        def encode(self, text, allow_special=False):
            return super().encode(text, allow_special)[1:]

    with pytest.raises(RuntimeError, match="different ids"):
        bench_bpe(300, repeats=1, documents=DOCUMENTS, tokenizer=types.SimpleNamespace(Tokenizer=Wrong))

    def lazy(path, vocab_size, special_tokens):
        return bpe.train_bpe(path, 260, special_tokens)

    with pytest.raises(RuntimeError, match="our merges make"):
        bench_bpe(300, repeats=1, documents=DOCUMENTS, bpe=types.SimpleNamespace(train_bpe=lazy))


def test_documents_until_there_are_enough():
    documents = take_documents(20_000)
    total = sum(len(text.encode()) for text in documents)
    assert total >= 20_000
    assert total - len(documents[-1].encode()) < 20_000
