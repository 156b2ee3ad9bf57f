"""Held-out documents: in no other split, no copies, the same ones every time."""

import hashlib
import json
import os

import pytest

from shared.evaluation import held_out


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    path = tmp_path / "docs.jsonl"

    def make_corpus(kind, progress):
        assert kind == "docs"
        return path

    monkeypatch.setattr(held_out, "make_corpus", make_corpus)

    def write(records):
        path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
        return path

    write([{"text": text(i), "source": f"file{i % 97}.py"} for i in range(600)])
    return write


def text(i: int) -> str:
    return " ".join(hashlib.sha256(f"{i}.{k}".encode()).hexdigest() for k in range(6))


def part_of(source: str) -> float:
    """Where the splitter of chapter 2 puts a source, between 0 and 1; the test split is the last tenth."""
    return int.from_bytes(hashlib.sha256(f"0:{source}".encode()).digest()[:8], "big") / 2**64


def test_from_the_test_split_only(corpus):
    good = {text(i) for i in range(600) if part_of(f"file{i % 97}.py") >= 0.9}
    found = held_out.held_out_documents(20)
    assert len(set(found)) == 20
    assert set(found) <= good
    assert len(good) < 120


def test_the_same_ones(corpus):
    assert held_out.held_out_documents(10, seed=1) == held_out.held_out_documents(10, seed=1)
    assert held_out.held_out_documents(10, seed=1) != held_out.held_out_documents(10, seed=2)


def test_a_copy_of_a_training_document_is_not_held_out(corpus):
    train = next(f"file{i}.py" for i in range(97) if part_of(f"file{i}.py") < 0.8)
    test = next(f"file{i}.py" for i in range(97) if part_of(f"file{i}.py") >= 0.9)
    corpus([{"text": text(0), "source": train}, {"text": text(0), "source": test}, {"text": text(1), "source": test}])
    assert held_out.held_out_documents(1) == [text(1)]
    with pytest.raises(ValueError, match="2 documents were asked for, and the test split has 1"):
        held_out.held_out_documents(2)


def test_made_again_when_the_corpus_is(corpus):
    held_out.held_out_documents(1)
    test = next(f"file{i}.py" for i in range(97) if part_of(f"file{i}.py") >= 0.9)
    path = corpus([{"text": text(1000), "source": test}])
    later = path.with_name("docs.unique.jsonl").stat().st_mtime + 10
    os.utime(path, (later, later))
    assert held_out.held_out_documents(1) == [text(1000)]


def test_no_control_characters(corpus):
    test = next(f"file{i}.py" for i in range(97) if part_of(f"file{i}.py") >= 0.9)
    corpus([{"text": f"one\x07two {text(0)}", "source": test}])
    assert held_out.held_out_documents(1) == [f"onetwo {text(0)}"]
