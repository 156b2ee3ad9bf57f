"""The README's table of benchmarks: what was kept is what it shows, and what can't be shown is named."""

import json

import pytest

from chapters import ROOT, bench_table, views
from chapters.exercises import Book
from chapters.regions import BookError

MLP = {"numpy_s": 0.5, "torch_s": 0.8, "sizes": [784, 128, 10]}


def test_kept_numbers_stand_in_the_table(tmp_path):
    (tmp_path / "solutions").mkdir()
    assert bench_table.table(tmp_path) == ["| command | ours | compared with |", "|---|---|---|"]
    file = bench_table.record("mlp", MLP, tmp_path)
    assert json.loads(file.read_text()) == {"mlp": MLP}
    [row] = bench_table.table(tmp_path)[2:]
    ours, theirs = "NumPy: 0.50 s an epoch of 784-128-10", "eager torch: 0.80 s"
    assert row == f"| `python -m chapters bench mlp` | {ours} | {theirs} |"
    bench_table.record("mlp", MLP | {"numpy_s": 0.6}, tmp_path)
    assert "0.60 s" in bench_table.table(tmp_path)[2]


def test_damage_is_named(tmp_path):
    (tmp_path / "solutions").mkdir()
    file = bench_table.record("mlp", {"numpy_s": 0.5}, tmp_path)
    with pytest.raises(BookError, match="bench mlp --keep"):
        bench_table.table(tmp_path)
    file.write_text("{")
    with pytest.raises(BookError, match=r"benchmarks\.json"):
        bench_table.table(tmp_path)


def test_the_readme_shows_what_was_kept():
    book = Book()
    old = "before\n<!-- benchmarks: by build -->\n| stale |\n<!-- end -->\nafter"
    filled = views.fill_benchmarks(old, book)
    assert filled.startswith("before\n<!-- benchmarks: by build -->\n| command |")
    assert filled.endswith("<!-- end -->\nafter")
    assert "stale" not in filled
    rows = [line for line in bench_table.table(ROOT) if "bench " in line]
    assert all(row in filled for row in rows)
    assert views.fill_benchmarks("no markers", book) == "no markers"
