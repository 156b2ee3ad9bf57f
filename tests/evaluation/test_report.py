"""What people read, and what programs read."""

import io
import json
from dataclasses import replace

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
    assert "1 case passes now that didn't: capital-france" in text


def test_a_row_is_at_most_two_lines_on_eighty_columns():
    stream = io.StringIO()
    print_report(Report([DOCUMENTS, CASES]), Console(file=stream, width=80))
    title, header, _, *rows = stream.getvalue().split("\n")
    assert header.split() == ["measure", "baseline", "candidate", "difference", "95%", "interval", "verdict"]
    assert [row.split()[-1] for row in rows if " to " in row] == ["worse", "even"]
    assert len([row for row in rows if row.strip()]) <= 5  # two for each measure, and the verdict


def test_one_and_many():
    one, two = (
        shown(lambda console, n=n: print_report(Report([CASES], [(BEFORE, AFTER)] * n), console)) for n in (1, 2)
    )
    assert "1 case fails now that didn't" in one
    assert "2 cases fail now that didn't" in two


def test_too_few_documents_are_no_reason():
    few, enough = (replace(DOCUMENTS, n=n) for n in (19, 20))
    assert (Report([few]).exit_status, Report([enough]).exit_status) == (0, 1)
    assert Report([few, replace(CASES, interval=Interval(0.2, 0.1, 0.3))]).worse  # the cases are reason enough
    assert not Comparison("cases that fail", "share", 3, 0, 1, Interval(1, 1, 1), 0).too_few
    text = shown(lambda console: print_report(Report([few]), console))
    assert "too few" in text.split("verdict")[1].split("\n")[2]
    assert "19 documents are too few to call a model worse by" in text
    assert "Score 20 or more." in text
    assert "The candidate is not worse" in text
    assert report_json(Report([few]))["comparisons"][0]["too_few"] is True
    assert "too few" not in shown(lambda console: print_report(Report([enough]), console))


def test_what_was_left_out_is_in_the_verdict():
    text = shown(lambda console: print_report(Report([CASES]), console, ["3 chat cases are left out"]))
    assert text.rstrip().endswith("as far as this can tell; 3 chat cases are left out.")
    assert report_json(Report([CASES]), ["3 chat cases are left out"])["left_out"] == ["3 chat cases are left out"]


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
