"""The stacks that `python -m chapters bench` measures: loading, replaying a trace on each, and the table."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from chapters.console import console
from chapters.regions import BookError

if TYPE_CHECKING:
    from shared.measure.bench import Generate
    from shared.measure.trace import TraceRequest
    from shared.model.transformer import Transformer


class Stack(StrEnum):
    """The stacks there are to measure, each with the chapter that builds it."""

    naive = "naive"
    cached = "cached"
    all = "all"


class Dtype(StrEnum):
    """Names of torch's number formats, and int8: weights quantised by chapter 8."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


CHAPTER = {Stack.naive: 0, Stack.cached: 9}
CURRENT = Stack.cached  # the best there is so far
DEFAULT_TRACE = {"n_requests": 2, "seed": 0, "prompt_lengths": (8, 32), "output_lengths": (256, 256)}


def measure(
    stacks: Sequence[Stack], trace_file: Path | None, threads: int, model_dir: Path | None, dtype: Dtype
) -> list[dict[str, Any]]:
    """Run each stack on the trace; a report each, in order. Ctrl-C ends it early: the last is then "interrupted".

    A finished run is put on the scoreboard at once. Raises BookError for a trace or a model that can't be used.
    """
    from shared.measure import scoreboard
    from shared.measure.trace import TraceError, check_fits, fingerprint, make_trace, read_trace

    try:
        trace = read_trace(trace_file) if trace_file else make_trace(**DEFAULT_TRACE)
        scoreboard.load()  # a broken file is better heard of before the run than after it
        import torch

        from shared import reader_parts

        torch.set_num_threads(threads)
        model, name = load(model_dir, dtype)
        check_fits(
            trace, model.config.vocab_size, model.config.max_position_embeddings, str(trace_file or "the default trace")
        )
    except (TraceError, scoreboard.ScoreboardError) as error:
        raise BookError(str(error)) from None
    for line in reader_parts():
        console.print(line, style="dim", markup=False)
    setting = {
        "model": name,
        "threads": threads,
        "dtype": str(dtype),
        "trace": fingerprint(trace),
    }
    reports = []
    for stack in stacks:
        reports.append({"stack": str(stack), **setting, **run(make_stack(stack, model), trace, stack)})
        if reports[-1]["interrupted"]:
            break
        if reports[-1]["total"]["requests"]:
            scoreboard.record(str(stack), CHAPTER[stack], reports[-1])
    return reports


def run(generate: "Generate", trace: "Sequence[TraceRequest]", stack: Stack) -> dict[str, Any]:
    """Replay the trace on one stack, after a warm-up that isn't counted (torch's first steps set things up)."""
    from shared.measure.bench import run_trace

    for _ in generate(trace[0].prompt_ids[:8], 2):
        pass
    return run_trace(generate, trace, label=f"{stack}: tokens")


def load(model_dir: Path | None, dtype: Dtype) -> "tuple[Transformer, str]":
    """The model and its folder's name. Raises BookError for a folder that holds none."""
    import torch

    from shared.data.tokenizer import Tokenizer
    from shared.model.calibration import calibration_ids
    from shared.model.fetch import ensure_model
    from shared.model.int8 import quantize_int8
    from shared.model.weights import load_model

    if model_dir is not None and not model_dir.is_dir():
        raise BookError(f"--model {model_dir}: there is no such folder")
    try:
        path = model_dir or ensure_model()
        if dtype is Dtype.int8:
            calibration = calibration_ids(Tokenizer.load(path).encode)
            return quantize_int8(load_model(path), calibration), path.resolve().name
        return load_model(path, dtype=getattr(torch, dtype)), path.resolve().name
    except (OSError, ValueError, RuntimeError) as error:
        raise BookError(f"the model can't be loaded: {error}") from error


def make_stack(stack: Stack, model: "Transformer") -> "Generate":
    """The stack as a function of a prompt and a number of tokens."""
    if stack is Stack.naive:
        from shared.measure.baseline import generate_naive

        return lambda prompt_ids, n: generate_naive(model, prompt_ids, n)
    from shared.inference.generate import generate
    from shared.inference.sampling import SamplingParams

    return lambda prompt_ids, n: generate(model, prompt_ids, SamplingParams(max_tokens=n, ignore_eos=True))


def print_table(reports: Sequence[dict[str, Any]]) -> None:
    """One row a report, and what the last gains over the first."""
    first = reports[0]
    title = f"{first['model']}, {first['dtype']}, CPU threads: {first['threads']}, trace {first['trace']}"
    table = Table(title=title, title_justify="left")
    for column in ("stack", "output tok/s", "TTFT P50", "TPOT P50", "E2E P99", "wall", "peak memory"):
        table.add_column(column, justify="left" if column == "stack" else "right")
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
        for kind, count in report["errors"].items():
            console.print(f"{report['stack']}: {count} requests not counted: {kind}", style="red", markup=False)
    rates = [report["total"]["output_tok_s"] for report in reports]
    if len(reports) > 1 and all(rates):
        gain = f"{rates[-1] / rates[0]:.1f} times as many tokens per second"
        console.print(f"{reports[-1]['stack']} makes {gain} as {first['stack']}")


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"
