"""Files, from end to end: what is kept, what is told, what bad input gets, and a run that is stopped."""

import gzip
import json
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from chapters import ROOT
from shared.data import dedup, dedup_job
from shared.data.bench_dedup import all_pairs
from shared.data.dedup import deduplicate, first_equal, main
from shared.data.duplicates import near_duplicates
from tests.ch03_dedup.documents import corpus, ids, write


def expected(texts: list[str]) -> list[int]:
    """Clusters of all pairs compared, the first of each kept."""
    kept = [texts.index(text) for text in texts]
    for i, j, _ in all_pairs(texts):
        a, b = sorted((kept[i], kept[j]))
        kept = [a if k == b else k for k in kept]
    return kept


def test_a_file(tmp_path):
    texts = corpus(600)
    out = tmp_path / "new" / "out.jsonl"
    report = deduplicate(write(tmp_path / "in.jsonl", texts), out, progress=False)
    kept = expected(texts)
    assert ids(out) == sorted(set(kept))
    assert out.read_bytes().splitlines()[0] == (tmp_path / "in.jsonl").read_bytes().splitlines()[0]
    assert (report.documents, report.kept) == (600, len(set(kept)))
    assert report.exact == sum(texts.index(text) != i for i, text in enumerate(texts))
    assert report.exact + report.near + report.kept == 600
    assert report.near > 20
    rows = [json.loads(line) for line in report.removed.read_text().splitlines()]
    assert [(row["line"], row["kept_line"]) for row in rows] == [(i + 1, k + 1) for i, k in enumerate(kept) if i != k]
    for row in rows:
        a, b = (
            {*zip(*(texts[row[key] - 1].split()[i:] for i in range(5)), strict=False)} for key in ("line", "kept_line")
        )
        if a and b:
            assert row["similarity"] == pytest.approx(len(a & b) / len(a | b), abs=1e-4)
    assert sum(row["kind"] == "exact" for row in rows) == report.exact
    assert f"{report.kept} kept" in str(report)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.jsonl", "out.removed.jsonl"]


def test_the_file_way_is_the_memory_way(tmp_path):
    texts = corpus(800, seed=1) + ["", "数据清洗", " ", "one"]
    for threshold in (0.6, 1.0):
        out = tmp_path / f"{threshold}.jsonl"
        deduplicate(write(tmp_path / "in.jsonl", texts), out, threshold, num_perm=64, ngram=3, progress=False)
        kept = near_duplicates(texts, threshold, num_perm=64, ngram=3).kept
        assert ids(out) == [i for i, k in enumerate(kept) if i == k]


def test_a_large_cluster_costs_one_comparison_a_member(tmp_path):
    page = " ".join(f"menu{i}" for i in range(100))
    texts = [f"{page} {i}" for i in range(3000)]
    report = deduplicate(write(tmp_path / "in.jsonl", texts), tmp_path / "out.jsonl", progress=False)
    assert ids(tmp_path / "out.jsonl") == [0]
    assert report.compared < 3 * len(texts)


def test_divided_buckets():
    keys, clusters = np.array([5, 7, 5, 7, 5, 9]), np.array([0, 1, 0, 3, 0, 5])
    assert dedup.in_divided_buckets(keys, clusters).tolist() == [False, True, False, True, False, False]
    assert dedup.in_divided_buckets(np.zeros(0, np.uint64), np.zeros(0, np.int64)).tolist() == []


def test_lines_stay_as_they_are(tmp_path):
    lines = [
        b'{"text": "a\\u00e9 b", "x": 1}',
        b"",
        '{"text":  "数据"}'.encode(),
        b'{"text": "a\xc3\xa9 b"}\r',
        b'{"text": "last"}',
    ]
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    report = deduplicate(tmp_path / "in", tmp_path / "out", progress=False)
    assert (tmp_path / "out").read_bytes() == b"\xef\xbb\xbf" + lines[0] + b"\n" + lines[2] + b"\n" + lines[4] + b"\n"
    assert json.loads(report.removed.read_text()) == {"line": 4, "kept_line": 1, "kind": "exact", "similarity": 1.0}
    assert report.removed.name == "out.removed.jsonl"


def test_an_empty_file(tmp_path):
    (tmp_path / "in").write_bytes(b"\n\n")
    report = deduplicate(tmp_path / "in", tmp_path / "out", progress=False)
    assert (report.documents, report.kept, (tmp_path / "out").read_bytes()) == (0, 0, b"")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": 3}', "text is not a string: int"),
        (b"[1]", "not an object"),
        (b'{"txt": ""}', "no text: it has txt"),
        (b'{"text": "a', "not JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
    ],
)
def test_bad_lines(tmp_path, line, reason):
    (tmp_path / "in").write_bytes(b'{"text": "good", "id": 0}\n\n' + line + b'\n{"text": "too", "id": 1}\n')
    with pytest.raises(ValueError, match=reason) as error:
        deduplicate(tmp_path / "in", tmp_path / "out", progress=False)
    assert f"{tmp_path / 'in'}:3: " in str(error.value)
    assert "--skip-bad" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    report = deduplicate(tmp_path / "in", tmp_path / "out", skip_bad=True, progress=False)
    assert (report.documents, report.bad, ids(tmp_path / "out")) == (2, 1, [0, 1])
    assert "1 bad lines left out" in str(report)


def test_what_can_not_be_read_is_refused(tmp_path):
    with gzip.open(tmp_path / "in.gz", "wb") as file:
        file.write(b'{"text": "a"}\n')
    with pytest.raises(ValueError, match="compressed.*unpack it"):
        deduplicate(tmp_path / "in.gz", tmp_path / "out", progress=False)
    write(tmp_path / "in", ["a"])
    with pytest.raises(ValueError, match="overwrite the input"):
        deduplicate(tmp_path / "in", tmp_path / "in", progress=False)
    for name, value in (("threshold", 0), ("num_perm", 0), ("ngram", 0)):
        with pytest.raises(ValueError, match=name):
            deduplicate(tmp_path / "in", tmp_path / "out", **{name: value}, progress=False)
    with pytest.raises(FileNotFoundError):
        deduplicate(tmp_path / "nowhere", tmp_path / "out", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "in.gz"]


class Stopped:
    """Stands in for a function and raises KeyboardInterrupt at its nth call."""

    def __init__(self, function, at: int):
        self.function, self.left = function, at

    def __call__(self, *arguments):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.function(*arguments)


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [
        (dedup, "signatures", 1),
        (dedup, "signatures", 4),
        (dedup, "band_keys", 1),
        (dedup, "band_keys", 6),
        (dedup, "verify", 3),
        (dedup, "jaccard", 5),
        (dedup_job.Job, "save", 3),
    ],
)
def test_stopped_and_started_again(tmp_path, monkeypatch, module, name, at):
    texts = corpus(500, seed=2)
    path = write(tmp_path / "in.jsonl", texts)
    monkeypatch.setattr(dedup, "BATCH_CHARS", 20_000)
    whole = deduplicate(path, tmp_path / "whole.jsonl", progress=False)
    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        function = getattr(module, name)
        stop = Stopped(function, at)
        patch.setattr(module, name, (lambda self, *a: stop(self, *a)) if module is dedup_job.Job else stop)
        with pytest.raises(KeyboardInterrupt):
            deduplicate(path, out, progress=False)
    assert not out.exists()
    assert (tmp_path / "out.jsonl.dedup").is_dir()
    with (tmp_path / "out.jsonl.dedup" / "documents.bin").open("ab") as file:
        file.write(b"half a record")  # what a kill in the middle of a write leaves
    signed = []
    sign = dedup.signatures
    monkeypatch.setattr(dedup, "signatures", lambda texts, *rest: signed.extend(texts) or sign(texts, *rest))
    report = deduplicate(path, out, progress=False)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert report.removed.read_bytes() == whole.removed.read_bytes()
    assert (report.exact, report.near) == (whole.exact, whole.near)
    if name != "signatures" or at > 1:
        assert len(signed) < len(texts)
    assert not (tmp_path / "out.jsonl.dedup").exists()


def test_another_input_starts_over(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(dedup, "verify", Stopped(dedup.verify, 1))
        with pytest.raises(KeyboardInterrupt):
            deduplicate(write(tmp_path / "in", corpus(300)), out, progress=False)
    texts = corpus(200, seed=7)
    report = deduplicate(write(tmp_path / "in", texts), out, progress=False)
    assert ids(out) == sorted(set(expected(texts)))
    assert report.documents == 200
    for rubbish in (b"{", b"[]", b'{"settings": 3}'):
        folder = tmp_path / "out.dedup"
        folder.mkdir()
        (folder / "state.json").write_bytes(rubbish)
        (folder / "notes.txt").write_text("somebody's")
        assert deduplicate(tmp_path / "in", out, progress=False).kept == report.kept
        assert [path.name for path in folder.iterdir()] == ["notes.txt"]
        (folder / "notes.txt").unlink()
        folder.rmdir()


def test_memory_is_under_a_kilobyte_a_document(tmp_path):
    """Ten times the documents must not take ten times the memory, and less than 1 KB for each more."""
    rng = random.Random(0)
    peaks = []
    for n in (2_000, 10_000):
        path = write(tmp_path / "in", [" ".join(f"w{rng.randrange(10**6)}" for _ in range(120)) for _ in range(n)])
        tracemalloc.start()
        deduplicate(path, tmp_path / "out", progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 8_000 < 1000
    assert peaks[1] < path.stat().st_size


def test_sets_at_hand_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup_job, "SHINGLES_AT_HAND", 100)
    path = write(tmp_path / "in", [" ".join(f"w{i}x{j}" for j in range(44)) for i in range(10)])
    offsets = np.cumsum([0, *map(len, path.read_bytes().splitlines(keepends=True))])[:-1]
    with path.open("rb") as file:
        sets = dedup_job.ShingleSets(file, offsets, 5)
        for i in (0, 1, 2, 0, 9, 0):
            assert sets(i) == {" ".join(f"w{i}x{k}" for k in range(j, j + 5)) for j in range(40)}
        assert len(sets.at_hand) == 2
        assert sets.size == 80


def test_first_equal():
    digests = np.array([[1, 2, 3, 4], [9, 9, 9, 9], [1, 2, 3, 5], [1, 2, 3, 4], [9, 9, 9, 9], [1, 2, 3, 4]], np.uint64)
    assert first_equal(digests).tolist() == [0, 1, 2, 0, 1, 0]
    assert first_equal(np.zeros((0, 4), np.uint64)).tolist() == []


def test_the_command(tmp_path, capsys, monkeypatch):
    path = write(tmp_path / "in.jsonl", ["one two three", "one two three", "four five six"])
    assert main([str(path), str(tmp_path / "out.jsonl")]) == 0
    assert "3 records, 2 kept" in capsys.readouterr().out
    assert main([str(path), str(tmp_path / "out.jsonl"), "--threshold", "0"]) == 2
    assert "error: threshold" in capsys.readouterr().err
    assert main([str(tmp_path / "no"), str(tmp_path / "out.jsonl")]) == 2
    assert f"{tmp_path / 'no'}: No such file" in capsys.readouterr().err
    monkeypatch.setattr(dedup, "sign", Stopped(dedup.sign, 1))
    assert main([str(path), str(tmp_path / "out.jsonl"), "--ngram", "2", "--num-perm", "16", "--skip-bad"]) == 130
    assert "goes on from there" in capsys.readouterr().err
    run = subprocess.run(
        [sys.executable, "-m", "shared.data.dedup", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0
    for word in ("IN", "OUT", "--threshold", "--num-perm", "--ngram", "--skip-bad"):
        assert word in run.stdout
