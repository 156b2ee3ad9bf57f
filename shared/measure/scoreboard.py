"""The scoreboard: one row for each stack the reader has built and measured, kept in data/results/scoreboard.json."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.measure.files import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = Path(__file__).resolve().parent.parent.parent / "data" / "results" / "scoreboard.json"


class ScoreboardError(Exception):
    """The scoreboard's file can't be read. It is left as it is; the message says what to do."""


def record(name: str, chapter: int, report: dict[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Add a stack's row, or replace the row of the same name. Returns the row.

    report: from `run_trace`, `open_loop` or `closed_loop`; "stack", "model", "threads", "dtype" and "trace", where it
    has them, are kept too. Rows are sorted by chapter, then by when they were first added.
    Raises ScoreboardError when there is a file that can't be read (nothing is written then), ValueError for a report
    of a run in which nothing was answered.
    """
    total, latency = report["total"], report["latency"]
    if not total["requests"]:
        raise ValueError(f"no request was answered in the run of {name!r}, there is nothing to put on the scoreboard")
    row: dict[str, Any] = {
        "name": name,
        "chapter": chapter,
        "output_tok_s": total["output_tok_s"],
        "ttft_p50_s": latency["ttft_s"]["p50"],
        "tpot_p50_s": latency["tpot_s"]["p50"],
        "e2e_p99_s": latency["e2e_s"]["p99"],
        **{key: total[key] for key in ("requests", "output_tokens", "wall_s", "peak_memory_mb")},
        **{key: report[key] for key in ("model", "threads", "dtype", "trace") if key in report},
    }
    rows = load(path)
    names = [old["name"] for old in rows]
    if name in names:
        rows[names.index(name)] = row
    else:
        rows.append(row)
    write_json(path or FILE, {"rows": sorted(rows, key=lambda row: row["chapter"])})
    return row


def load(path: Path | None = None) -> list[dict[str, Any]]:
    """All rows, in the order of the chapters; none when nothing was measured yet. Raises ScoreboardError."""
    path = path or FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = data["rows"]
        for row in rows:
            if not isinstance(row["name"], str) or not isinstance(row["chapter"], int):
                raise ValueError(f"a row's name or chapter is wrong: {row}")
            if not math.isfinite(row["output_tok_s"]):
                raise ValueError(f"output_tok_s of the row {row['name']!r} is not a number")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScoreboardError(
            f"{path} can't be read as a scoreboard ({type(error).__name__}: {error}). "
            "It was left as it is. Mend it, or move it away and measure again: python -m chapters bench"
        ) from None
    return list(rows)


def plot(rows: list[dict[str, Any]] | None = None) -> "Figure":
    """Bars of output tokens per second and of the median time to first token, one pair a row.

    An axis is logarithmic when its longest bar would be more than twenty times its shortest. A row that was measured
    on another trace or model than the newest chapter's is marked with a star: it can't be compared. Raises
    ValueError when there are no rows.
    """
    import matplotlib.pyplot as plt

    rows = load() if rows is None else rows
    if not rows:
        raise ValueError("the scoreboard is empty; measure something first: python -m chapters bench")
    alike = [all(row.get(key) == rows[-1].get(key) for key in ("trace", "model")) for row in rows]
    labels = [f"{row['chapter']:02} {row['name']}{'' if same else ' *'}" for row, same in zip(rows, alike, strict=True)]
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(9, 1.2 + 0.45 * len(rows)), layout="constrained")
    for axis, key, title in ((axes[0], "output_tok_s", "output tokens per second (more is better)"),
                             (axes[1], "ttft_p50_s", "median time to first token, s (less is better)")):  # fmt: skip
        values = [row[key] or 0.0 for row in rows]
        bars = axis.barh(labels, values)
        axis.bar_label(bars, labels=[f"{value:.3g}" for value in values], padding=3)
        positive = [value for value in values if value > 0]
        if positive and max(positive) > 20 * min(positive):
            axis.set_xscale("log")
            axis.set_xlim(min(positive) / 3, max(positive) * 4)
        else:
            axis.set_xlim(0, 1.2 * max(values) or 1.0)
        axis.set_xlabel(title)
        axis.grid(False, axis="y")
    axes[0].invert_yaxis()
    if any(label.endswith("*") for label in labels):
        figure.supxlabel("* measured on another trace or model: not to be compared", fontsize="small")
    return figure
