"""The README's table of benchmarks: what was kept is what it shows, and what can't be shown is named."""

import json

import pytest
from typer.testing import CliRunner

from chapters import ROOT, bench, bench_table, readme
from chapters.exercises import Book
from chapters.regions import BookError

MLP = {"numpy_s": 0.5, "torch_s": 0.8, "sizes": [784, 128, 10]}


def test_kept_numbers_stand_in_the_table(tmp_path):
    (tmp_path / "solutions").mkdir()
    assert bench_table.table(tmp_path) == ["| command | ours | compared with, or verdict |", "|---|---|---|"]
    file = bench_table.record("mlp", MLP, tmp_path)
    assert json.loads(file.read_text()) == {"mlp": MLP}
    [row] = bench_table.table(tmp_path)[2:]
    ours, theirs = "NumPy: 0.50 s an epoch of 784-128-10", "eager torch: 0.80 s"
    assert row == f"| `python -m chapters bench mlp` | {ours} | {theirs} |"
    bench_table.record("mlp", MLP | {"numpy_s": 0.6}, tmp_path)
    assert "0.60 s" in bench_table.table(tmp_path)[2]


def test_a_promise_has_a_row_of_its_own(tmp_path):
    (tmp_path / "solutions").mkdir()
    kept = [{"promise": "a", "measured": "1", "holds": True}, {"promise": "and b", "measured": "2", "holds": False}]
    bench_table.record("service", {"load": {"verdicts": kept}}, tmp_path)
    command = "`python -m chapters bench service --part load`"
    assert bench_table.table(tmp_path)[2:] == [
        f"| {command} | a: 1 | holds |",
        f"| {command} | b: 2 | does not hold |",
    ]


def test_all_stacks_are_kept_for_the_plot_and_not_in_the_table(tmp_path):
    (tmp_path / "solutions").mkdir()
    bench_table.record("mlp", MLP, tmp_path)
    bench_table.record(bench_table.STACKS, {"rows": [{"name": "naive"}]}, tmp_path)
    assert bench_table.load(tmp_path)[bench_table.STACKS] == {"rows": [{"name": "naive"}]}
    assert len(bench_table.table(tmp_path)) == 3


@pytest.mark.parametrize(
    "options", [["--stack", "naive"], ["--model", "x"], ["--trace", "x"], ["--dtype", "int8"], ["--json", "x"]]
)
def test_what_is_kept_is_the_default(options, tmp_path):
    """Rows measured on something else would be drawn as if they could be compared."""
    with pytest.raises(BookError, match="--keep is for all stacks"):
        CliRunner().invoke(bench.app, ["--keep", *options], catch_exceptions=False)


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
    filled = readme.fill(old, book)
    assert filled.startswith("before\n<!-- benchmarks: by build -->\n| command |")
    assert filled.endswith("<!-- end -->\nafter")
    assert "stale" not in filled
    rows = [line for line in bench_table.table(ROOT) if "bench " in line]
    assert all(row in filled for row in rows)
    assert readme.fill("no markers", book) == "no markers"
