"""The report of a cleaning: its table, its examples and its plot."""

import json

import pytest

from shared.data.report import Report, StageReport, excerpt


def test_the_table_and_the_examples():
    report = Report([StageReport("html"), StageReport("length")])
    html, length = report.stages
    html.add("<b>abcdefg", "abcdefg", 0.5, "one.py")
    html.add("abc", "abc", 0.25, "two.py")
    length.add("abcdefg", "abcdefg", 0.0)
    length.add("abc", None, 0.0, "two.py", "too short: 1 word")
    assert report.table(timings=False).split("\n") == [
        "stage          records  changed  removed  characters",
        "html                 2        1        0      -23.1%",
        "length               2        0        1      -30.0%",
        "    1 too short",
    ]
    assert "0.75s" in report.table()
    assert report.examples() == (
        "html  (one.py)\n  - '<b>abcdefg'\n  + 'abcdefg'\nlength  (two.py)\n  - 'abc'\n  + removed: too short: 1 word"
    )
    assert report.stage("html") is html
    assert json.loads(json.dumps(report.to_dict()))["stages"][1]["reasons"] == {"too short": 1}
    assert Report([StageReport("empty")]).table(timings=False).endswith("+0.0%")


def test_the_plot_shows_the_shares():
    counts = StageReport("html", seen=10, changed=4), StageReport("length", seen=10, removed=1), StageReport("none")
    report = Report(list(counts))
    figure = report.plot()
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([40, 0, 0, 0, 10, 0])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["html", "length", "none"]


def test_excerpts_show_the_first_difference():
    assert excerpt("same", "same") == ("same", "same")
    assert excerpt("x" * 500, None) == ("x" * 60, None)
    before, after = excerpt("a" * 100 + "B" + "c" * 100, "a" * 100 + "c" * 100)
    assert before == "a" * 30 + "B" + "c" * 29
    assert after == "a" * 30 + "c" * 30
