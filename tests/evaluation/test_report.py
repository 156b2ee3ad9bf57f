"""What people read, and what programs read."""

import io
import json

from rich.console import Console

from shared.evaluation.attribution import Attribution, Evidence, Limits
from shared.evaluation.gate import Comparison, Interval, Report
from shared.evaluation.properties import Answer
from shared.evaluation.regression import Case, Result
from shared.evaluation.report import attribution_json, attribution_table, print_report, report_json

CASE = Case("capital-france", {"contains": ["Paris"]}, 8, prompt="x")
BEFORE, AFTER = (
    Result(CASE, Answer("It is Paris.")),
    Result(CASE, Answer("[red]Lyon[/]"), ["contains: 'Paris' is missing"]),
)
DOCUMENTS = Comparison("documents", "bits per byte", 64, 0.9, 1.02, Interval(0.12, 0.1, 0.14), 0.02)
CASES = Comparison("cases that fail", "share", 40, 0.1, 0.125, Interval(0.025, 0.0, 0.075), 0.0)


def shown(print_it) -> str:
    stream = io.StringIO()
    print_it(Console(file=stream, width=200))
    return stream.getvalue()


def test_people_read():
    text = shown(lambda console: print_report(Report([DOCUMENTS, CASES], [(BEFORE, AFTER)]), console))
    for part in (
        "64 documents, bits per byte", "0.900", "1.020", "+0.120", "+0.100 to +0.140", "worse",
        "40 cases that fail", "10.0%", "12.5%", "+2.5%", "even", "capital-france",
        "contains: 'Paris' is missing", "It is Paris.", "[red]Lyon[/]", "The candidate is worse, beyond noise.",
    ):  # fmt: skip
        assert part in text, part


def test_a_tolerated_loss_is_called_one():
    row = Comparison("documents", "bits per byte", 64, 0.9, 0.91, Interval(0.01, 0.005, 0.015), 0.02)
    text = shown(lambda console: print_report(Report([row]), console))
    assert "tolerated" in text
    assert "The candidate is not worse" in text


def test_mended_cases_are_named():
    text = shown(lambda console: print_report(Report([CASES], [], [(AFTER, BEFORE)]), console))
    assert "1 cases pass now that didn't: capital-france" in text


def test_programs_read():
    data = json.loads(
        json.dumps(report_json(Report([DOCUMENTS], [(BEFORE, AFTER)], [(AFTER, BEFORE)])), allow_nan=False)
    )
    assert data["worse"] is True
    (row,) = data["comparisons"]
    assert (row["measure"], row["n"], row["low"], row["verdict"]) == ("documents", 64, 0.1, "worse")
    assert data["newly_failing"][0]["candidate"] == "[red]Lyon[/]"
    assert data["newly_failing"][0]["problems"] == data["newly_passing"][0]["problems"] == AFTER.problems


def test_causes():
    found = [Attribution(AFTER, Evidence(longer=False, plain=True, loop=0.25, tokens_per_unit=2.34), ["tokenizer"])]
    text = shown(lambda console: console.print(attribution_table(found, Limits(2.0, 3.0))))
    for part in ("capital-france", "plain", "longer", "25%", "2.3", "tokenizer", "at most 2.0 tokens a word"):
        assert part in text
    text = shown(lambda console: console.print(attribution_table(found, Limits(float("inf"), float("inf")))))
    assert "too few cases pass" in text
    (row,) = json.loads(json.dumps(attribution_json(found)))
    assert row["causes"] == ["tokenizer"]
    assert row["evidence"]["plain"] is True
    assert row["evidence"]["shorter"] is None
