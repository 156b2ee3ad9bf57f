"""The makers: a small tree of files whose documentation is known, and the corpora checked against what was put in."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shared.data import corpus, dirt, near_duplicates
from shared.data.corpus import docstring_documents, make_corpus, read_truth, truth_path

LONG = "A sentence that is long enough to be kept. " * 3


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of packages, good and broken."""
    root = tmp_path / "packages"
    for name, content in {
        "pkg/mod.py": f'"""Module. {LONG}"""\nclass A:\n    """Class. {LONG}"""\n'
                      f'    def f(self):\n        """Short."""\n'
                      f'    async def g(self):\n        r"""Method. {LONG}"""\n'
                      f'if True:\n    def h():\n        """Inner. {LONG}"""\n',
        "pkg/latin.py": f'# -*- coding: latin-1 -*-\n"""Caf\xe9. {LONG}"""\n'.encode("latin-1"),
        "pkg/indented.py": f'def f():\n    """First. {LONG}\n\n    Then:\n        Indented.\n    """\n',
        "pkg/surrogate.py": f'"""Half a pair: \\ud800. {LONG}"""\n',
        "pkg/syntax.py": f'def f(:\n    """Never. {LONG}"""\n',
        "pkg/nul.py": f'"""Never. {LONG}"""\n\x00',
        "pkg/deep.py": f'"""Never. {LONG}"""\nx = ' + "(" * 5000 + ")" * 5000,
        "pkg/escape.py": f'"""An invalid escape \\d. {LONG}"""\n',
        "pkg/code.py": f'"""Rare. {LONG}"""\n' + "x = 1\n" * 2000,
        "pkg/README.md": f"Read me.\r\n{LONG}",
        "pkg/bad.txt": b"\xff\xfe" + LONG.encode(),
        "pkg/empty.py": "",
        "pkg/data.bin": LONG,
        "pkg-1.0.dist-info/LICENSE.txt": f"Licence. {LONG}",
        "pkg/tests/test_mod.py": f'"""Never. {LONG}"""\n',
        "single.py": f'"""Single. {LONG}"""\n',
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (root / "pkg" / "broken_link.py").symlink_to(root / "nowhere.py")
    return root


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_documentation_and_nothing_else(tree):
    records = list(docstring_documents(min_chars=50, roots=[tree]))
    assert Counter(record["text"].split(".")[0].split(" ")[0].rstrip(":") for record in records) == Counter(
        ["Module", "Class", "Method", "Inner", "Café", "First", "Half", "An", "Read", "Licence", "Single"]
    )
    assert {record["label"] for record in records} == {"pkg", "single"}
    assert not any(str(tree) in record["source"] or record["source"].startswith("/") for record in records)
    by_start = {record["text"][:5]: record for record in records}
    assert by_start["Modul"]["source"] == "pkg/mod.py"
    assert by_start["Licen"]["source"] == "pkg-1.0.dist-info/LICENSE.txt"
    assert by_start["First"]["text"].endswith("\n\nThen:\n    Indented.")  # the docstring's own indentation is gone
    assert "\r" not in by_start["Read "]["text"]
    for record in records:
        assert set(record) == {"text", "label", "source"}
        record["text"].encode()


def test_texts_of_a_file_keep_its_order(tree):
    records = [r for r in docstring_documents(min_chars=50, roots=[tree]) if r["source"] == "pkg/mod.py"]
    assert [r["text"].split(".")[0] for r in records] == ["Module", "Class", "Method", "Inner"]


def test_the_order_is_the_seeds(tree):
    orders = [[r["text"] for r in docstring_documents(min_chars=50, seed=seed, roots=[tree])] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_limit_and_least_length(tree):
    assert len(list(docstring_documents(limit=3, min_chars=50, roots=[tree]))) == 3
    assert list(docstring_documents(limit=0, roots=[tree])) == []
    assert any(r["text"] == "Short." for r in docstring_documents(min_chars=1, roots=[tree]))
    for wrong in ({"limit": -1}, {"min_chars": 0}):
        with pytest.raises(ValueError, match="at least"):
            next(docstring_documents(**wrong))


def test_this_pythons_own_documentation():
    records = list(docstring_documents(limit=40))
    assert len(records) == 40
    assert all(len(record["text"]) >= corpus.MIN_CHARS for record in records)
    assert not any(sys.prefix in record["source"] for record in records)


@pytest.fixture
def small(tree, monkeypatch):
    """make_corpus works on the small tree, 30 documents of it."""
    documents = [r | {"text": f"{r['text']} Number {i}."} for i in range(3)
                 for r in docstring_documents(min_chars=50, roots=[tree]) if r["text"].isascii()]
    monkeypatch.setattr(corpus, "docstring_documents", lambda limit, seed: iter(documents[:limit]))
    monkeypatch.setattr(dirt, "LONG_LINE_BYTES", 300_000)
    return documents


def test_docs_are_made_once(small, tmp_path):
    path = make_corpus("docs", tmp_path / "new" / "docs.jsonl", progress=False)
    assert read(path) == small
    truth = read_truth(path)
    assert truth["records"] == len(small)
    assert truth["exact_duplicates"] == 0
    assert truth["bytes"] == path.stat().st_size
    before = path.stat().st_mtime_ns
    assert make_corpus("docs", path, progress=False).stat().st_mtime_ns == before
    assert make_corpus("docs", path, progress=False, force=True).stat().st_mtime_ns != before


def test_made_again_for_other_settings_or_damage(small, tmp_path):
    path = make_corpus("docs", tmp_path / "docs.jsonl", limit=2, progress=False)
    assert len(read(path)) == 2
    assert len(read(make_corpus("docs", path, limit=4, progress=False))) == 4
    path.write_text("cut", encoding="utf-8")
    assert len(read(make_corpus("docs", path, limit=4, progress=False))) == 4
    for damage in ("not json", "[]", '{"kind": "docs"}'):
        truth_path(path).write_text(damage, encoding="utf-8")
        assert len(read(make_corpus("docs", path, limit=4, progress=False))) == 4
        assert read_truth(path)["limit"] == 4


def test_duplicates_are_counted_and_kept(small, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "docstring_documents", lambda limit, seed: iter([small[0], small[1], small[0]]))
    path = make_corpus("docs", tmp_path / "docs.jsonl", progress=False)
    assert len(read(path)) == 3
    assert read_truth(path)["exact_duplicates"] == 1


def test_a_stop_leaves_the_old_corpus_and_no_scraps(small, tmp_path, monkeypatch):
    path = make_corpus("docs", tmp_path / "docs.jsonl", progress=False)
    before = path.read_bytes()

    def stopped(limit, seed):
        yield small[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus, "docstring_documents", stopped)
    with pytest.raises(KeyboardInterrupt):
        make_corpus("docs", path, force=True, progress=False)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.glob("[.d]*")) == ["docs.jsonl", "docs.truth.json"]


def test_names_and_unknown_kinds(small, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CORPORA", tmp_path)
    assert make_corpus("docs", limit=2, progress=False).name == "docs-2.jsonl"
    assert make_corpus("docs", limit=2, seed=3, progress=False).name == "docs-2-seed3.jsonl"
    assert make_corpus("docs", progress=False).name == "docs.jsonl"
    with pytest.raises(ValueError, match="dirty"):
        make_corpus("clean")


def test_near_duplicates_tell_the_truth(small, tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "SHARE", 0.7)
    monkeypatch.setattr(near_duplicates, "MIN_WORDS", 10)
    path = make_corpus("near_duplicates", tmp_path / "near.jsonl", progress=False)
    records, truth = read(path), read_truth(path)
    assert len(records) == truth["records"] > len(small)
    assert len(truth["pairs"]) > 10
    for pair in truth["pairs"]:
        a, b = records[pair["a"]], records[pair["b"]]
        assert pair["a"] < pair["b"]
        assert a["source"].split("/", 1)[-1] in b["source"]
        words = [set(zip(*(t.lower().split()[i:] for i in range(5)), strict=False)) for t in (a["text"], b["text"])]
        chars = [{t[i : i + 5] for i in range(len(t) - 4)} for t in (a["text"], b["text"])]
        for key, (left, right) in (("words_5", words), ("chars_5", chars)):
            assert pair[key] == pytest.approx(len(left & right) / len(left | right))
    listed = {(pair["a"], pair["b"]) for pair in truth["pairs"]}
    exact = [(i, j) for j in range(len(records)) for i in range(j) if records[i]["text"] == records[j]["text"]]
    assert set(exact) <= listed


def test_edits_reach_their_similarity():
    import random

    text = " ".join(f"word{i}" for i in range(400))
    for wanted in (1.0, 0.9, 0.7, 0.5):
        got = near_duplicates.edit(text, wanted, random.Random(1))
        similarity = near_duplicates.jaccard(near_duplicates.words_5(text), near_duplicates.words_5(got))
        assert similarity == pytest.approx(wanted, abs=0.06)
    assert near_duplicates.jaccard(set(), set()) == 0


@pytest.fixture
def dirty(small, tmp_path, monkeypatch):
    many = [r | {"text": f"{r['text']} Variant {i}.", "source": f"{i}/{r['source']}"} for i in range(20) for r in small]
    monkeypatch.setattr(corpus, "docstring_documents", lambda limit, seed: iter(many[:limit]))
    return make_corpus("dirty", tmp_path / "dirty.jsonl", progress=False)


def test_dirt_has_all_kinds_and_each_line_is_accounted_for(dirty):
    truth, lines = read_truth(dirty), dirty.read_bytes().split(b"\n")
    assert {entry["dirt"] for entry in truth["good"]} == set(dirt.SHARES)
    assert {entry["kind"] for entry in truth["bad"]} == {*dirt.BROKEN, "too long"}
    numbers = [e["line"] for e in truth["good"]] + [e["line"] for e in truth["bad"]] + truth["empty"]
    assert sorted(numbers) == list(range(1, len(lines) + 1)) == list(range(1, truth["lines"] + 1))
    assert max(map(len, lines)) > 299_000
    assert lines[0].startswith(b"\xef\xbb\xbf")
    for entry in truth["good"]:
        record = json.loads(lines[entry["line"] - 1].decode("utf-8-sig"))
        assert record["time"][:3] == "202"
        if entry["dirt"] == "revised":
            original = json.loads(lines[entry["of"] - 1].decode("utf-8-sig"))
            assert original["source"] == record["source"]
            assert original["time"] < record["time"]


def test_what_is_personal_in_the_dirt_is_made_up(dirty):
    import ipaddress
    import re

    documentation = [ipaddress.ip_network(n) for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]
    truth, lines = read_truth(dirty), dirty.read_bytes().split(b"\n")
    texts = [json.loads(lines[e["line"] - 1].decode("utf-8-sig"))["text"] for e in truth["good"] if e["dirt"] == "pii"]
    assert len(texts) > 10
    for text in texts:
        for domain in re.findall(r"@([\w.-]+\w)", text):
            assert re.search(r"(^|\.)example\.(org|com|net)$", domain), text
        for ip in re.findall(r"(?<![\w.])(?:\d+\.){3}\d+", text):
            assert ip == "10.4.2.1" or any(ipaddress.ip_address(ip) in network for network in documentation), text


def test_the_command(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "CORPORA", tmp_path)
    assert corpus.main(["docs", "--limit", "3"]) == 0
    assert "docs-3.jsonl  3 records" in capsys.readouterr().out
    assert corpus.main(["nonsense"]) == 2
    assert "dirty" in capsys.readouterr().err
    error: BaseException = KeyboardInterrupt()

    def failing(*arguments, **settings):
        raise error

    monkeypatch.setattr(corpus, "make_corpus", failing)
    assert corpus.main(["docs"]) == 130
    assert "Stopped" in capsys.readouterr().err
    error = OSError(28, "No space left", "here")
    assert corpus.main(["docs"]) == 2
    assert "here: No space left" in capsys.readouterr().err


def test_ctrl_c_in_the_real_command_leaves_nothing(tmp_path):
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom shared.data import corpus\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job is born deaf to it
        f"corpus.CORPORA = Path({str(tmp_path)!r})\n"
        "real = corpus.docstring_documents\n"
        "def stopped(limit, seed):\n"
        "    for i, record in enumerate(real(limit, seed)):\n"
        "        if i == 20: os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield record\n"
        "corpus.docstring_documents = stopped\n"
        "sys.exit(corpus.main(['docs', '--limit', '40']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
