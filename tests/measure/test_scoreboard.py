"""The scoreboard: rows added and replaced, nothing lost to a broken file, and a plot that can be read."""

import json

import matplotlib as mpl
import pytest

from shared.measure import scoreboard

mpl.use("Agg")


def report(rate: float, requests: int = 2, **more) -> dict:
    return {
        "total": {
            "requests": requests,
            "prompt_tokens": 10,
            "output_tokens": 20,
            "wall_s": 20 / rate,
            "output_tok_s": rate,
            "total_tok_s": 1.5 * rate,
            "peak_memory_mb": 900.0,
        },
        "latency": {name: {"p50": 0.5, "p90": 0.8, "p99": 0.9} for name in ("ttft_s", "tpot_s", "e2e_s")},
        **more,
    }


def test_rows_are_added_sorted_and_replaced(tmp_path):
    file = tmp_path / "results" / "scoreboard.json"
    assert scoreboard.load(file) == []
    scoreboard.record("cached", 9, report(25.0), file)
    row = scoreboard.record("naive", 0, report(2.0, model="tiny", threads=1, dtype="float32", trace="abc"), file)
    assert row == {
        "name": "naive",
        "chapter": 0,
        "output_tok_s": 2.0,
        "ttft_p50_s": 0.5,
        "tpot_p50_s": 0.5,
        "e2e_p99_s": 0.9,
        "requests": 2,
        "output_tokens": 20,
        "wall_s": 10.0,
        "peak_memory_mb": 900.0,
        "model": "tiny",
        "threads": 1,
        "dtype": "float32",
        "trace": "abc",
    }
    assert [r["name"] for r in scoreboard.load(file)] == ["naive", "cached"]
    scoreboard.record("cached", 9, report(30.0), file)
    assert [(r["name"], r["output_tok_s"]) for r in scoreboard.load(file)] == [("naive", 2.0), ("cached", 30.0)]
    assert [f.name for f in file.parent.iterdir()] == ["scoreboard.json"]


def test_a_run_without_an_answer_is_no_row(tmp_path):
    with pytest.raises(ValueError, match="no request was answered"):
        scoreboard.record("naive", 0, report(2.0, requests=0), tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"rows": [{"name": "naive", "chapt',
        "[]",
        '{"rows": 3}',
        '{"rows": [{"name": "naive"}]}',
        '{"rows": [{"name": "naive", "chapter": 0, "output_tok_s": NaN}]}',
        '{"rows": [{"name": "naive", "chapter": 0, "output_tok_s": null}]}',
    ],
)
def test_broken_file_is_left_alone(tmp_path, content):
    file = tmp_path / "scoreboard.json"
    file.write_text(content)
    for attempt in (lambda: scoreboard.load(file), lambda: scoreboard.record("naive", 0, report(2.0), file)):
        with pytest.raises(scoreboard.ScoreboardError, match="move it away") as caught:
            attempt()
        assert str(file) in str(caught.value)
    assert file.read_text() == content


def test_a_write_that_fails_loses_nothing(tmp_path, monkeypatch):
    file = tmp_path / "scoreboard.json"
    scoreboard.record("naive", 0, report(2.0), file)
    before = file.read_text()
    monkeypatch.setattr("shared.measure.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        scoreboard.record("cached", 9, report(25.0), file)
    assert file.read_text() == before
    assert [f.name for f in tmp_path.iterdir()] == ["scoreboard.json"]


def rows(*rates: float, traces=("t",)) -> list[dict]:
    return [
        {"name": f"s{i}", "chapter": i, "output_tok_s": rate, "ttft_p50_s": 1 / rate, "trace": traces[i % len(traces)]}
        for i, rate in enumerate(rates)
    ]


def test_plot():
    figure = scoreboard.plot(rows(2.0, 25.0))
    speed, first_token = figure.axes
    assert [bar.get_width() for bar in speed.patches] == [2.0, 25.0]
    assert [bar.get_width() for bar in first_token.patches] == [0.5, 0.04]
    assert [label.get_text() for label in speed.get_yticklabels()] == ["00 s0", "01 s1"]
    assert speed.yaxis_inverted()  # row 0 on top
    assert (speed.get_xscale(), first_token.get_xscale()) == ("linear", "linear")
    assert {text.get_text() for text in speed.texts} == {"2", "25"}


def test_plot_goes_logarithmic_when_it_has_to():
    assert [axis.get_xscale() for axis in scoreboard.plot(rows(2.0, 100.0)).axes] == ["log", "log"]


def test_plot_marks_rows_of_another_trace():
    figure = scoreboard.plot(rows(2.0, 25.0, traces=("old", "new")))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["00 s0 *", "01 s1"]
    other = [row | {"trace": "t", "model": f"m{k}"} for k, row in enumerate(rows(1.0, 2.0))]
    assert [label.get_text() for label in scoreboard.plot(other).axes[0].get_yticklabels()] == ["00 s0 *", "01 s1"]
    assert "another trace" in figure.get_supxlabel()


def test_plot_needs_rows():
    with pytest.raises(ValueError, match="empty"):
        scoreboard.plot([])


def test_file_is_in_the_ignored_results():
    assert scoreboard.FILE.parts[-3:] == ("data", "results", "scoreboard.json")
    assert json.dumps(str(scoreboard.FILE))
