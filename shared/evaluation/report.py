"""What the gate and the attribution found, for people (tables) and for programs (JSON)."""

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.evaluation.attribution import Attribution, Limits
from shared.evaluation.gate import MIN_DOCUMENTS, Comparison, Report
from shared.evaluation.regression import Result

EXCERPT = 240  # characters of an answer


def comparison_table(report: Report) -> Table:
    """A row for each measure: both models' values, the difference with its interval, and the verdict."""
    table = Table(
        title="candidate against baseline; less is better", title_justify="left", box=box.SIMPLE,
        show_edge=False, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("measure")
    for column in ("baseline", "candidate", "difference", "95% interval"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in report.comparisons:
        show = _percent if row.unit == "share" else _bits
        low, high = show(row.interval.low, sign=True), show(row.interval.high, sign=True)
        name = f"{row.n} {row.name}" + ("" if row.unit == "share" else f", {row.unit}")
        said: str = row.verdict
        if row.too_few:
            said = "too few"
        elif row.verdict == "even" and row.interval.low > 0:
            said = "tolerated"
        table.add_row(
            name, show(row.baseline), show(row.candidate), show(row.interval.difference, sign=True),
            f"{low} to {high}", said,
        )  # fmt: skip
    return table


def newly_failing_table(report: Report) -> Table:
    """The two answers to each case that the baseline passes and the candidate doesn't, side by side."""
    title = f"{_count(len(report.newly_failing), 'case fails', 'cases fail')} now that didn't"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in ("case", "what is wrong", "baseline's answer", "candidate's answer"):
        table.add_column(column, overflow="fold")
    for before, after in report.newly_failing:
        wrong = "\n".join(after.problems)
        table.add_row(*map(Text, (after.case.id, wrong, _excerpt(before.answer.text), _excerpt(after.answer.text))))
    return table


def attribution_table(found: Sequence[Attribution], limits: Limits) -> Table:
    """A row for each failed case: the experiments in which it passes or fails, what was measured, and the causes."""
    caption = (
        f"95% of the cases that pass have at most {limits.tokens_per_unit:.1f} tokens a word in the prompt and "
        f"{limits.bits_per_byte:.1f} bits a byte"
    )
    if math.isinf(limits.bits_per_byte):
        caption = "too few cases pass to hold what is measured of the failed ones against"
    table = Table(title="why cases fail", title_justify="left", box=box.SIMPLE, caption=caption, caption_justify="left")
    table.add_column("case", overflow="fold")
    table.add_column("mended by")
    table.add_column("not mended by")
    for column in ("loop", "tok/word", "bit/byte"):
        table.add_column(column, no_wrap=True, justify="right")
    table.add_column("cause", min_width=11)
    for item in found:
        e = item.evidence
        tried = {"longer": e.longer, "shorter": e.shorter, "plain": e.plain, "other decoding": e.otherwise}
        mended, not_mended = (", ".join(name for name, ok in tried.items() if ok is kind) for kind in (True, False))
        measured = (f"{e.loop:.0%}", f"{e.tokens_per_unit:.1f}", f"{e.bits_per_byte:.1f}")
        table.add_row(Text(item.result.case.id), mended, not_mended, *measured, ", ".join(item.causes))
    return table


def print_report(report: Report, console: Console, left_out: Sequence[str] = ()) -> None:
    """The tables, and the verdict in a line, with what was left out and so can't be in it."""
    console.print(comparison_table(report))
    console.print()
    if report.newly_failing:
        console.print(newly_failing_table(report))
    if report.newly_passing:
        names = ", ".join(after.case.id for _, after in report.newly_passing)
        passing = _count(len(report.newly_passing), "case passes", "cases pass")
        console.print(f"{passing} now that didn't: {names}", markup=False)
    for row in report.comparisons:
        if row.too_few:
            many = _count(row.n, "document is", "documents are")
            console.print(
                f"{many} too few to call a model worse by: equal models would be called so too often. "
                f"Score {MIN_DOCUMENTS} or more."
            )
    verdict = "is worse, beyond noise" if report.worse else "is not worse, as far as this can tell"
    console.print("; ".join([f"The candidate {verdict}", *left_out]) + ".", markup=False)


def report_json(report: Report, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """The report as JSON: numbers, verdicts, and the texts of the cases whose result changed."""
    return {
        "worse": report.worse,
        "left_out": list(left_out),
        "comparisons": [_comparison_json(comparison) for comparison in report.comparisons],
        "newly_failing": [_pair_json(*pair) for pair in report.newly_failing],
        "newly_passing": [_pair_json(*pair) for pair in report.newly_passing],
    }


def attribution_json(found: Sequence[Attribution]) -> list[dict[str, Any]]:
    """A failed case's id, what is wrong, its causes, and the evidence."""
    return [
        {"id": a.result.case.id, "problems": a.result.problems, "causes": a.causes, "evidence": vars(a.evidence)}
        for a in found
    ]


def _comparison_json(row: Comparison) -> dict[str, Any]:
    return {
        "measure": row.name,
        "unit": row.unit,
        "n": row.n,
        "baseline": row.baseline,
        "candidate": row.candidate,
        **row.interval._asdict(),
        "tolerance": row.tolerance,
        "verdict": row.verdict,
        "too_few": row.too_few,
    }


def _pair_json(before: Result, after: Result) -> dict[str, Any]:
    return {"id": after.case.id, "problems": after.problems or before.problems, "baseline": before.answer.text,
            "candidate": after.answer.text}  # fmt: skip


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT else text[:EXCERPT] + " …"


def _percent(value: float, sign: bool = False) -> str:
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def _bits(value: float, sign: bool = False) -> str:
    return f"{value:+.3f}" if sign else f"{value:.3f}"
