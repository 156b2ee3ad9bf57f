"""`python -m chapters bench`: the same trace on each stack, one row each on the scoreboard."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from chapters.regions import BookError

if TYPE_CHECKING:
    from shared.measure.bench import Generate
    from shared.measure.trace import TraceRequest
    from shared.model.transformer import Transformer

app = typer.Typer(no_args_is_help=False)
console = Console(highlight=False, soft_wrap=True)


class Stack(StrEnum):
    """The stacks there are to measure, each with the chapter that builds it."""

    naive = "naive"
    cached = "cached"
    all = "all"


class Dtype(StrEnum):
    """Names of torch's number formats."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


CHAPTER = {Stack.naive: 0, Stack.cached: 9}
CURRENT = Stack.cached  # the best there is so far
DEFAULT_TRACE = {"n_requests": 2, "seed": 0, "prompt_lengths": (8, 32), "output_lengths": (256, 256)}

JsonOut = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", dir_okay=False, help="write the report to this file")
]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the requests, as JSON (bench make-trace); default: two of 256 new tokens"),
    ] = None,
    json: JsonOut = None,
    stack: Annotated[
        Stack | None, typer.Option(help="what to measure; default: all, or with --json the newest, cached")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is slow, but steady")] = 1,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a model's folder; default: SmolLM2-135M-Instruct")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="the number format of the weights")] = Dtype.float32,
) -> None:
    """Replay a trace, print what each stack achieves, and put it on the scoreboard.

    Generation is greedy and goes on past the end-of-sequence token, so that every stack does the same work.
    """
    if context.invoked_subcommand is not None:
        return
    if json is not None and stack is Stack.all:
        raise BookError("--json writes the report of one stack; choose it: --stack naive, or --stack cached")
    prepare_output(json)
    chosen = stack or (CURRENT if json else Stack.all)
    stacks = [Stack.naive, Stack.cached] if chosen is Stack.all else [chosen]
    reports = measure(stacks, trace, threads, model, dtype)
    print_table(reports)
    if json is not None:
        write_report(json, reports[-1])
    if reports[-1]["interrupted"]:
        console.print("interrupted: these are the numbers so far, and they don't go on the scoreboard")
        raise typer.Exit(130)


@app.command("make-trace")
def make_trace_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False)],
    requests: Annotated[int, typer.Option(help="how many requests")] = 8,
    seed: Annotated[int, typer.Option(help="the same seed makes the same trace")] = 0,
    prompt_lengths: Annotated[str, typer.Option(metavar="LOW:HIGH", help="tokens, log-uniform")] = "16:128",
    output_lengths: Annotated[str, typer.Option(metavar="LOW:HIGH", help="tokens, log-uniform")] = "16:128",
    rate: Annotated[
        float | None, typer.Option(help="requests per second, Poisson arrivals; default: all at once")
    ] = None,
) -> None:
    """Make a trace of random requests, for bench --trace FILE."""
    from shared.measure.trace import make_trace, write_trace

    prepare_output(file)
    lengths = parse_range(prompt_lengths, "--prompt-lengths"), parse_range(output_lengths, "--output-lengths")
    try:
        trace = make_trace(requests, seed, *lengths, rate)
    except ValueError as error:
        raise BookError(str(error)) from None
    write_trace(trace, file)
    new = sum(request.max_new_tokens for request in trace)
    console.print(f"{file}: {len(trace)} requests, {new} new tokens, the last request at {trace[-1].at:.1f} s")


@app.command()
def mlp(json: JsonOut = None, threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1) -> None:
    """Chapter 1: an epoch of the NumPy net against the same net in torch."""
    prepare_output(json)
    from shared.training.bench_mlp import bench_mlp

    report = bench_mlp(threads=threads, progress=True)
    table = Table("NumPy, s", "torch, s", "NumPy / torch", title="one epoch, best of several", title_justify="left")
    table.add_row(f"{report['numpy_s']:.2f}", f"{report['torch_s']:.2f}", f"{report['ratio']:.2f}")
    console.print(table)
    if json is not None:
        write_report(json, report)


@app.command()
def data(json: JsonOut = None) -> None:
    """Chapters 3 and 4: our dedup and our tokenizer against the libraries people use."""
    prepare_output(json)
    from shared.data.bench_bpe import bench_bpe
    from shared.data.bench_dedup import bench_dedup

    try:
        report = {"dedup": bench_dedup(progress=True), "bpe": bench_bpe(progress=True)}
    except ImportError as error:
        raise BookError(str(error)) from None
    for part, numbers in report.items():
        for name, value in numbers.items():
            console.print(
                f"{part:<6} {name:<28} {value:.4g}" if isinstance(value, float) else f"{part:<6} {name:<28} {value}"
            )
    if json is not None:
        write_report(json, report)


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

    from shared.model.fetch import ensure_model
    from shared.model.weights import load_model

    if model_dir is not None and not model_dir.is_dir():
        raise BookError(f"--model {model_dir}: there is no such folder")
    try:
        path = model_dir or ensure_model()
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


def parse_range(text: str, option: str) -> tuple[int, int]:
    """ "16:128" -> (16, 128); "64" -> (64, 64). Raises BookError."""
    try:
        low, _, high = text.partition(":")
        return int(low), int(high or low)
    except ValueError:
        raise BookError(f"{option}: {text!r} is not LOW:HIGH, as in 16:128") from None


def prepare_output(path: Path | None) -> None:
    """Make sure that a file can be written there before a long run, not after it. Raises BookError."""
    if path is not None:
        try:
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            probe = path.with_name(f".{path.name}.probe")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise BookError(f"{path}: can't be written: {error.strerror}") from None


def write_report(path: Path, report: dict[str, Any]) -> None:
    from shared.measure.files import write_json

    try:
        write_json(path, report)
    except OSError as error:
        raise BookError(f"{path}: can't be written: {error.strerror}") from None
    console.print(f"{path}: written", markup=False)
