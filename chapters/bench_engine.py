"""`python -m chapters bench engine`: its inputs checked before anything is measured."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

from chapters.bench_display import count
from chapters.bench_stacks import Dtype, load
from chapters.console import console
from chapters.regions import BookError


class Precision(StrEnum):
    """The engine's number formats."""

    fp32 = "fp32"
    int8 = "int8"


def choose_peers(all_of_them: bool, names: list[str], python: str) -> list[str]:
    """The peers to measure. Raises BookError for a name that isn't one, and for an interpreter that isn't there."""
    from shared.inference.peers import PEERS

    for name in names:
        if name not in PEERS:
            raise BookError(f"--peer {name}: there is none of that name; there are {', '.join(PEERS)}")
    chosen = names or (list(PEERS) if all_of_them else [])
    if chosen and shutil.which(python) is None:
        raise BookError(f"--peers-python {python}: there is no such program")
    return chosen


def run_engine(
    trace_file: Path | None,
    model_dir: Path | None,
    threads: int,
    dtype: Precision,
    scaling: bool,
    peers: list[str],
    python: str,
) -> dict[str, Any]:
    """Measure; see shared.inference.bench_engine. "interrupted" says whether Ctrl-C ended it before all was measured.
    Raises BookError for a trace or a model that can't be used."""
    import torch

    from shared import reader_parts
    from shared.inference.bench_engine import bench_engine, default_trace
    from shared.inference.peers.rates import PREFILL_TOKENS
    from shared.measure.trace import TraceError, check_fits, fingerprint, read_trace
    from shared.model.fetch import ensure_model

    torch.set_num_threads(threads)
    try:
        trace = read_trace(trace_file) if trace_file else default_trace()
        model, name = load(model_dir, Dtype.float32 if dtype is Precision.fp32 else Dtype.int8)
        config = model.config
        check_fits(trace, config.vocab_size, config.max_position_embeddings, str(trace_file or "the default trace"))
    except TraceError as error:
        raise BookError(str(error)) from None
    if config.max_position_embeddings < (least := PREFILL_TOKENS + 2):
        raise BookError(f"{name}: its context is {config.max_position_embeddings} tokens, and a prompt of "
                        f"{PREFILL_TOKENS} is part of the benchmark; it takes a model of at least {least}")  # fmt: skip
    for line in reader_parts():
        console.print(line, style="dim", markup=False)
    n_prompt, n_output = (sum(len(r.prompt_ids) for r in trace), sum(r.max_new_tokens for r in trace))
    console.print(
        f"{name}, {dtype}: {count(len(trace), 'request')}, {n_prompt:,} prompt and {n_output:,} output tokens"
    )
    report = bench_engine(
        model,
        model_dir or ensure_model(),
        trace,
        threads,
        scaling,
        peers,
        python,
        say=lambda text: console.print(text, markup=False),
    )
    setting = {"model": name, "dtype": str(dtype), "trace": fingerprint(trace), "requests": len(trace)}
    return report | setting
