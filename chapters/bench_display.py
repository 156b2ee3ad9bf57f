"""What `python -m chapters bench` shows: a table of the stacks, and one of the engine and its peers."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from chapters.bench_stacks import WHAT
from chapters.console import console

BUSY = 0.85  # of a core: who gets less in a benchmark on one thread shares it with somebody


def print_table(reports: Sequence[dict[str, Any]]) -> None:
    """One row a report in which anything was answered, and what the last gains over the first."""
    for report in reports:
        for kind, number in report["errors"].items():
            console.print(
                f"{report['stack']}: {count(number, 'request')} not counted: {kind}", style="red", markup=False
            )
    reports = [report for report in reports if report["total"]["requests"]]
    if not reports:
        return
    first = reports[0]
    dtypes = " and ".join(dict.fromkeys(report["dtype"] for report in reports))
    title = f"{first['model']}, {dtypes}, CPU threads: {first['threads']}, trace {first['trace']}"
    table = Table(title=title, title_justify="left")
    for column in ("stack", "output tok/s", "TTFT P50", "TPOT P50", "E2E P99", "wall", "peak memory"):
        table.add_column(column, justify="left" if column == "stack" else "right", no_wrap=column == "stack")
    for report in reports:
        total, latency = report["total"], report["latency"]
        table.add_row(
            report["stack"],
            f"{total['output_tok_s']:.2f}",
            seconds(latency["ttft_s"]["p50"]),
            seconds(latency["tpot_s"]["p50"]),
            seconds(latency["e2e_s"]["p99"]),
            seconds(total["wall_s"]),
            f"{total['peak_memory_mb']:.0f} MB",
        )
    console.print(table)
    for report in reports:
        console.print(f"{report['stack']}: {WHAT[report['stack']]}", style="dim", markup=False)
    rates = [report["total"]["output_tok_s"] for report in reports]
    if len(reports) > 1 and all(rates):
        gain = f"{rates[-1] / rates[0]:.1f} times as many tokens per second"
        console.print(f"{reports[-1]['stack']} makes {gain} as {first['stack']}")


def count(number: int, noun: str) -> str:
    """3, "peer" -> "3 peers"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(value: float | None) -> str:
    """As a table shows it: whole milliseconds below a second; "-" for what was not measured."""
    return "-" if value is None else f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def print_engine(report: dict[str, Any]) -> None:
    """The engine and each peer in a row; then the engine's further numbers, and who was left out."""
    if "engine" not in report:
        return
    table = Table(title=f"CPU threads: {report['threads']}, dtype: {report['dtype']}", title_justify="left")
    for column in ("", "output tok/s", "all tok/s", "one stream", "prefill of 512", "ours / theirs"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=not column)
    ours = report["engine"]
    groups = {name: group for name, group in report.items() if isinstance(group, dict) and "out_tok_s" in group}
    for name, group in groups.items():
        rates = [f"{group[key]:.1f}" for key in ("out_tok_s", "total_tok_s", "decode1_tok_s", "prefill512_tok_s")]
        table.add_row(name, *rates, "" if name == "engine" else f"{ours['out_tok_s'] / group['out_tok_s']:.2f}")
    console.print(table)
    for key, value in ours.items():
        if key not in ("out_tok_s", "total_tok_s", "decode1_tok_s", "prefill512_tok_s"):
            console.print(f"{key:<26} {shown(value)}", markup=False)
    for name, group in groups.items():
        got = group.get("cpu_s", 1) / group.get("wall_s", 1)
        if report["threads"] == 1 and got < BUSY:
            console.print(f"{name} had {got:.0%} of its thread: the machine was busy, don't compare", style="yellow")
    for name, why in report["skipped"].items():
        console.print(f"{name}: left out: {why}", style="yellow", markup=False)


def shown(value: Any) -> str:
    """A number with four digits that count, and a dictionary of them in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(one)}" for key, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
