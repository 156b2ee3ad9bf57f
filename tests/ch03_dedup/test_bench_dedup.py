"""The benchmark of deduplication: its truth against a plain count, and its peers' share of it."""

import json
import sys

import pytest

from shared.data import bench_dedup
from shared.data.bench_dedup import all_pairs
from tests.ch03_dedup.documents import corpus, write


def test_all_pairs_are_all_pairs():
    texts = list(dict.fromkeys(corpus(300, seed=4)))
    sets = [{*zip(*(t.split()[i:] for i in range(5)), strict=False)} or {tuple(t.split())} for t in texts]
    for threshold in (0.3, 0.6, 0.85, 1.0):
        want = {}
        for i in range(len(texts)):
            for j in range(i + 1, len(texts)):
                similarity = len(sets[i] & sets[j]) / len(sets[i] | sets[j])
                if similarity >= threshold:
                    want[i, j] = similarity
        assert {(i, j): s for i, j, s in all_pairs(texts, threshold)} == pytest.approx(want)
    assert all_pairs(["", "a"]) == []


class PlainRensa:
    """Stands in for rensa: keeps what it hasn't seen."""

    class RMinHashDeduplicator:
        def __init__(self, threshold, num_perm, use_lsh):
            self.seen = set()

        def add_pairs(self, entries):
            kept = []
            for _, members in entries:
                kept.append(frozenset(members) not in self.seen)
                self.seen.add(frozenset(members))
            return kept


def test_the_benchmark(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_dedup, "make_corpus", lambda kind, progress: write(tmp_path / kind, corpus(400)))
    monkeypatch.setitem(sys.modules, "rensa", PlainRensa)
    report = bench_dedup.bench_dedup(documents=300, repeats=1, progress=False)
    assert report["precision"] == 1.0
    assert report["recall"] >= 0.99
    assert report["true_pairs"] > 10
    assert report["documents"] == 300
    assert report["kept"] <= report["rensa_kept"] < 300
    for key in ("docs_per_s", "rensa_docs_per_s", "datasketch_docs_per_s", "bytes_per_doc"):
        assert report[key] > 0
    assert json.loads(json.dumps(report)) == report


def test_the_benchmark_says_when_its_peer_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(RuntimeError, match=r"pip install 'your-own-parts\[bench\]'"):
        bench_dedup.bench_dedup(progress=False)


def test_datasketch_finds_its_pairs():
    texts = corpus(200, seed=5)
    truth = {(i, j) for i, j, _ in all_pairs(texts)}
    found = set(bench_dedup.run_datasketch(texts, params=(16, 8)))
    assert len(found & truth) >= 0.8 * len(truth)
