"""The README's plot of the scoreboard: what each stack achieved when `bench --stack all --keep` measured them."""

from pathlib import Path
from typing import Any

from chapters import ROOT, bench_table
from chapters.regions import BookError
from chapters.svg import COLORS, picture, rect, text

# What is drawn: a number of a scoreboard's row, and what it is called.
BLOCKS = (
    ("output_tok_s", "Output tokens per second: more is better", ""),
    ("ttft_p50_s", "Median time to the first token: less is better", " s"),
)
WIDTH, MARGIN, LABEL, VALUE, LINE = 400, 12, 112, 58, 21
OWN_KERNELS = {"paged", "continuous", "prefix", "int8"}  # stacks that run on the engine, whose kernels are not torch's
BAR = WIDTH - 2 * MARGIN - LABEL - VALUE


def draw(root: Path = ROOT) -> str:
    """The plot, an SVG file's text. Raises BookError when nothing was kept yet, or when it can't be read."""
    try:
        return _draw(bench_table.load(root)[bench_table.STACKS]["rows"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BookError(
            f"solutions/benchmarks.json: what is drawn of all stacks can't be read ({error}); "
            "measure it again: python -m chapters bench --stack all --keep"
        ) from None


def _draw(rows: list[dict[str, Any]]) -> str:
    first, y = rows[0], MARGIN + 16
    threads = f"{first['threads']} CPU thread{'' if first['threads'] == 1 else 's'}"
    setting = f"{first['requests']} requests at once · {first['model']} · {threads}"
    body = [text(MARGIN, y, "The same requests, on each chapter's stack", 14, "strong"),
            text(MARGIN, y + 18, setting, 11.5, "quiet")]  # fmt: skip
    y += 30
    told = []
    for key, title, unit in BLOCKS:
        body.append(text(MARGIN, y + 18, title, 12.5, "strong"))
        y += 27
        most = max(row[key] for row in rows)
        for row in rows:
            color, width = COLORS[row["chapter"]], BAR * row[key] / most
            shown = f"{digits(row[key])}{unit}"
            told.append(f"{row['name']} {shown}")
            body += [
                rect(MARGIN, y + 1, 22, LINE - 4, color),
                text(MARGIN + 11, y + 14, str(row["chapter"]), 12, "on", "middle"),
                text(MARGIN + 29, y + 14, f"{row['name']}{' *' if row['name'] in OWN_KERNELS else ''}"),
                rect(MARGIN + LABEL, y + 1, max(width, 1.5), LINE - 4, color),
                text(MARGIN + LABEL + width + 6, y + 14, shown),
            ]
            y += LINE
        y += 8
    body.append(text(MARGIN, y + 14, "* with kernels of our own; the others with torch's", 11.5, "quiet"))
    y += 24
    half = len(rows)
    description = (
        f"{setting}. Output tokens per second: {', '.join(told[:half])}. "
        f"Median time to the first token: {', '.join(told[half:])}."
    )
    return picture(WIDTH, y + MARGIN - 6, "The scoreboard: the same requests on each stack", description, body)


def digits(value: float) -> str:
    """Two or three digits that count: 109, 51, 8.2, 0.75."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
