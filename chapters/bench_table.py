"""The README's table of benchmarks against what people use, from the numbers that `bench ... --keep` wrote down."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chapters import ROOT
from chapters.regions import BookError
from shared.inference.peers import PEERS
from shared.measure.files import write_json

Numbers = dict[str, Any]
STACKS = "--stack all"  # the rows of the scoreboard; they are drawn, and not in the table


class Row(NamedTuple):
    """A line of the table: what we measured, what it is held against, and what the command needs to measure just it."""

    ours: str
    against: str
    options: str = ""


def engine_rows(r: Numbers) -> list[Row]:
    """The engine's numbers in one cell, all peers' in the other."""
    ours = r["engine"]
    threads = f"{r['threads']} thread{'s' if r['threads'] > 1 else ''}"
    peers = [(name, group) for name, group in r.items() if name in PEERS]
    return [
        Row(
            f"{r['requests']} requests at once, {threads}: {ours['out_tok_s']:.0f} output tokens a second; "
            f"one stream {ours['decode1_tok_s']:.0f}, prefill {ours['prefill512_tok_s']:.0f}",
            " · ".join(
                f"{name}: {g['out_tok_s']:.0f} tokens a second; one stream {g['decode1_tok_s']:.0f}, "
                f"prefill {g['prefill512_tok_s']:.0f}"
                for name, g in peers
            ),
        )
    ]


def service_rows(r: Numbers) -> list[Row]:
    """A row for each promise: what was measured of it, and whether it holds."""
    return [
        Row(
            f"{verdict['promise'].removeprefix('and ')}: {verdict['measured']}",
            "holds" if verdict["holds"] else "does not hold",
            f" --part {part}",
        )
        for part, group in r.items()
        for verdict in group["verdicts"]
    ]


ROWS: dict[str, Callable[[Numbers], list[Row]]] = {  # by command
    "mlp": lambda r: [
        Row(
            f"NumPy: {r['numpy_s']:.2f} s an epoch of {'-'.join(map(str, r['sizes']))}",
            f"eager torch: {r['torch_s']:.2f} s",
        )
    ],
    "data": lambda r: [
        Row(
            f"near dedup of {r['dedup']['documents']:,} documents at {r['dedup']['threshold']}: "
            f"{r['dedup']['docs_per_s']:,.0f} a second, precision {r['dedup']['precision']:.3g}, "
            f"recall {r['dedup']['recall']:.3g}, {r['dedup']['bytes_per_doc']:,.0f} bytes a document",
            f"rensa: {r['dedup']['rensa_docs_per_s']:,.0f} a second; "
            f"datasketch: {r['dedup']['datasketch_docs_per_s']:,.0f}",
        ),
        Row(
            f"training {r['bpe']['vocab_size']:,} tokens on {r['bpe']['bytes'] / 1e6:.0f} MB: "
            f"{r['bpe']['train_s']:.1f} s",
            f"`tokenizers`: {r['bpe']['tokenizers_train_s']:.1f} s",
        ),
        Row(
            f"encoding: {r['bpe']['encode_mb_s']:.1f} MB/s",
            f"`tokenizers`: {r['bpe']['tokenizers_encode_mb_s']:.1f} MB/s",
        ),
    ],
    "model": lambda r: [
        Row(
            f"int8: {r['int8']['decode8_speedup']:.1f} times the speed of a decode step of batch 8, "
            f"{r['int8']['memory_ratio']:.1f} times less memory, "
            f"{r['int8']['perplexity_ratio']:.3f} times the perplexity",
            "fp32",
        ),
        Row(
            f"loading: at its peak {r['loading']['peak_over_weights']:.2f} times the weights in memory",
            "1 is the least",
        ),
        Row(
            f"training the book's own model: {r['training']['seconds']:.0f} s "
            f"to a validation loss of {r['training']['val_loss']:.2f}",
            "",
        ),
    ],
    "engine": engine_rows,
    "engine --dtype int8": engine_rows,
    "service": service_rows,
}


def record(name: str, numbers: Numbers, root: Path = ROOT) -> Path:
    """Keep a benchmark's numbers beside the ones of the others. Returns the file."""
    file = root / "solutions" / "benchmarks.json"
    write_json(file, load(root) | {name: numbers})
    return file


def with_kept_peers(name: str, report: Numbers, root: Path = ROOT) -> Numbers:
    """An engine's report, and the kept numbers of peers that it didn't measure, if they were measured alike."""
    kept = load(root).get(name, {})
    if any(kept.get(key) != report[key] for key in ("trace", "model", "threads")):
        return report
    return {peer: kept[peer] for peer in PEERS if peer in kept} | report


def with_kept_parts(report: Numbers, root: Path = ROOT) -> Numbers:
    """The parts of a service's report, without their samples, and the kept ones of parts that it didn't measure."""
    new = {part: group for part, group in report.items() if isinstance(group, dict) and "verdicts" in group}
    for group in new.values():
        group.pop("samples", None)
    return load(root).get("service", {}) | new


def load(root: Path = ROOT) -> dict[str, Numbers]:
    """The kept numbers by benchmark. Raises BookError for a file that can't be read."""
    file = root / "solutions" / "benchmarks.json"
    if not file.exists():
        return {}
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {name: kept[name] for name in (*ROWS, STACKS) if name in kept}
    except (OSError, ValueError, TypeError) as error:
        raise BookError(f"{file}: can't be read ({error}); delete it and measure again: bench ... --keep") from None


def table(root: Path = ROOT) -> list[str]:
    """The lines of the table."""
    lines = ["| command | ours | compared with, or verdict |", "|---|---|---|"]
    for name, numbers in load(root).items():
        if name == STACKS:
            continue
        try:
            rows = ROWS[name](numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise BookError(
                f"solutions/benchmarks.json: {name} lacks {error}; measure it again: bench {name} --keep"
            ) from None
        lines += [f"| `python -m chapters bench {name}{row.options}` | {row.ours} | {row.against} |" for row in rows]
    return lines
