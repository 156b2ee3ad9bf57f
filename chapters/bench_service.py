"""`python -m chapters bench service`: the parts chosen, checked, run, and shown."""

from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from chapters.bench_display import shown
from chapters.console import console
from chapters.regions import BookError


class Part(StrEnum):
    """What can be measured of the server."""

    overhead = "overhead"
    load = "load"
    slow_reader = "slow-reader"
    kills = "kills"
    fuzz = "fuzz"
    soak = "soak"


QUICK = [Part.overhead, Part.load, Part.slow_reader, Part.kills, Part.fuzz]  # the soak takes half an hour: by name


def run_service(
    parts: list[Part] | None, minutes: float | None, count: int | None, model: Path | None
) -> dict[str, Any]:
    """Measure, and print the verdicts of each part as they are known. Raises BookError for what can't be used."""
    from shared.serving.bench_service import bench_service

    if not Path("/proc/self/stat").exists():
        raise BookError("bench service looks at the server's processes through /proc, which only Linux has")
    if model is not None and not model.is_dir():
        raise BookError(f"--model {model}: there is no such folder")
    seconds = None if minutes is None else 60 * minutes
    chosen = [str(part) for part in (parts or QUICK)]
    return bench_service(chosen, model, seconds, count, say=print_part)


def print_part(part: str, numbers: dict[str, Any]) -> None:
    """One part of the measurement: what was promised beside what was measured, then its numbers."""
    table = Table(title=part, title_justify="left")
    for column in ("promised", "measured", ""):
        table.add_column(column)
    for verdict in numbers["verdicts"]:
        mark = "[green]holds[/]" if verdict["holds"] else "[red]does not hold[/]"
        table.add_row(verdict["promise"], verdict["measured"], mark)
    console.print(table)
    for key, value in numbers.items():
        if key not in ("verdicts", "samples", "levels") and not isinstance(value, list):
            console.print(f"{part:<12} {key:<20} {shown(value)}", markup=False)
    for level, group in numbers.get("levels", {}).items():
        console.print(f"{part:<12} {level:<20} {shown(group)}", markup=False)


def print_end(report: dict[str, Any]) -> None:
    """Say what could not be measured, and whether Ctrl-C cut the run short."""
    for part, why in report["failed"].items():
        console.print(f"{part}: could not be measured: {why}", style="red", markup=False)
    if report["interrupted"]:
        console.print("interrupted: these are the numbers so far")


def all_holds(report: dict[str, Any]) -> bool:
    """Was every part measured, and does all hold that was promised?"""
    groups = [group for group in report.values() if isinstance(group, dict) and "verdicts" in group]
    return not report["failed"] and all(verdict["holds"] for group in groups for verdict in group["verdicts"])
