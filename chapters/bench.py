"""`python -m chapters bench`: the same trace on each stack, and the book's parts against what people use."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from chapters.bench_display import print_engine, print_table, shown
from chapters.bench_engine import Precision, choose_peers, run_engine
from chapters.bench_service import Part, all_holds, print_end, run_service
from chapters.bench_stacks import CHAPTER, CURRENT, Dtype, Stack, measure, row_name
from chapters.bench_table import STACKS, record, with_kept_parts, with_kept_peers
from chapters.console import console
from chapters.regions import BookError
from chapters.reports import prepare_output, write_report

app = typer.Typer(no_args_is_help=False)

MAX_THREADS = 256

JsonOut = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", dir_okay=False, help="write the report to this file")
]

Keep = Annotated[bool, typer.Option("--keep", help="put the numbers into the README's table")]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the requests, as JSON (bench make-trace); default: a dozen short ones"),
    ] = None,
    json: JsonOut = None,
    stack: Annotated[
        Stack | None, typer.Option(help="what to measure; default: all, or with --json the newest")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=MAX_THREADS, help="CPU threads; one is slow, but steady")] = 1,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a model's folder; default: SmolLM2-135M-Instruct")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="the number format of the weights")] = Dtype.float32,
    keep: Annotated[bool, typer.Option("--keep", help="draw all stacks in the README's plot")] = False,
) -> None:
    """Replay a trace, print what each stack achieves, and put it on the scoreboard.

    Generation is greedy and goes on past the end-of-sequence token, so that every stack does the same work.
    """
    if context.invoked_subcommand is not None:
        refuse_options_before(context.invoked_subcommand, context)
        return
    if json is not None and stack is Stack.all:
        raise BookError("--json writes the report of one stack; choose it, as in --stack naive")
    if keep and (trace or model or json or stack not in (None, Stack.all) or dtype is not Dtype.float32):
        raise BookError("--keep is for all stacks on the default trace, model and --dtype; leave the other options out")
    prepare_output(json)
    chosen = stack or (CURRENT if json else Stack.all)
    stacks = list(CHAPTER) if chosen is Stack.all else [chosen]
    reports = measure(stacks, trace, threads, model, dtype)
    print_table(reports)
    if json is not None:
        write_report(json, reports[-1])
    if reports[-1]["interrupted"]:
        console.print("interrupted: these are the numbers so far, and they don't go on the scoreboard")
        raise typer.Exit(130)
    if keep:
        console.print(f"{keep_stacks()}: written; now python -m chapters build", markup=False)


def keep_stacks() -> Path:
    """Keep the scoreboard's rows of all stacks, which were just measured. Returns the file."""
    from shared.measure import scoreboard

    names = [row_name(stack, Dtype.float32) for stack in CHAPTER]
    return record(STACKS, {"rows": [row for row in scoreboard.load() if row["name"] in names]})


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
def mlp(
    json: JsonOut = None,
    threads: Annotated[int, typer.Option(min=1, max=MAX_THREADS, help="CPU threads")] = 1,
    keep: Keep = False,
) -> None:
    """Chapter 1: an epoch of the NumPy net against the same net in torch."""
    from shared.training.bench_mlp import bench_mlp

    run_parts("mlp", {"mlp": lambda: bench_mlp(threads=threads, progress=True)}, json, keep)


@app.command()
def data(json: JsonOut = None, keep: Keep = False) -> None:
    """Chapters 3 and 4: our dedup and our tokenizer against the libraries people use."""
    from shared.data.bench_bpe import bench_bpe
    from shared.data.bench_dedup import bench_dedup

    parts = {"dedup": lambda: bench_dedup(progress=True), "bpe": lambda: bench_bpe(progress=True)}
    run_parts("data", parts, json, keep)


@app.command()
def model(json: JsonOut = None, keep: Keep = False) -> None:
    """Chapters 6 and 8: training the book's own model, loading weights, and int8 against fp32."""
    from shared.evaluation.bench_int8 import bench_int8
    from shared.model.bench_loading import bench_loading
    from shared.training.bench_training import bench_training

    parts = {
        "int8": lambda: bench_int8(progress=True),
        "loading": lambda: bench_loading(progress=True),
        "training": lambda: bench_training(progress=True),
    }
    run_parts("model", parts, json, keep)


@app.command()
def engine(
    json: JsonOut = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the requests, all at once whatever their times; default: 64")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="measure what people would use instead, too")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="only this peer; may be given more than once")
    ] = None,
    peers_python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="the interpreter of an environment that has the peers", show_default="this one"
        ),
    ] = sys.executable,
    threads: Annotated[int, typer.Option(min=1, max=MAX_THREADS, help="CPU threads, the same for all")] = 1,
    dtype: Annotated[Precision, typer.Option(help="the engine's number format; peers have their own")] = Precision.fp32,
    scaling: Annotated[bool, typer.Option("--scaling", help="the trace on twice the threads as well")] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a model's folder; default: SmolLM2-135M-Instruct")
    ] = None,
    keep: Keep = False,
) -> None:
    """Chapters 9 to 12: the engine on a trace, in one stream and on a long prompt, and its peers on the same."""
    if keep and (trace is not None or model is not None):
        raise BookError("--keep is for the default trace and model, or the table would compare what can't be compared; "
                        "leave out --trace and --model, or --keep")  # fmt: skip
    prepare_output(json)
    chosen = choose_peers(peers, peer or [], peers_python)
    report = run_engine(trace, model, threads, dtype, scaling, chosen, peers_python)
    print_engine(report)
    if json is not None:
        write_report(json, report)
    if report["interrupted"]:
        console.print("interrupted: these are the numbers so far")
        raise typer.Exit(130)
    if keep:
        name = "engine" if dtype is Precision.fp32 else f"engine --dtype {dtype}"
        kept = record(name, with_kept_peers(name, report))
        console.print(f"{kept}: written; now python -m chapters build", markup=False)
    if any(name in report["skipped"] for name in peer or []):
        raise typer.Exit(1)  # asked for by name, and not measured


@app.command()
def service(
    json: JsonOut = None,
    part: Annotated[
        list[Part] | None, typer.Option(help="only this part; may be given more than once; default: all but the soak")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.2, help="how long the soak lasts (30), and each level of the load (1.5)")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="how many kills (10), fuzzed requests (10,000), rounds of others (3)")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a model's folder; default: SmolLM2-135M-Instruct")
    ] = None,
    keep: Keep = False,
) -> None:
    """Chapters 13 and 14: the whole server under load, with slow readers, kills and fuzz, and what HTTP costs.

    Exit status 0: all that is promised holds; 1: something doesn't.
    """
    prepare_output(json)
    report = run_service(part, minutes, count, model)
    print_end(report)
    if json is not None:
        write_report(json, report)
    if report["interrupted"]:
        raise typer.Exit(130)
    if keep:
        kept = record("service", with_kept_parts(report))
        console.print(f"{kept}: written; now python -m chapters build", markup=False)
    if not all_holds(report):
        raise typer.Exit(1)


def refuse_options_before(command: str, context: typer.Context) -> None:
    """Raise BookError for an option between `bench` and its subcommand: nobody would read it."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise BookError(f"{parameter.opts[0]} stands before {command} and belongs to bench alone; "
                            f"options of {command} come after its name (bench {command} --help)")  # fmt: skip


def run_parts(name: str, parts: dict[str, Callable[[], dict[str, Any]]], json: Path | None, keep: bool) -> None:
    """Measure each part, print its numbers, and write them where they are wanted: all of them under their parts' names,
    or, where the benchmark is one part, plainly."""
    prepare_output(json)
    report: dict[str, Any] = {}
    for part, measure_part in parts.items():
        try:
            report[part] = measure_part()
        except ImportError as error:  # a library to compare with
            raise BookError(str(error)) from None
        for key, value in report[part].items():
            console.print(f"{part:<9} {key:<28} {shown(value)}", markup=False)
    whole = report.get(name, report)
    if json is not None:
        write_report(json, whole)
    if keep:
        console.print(f"{record(name, whole)}: written; now python -m chapters build", markup=False)


def parse_range(text: str, option: str) -> tuple[int, int]:
    """ "16:128" -> (16, 128); "64" -> (64, 64). Raises BookError."""
    try:
        low, _, high = text.partition(":")
        return int(low), int(high or low)
    except ValueError:
        raise BookError(f"{option}: {text!r} is not LOW:HIGH, as in 16:128") from None
