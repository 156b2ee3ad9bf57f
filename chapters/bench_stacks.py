"""The stacks that `python -m chapters bench` measures: loading, replaying a trace on each, and the table."""

import gc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chapters.console import console
from chapters.regions import BookError

if TYPE_CHECKING:
    from shared.inference.sampling import SamplingParams
    from shared.measure.bench import Generate
    from shared.measure.replay import Submit
    from shared.measure.trace import Trace, TraceRequest
    from shared.model.transformer import Transformer


class Stack(StrEnum):
    """The stacks there are to measure, in the order of the chapters that build them."""

    naive = "naive"
    cached = "cached"
    paged = "paged"
    static_batch = "static-batch"
    window = "window"
    continuous = "continuous"
    prefix = "prefix"
    int8 = "int8"
    all = "all"


class Dtype(StrEnum):
    """Names of torch's number formats, and int8: weights quantised by chapter 8."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


CHAPTER = {
    Stack.naive: 0,
    Stack.cached: 9,
    Stack.paged: 10,
    Stack.static_batch: 11,
    Stack.window: 11,
    Stack.continuous: 12,
    Stack.prefix: 12,
    Stack.int8: 12,
}
WHAT = {
    Stack.naive: "one at a time, everything computed again for each token",
    Stack.cached: "one at a time, with keys and values kept",
    Stack.paged: "one at a time, with keys and values in blocks",
    Stack.static_batch: "batches of 8, sorted by output length; all requests are known before",
    Stack.window: "batches of 8, or what came in 10 ms; an answer comes in one piece, so that TTFT is E2E",
    Stack.continuous: "requests join and leave the running batch at any step; nothing is shared",
    Stack.prefix: "as continuous, and the beginning that all prompts share is computed once",
    Stack.int8: "as continuous, on int8 weights",
}
CURRENT = Stack.continuous  # the best there is so far
SHARED_TOKENS = 64


def default_trace() -> "Trace":
    """A dozen requests, all at once, that begin with the same tokens, as under a system prompt."""
    from shared.measure.trace import make_trace

    shared = make_trace(1, seed=1, prompt_lengths=(SHARED_TOKENS, SHARED_TOKENS))[0].prompt_ids
    requests = make_trace(12, prompt_lengths=(8, 64), output_lengths=(8, 32))
    return [replace(request, prompt_ids=shared + request.prompt_ids) for request in requests]


def measure(
    stacks: Sequence[Stack], trace_file: Path | None, threads: int, model_dir: Path | None, dtype: Dtype
) -> list[dict[str, Any]]:
    """Run each stack on the trace; a report each, in order. Ctrl-C ends it early: the last is then "interrupted".

    A finished run is put on the scoreboard at once. Raises BookError for a trace or a model that can't be used.
    """
    from shared.measure import scoreboard
    from shared.measure.memory import free_unused_memory
    from shared.measure.trace import TraceError, check_fits, fingerprint, read_trace

    try:
        trace = read_trace(trace_file) if trace_file else default_trace()
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
    reports: list[dict[str, Any]] = []
    for stack in stacks:
        if stack is Stack.int8 and dtype is not Dtype.int8:
            model, setting["dtype"] = load(model_dir, Dtype.int8)[0], str(Dtype.int8)
        gc.collect()  # what the stack before it held is no part of this one's memory
        free_unused_memory()
        reports.append({"stack": str(stack), **setting, **run(stack, model, trace)})
        if reports[-1]["interrupted"]:
            break
        if reports[-1]["total"]["requests"]:
            scoreboard.record(row_name(stack, dtype), CHAPTER[stack], reports[-1])
    return reports


def row_name(stack: Stack, dtype: Dtype) -> str:
    """A stack's name on the scoreboard: with the number format, unless it is the usual one or the name says it."""
    name = stack.replace("-", " ")
    return name if dtype is Dtype.float32 or stack is Stack.int8 else f"{name} {dtype}"


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
            has_tokenizer = (path / "tokenizer.json").is_file()  # without text, quantize_int8 measures on random ids
            calibration = calibration_ids(Tokenizer.load(path).encode) if has_tokenizer else None
            return quantize_int8(load_model(path), calibration), path.resolve().name
        return load_model(path, dtype=getattr(torch, dtype)), path.resolve().name
    except (OSError, ValueError, RuntimeError) as error:
        raise BookError(f"the model can't be loaded: {error}") from error


def run(stack: Stack, model: "Transformer", trace: "Trace") -> dict[str, Any]:
    """Replay the trace on a stack, after a warm-up that isn't counted (torch's first steps set things up)."""
    from shared.measure.bench import run_trace
    from shared.measure.replay import run_batches, run_callers, run_steps
    from shared.measure.trace import TraceRequest

    warm_up, label = [TraceRequest(trace[0].prompt_ids[:8], 2)], f"{stack}: tokens"
    if stack in (Stack.naive, Stack.cached):
        generate = one_at_a_time(stack, model)
        run_trace(generate, warm_up, progress=False)
        return run_trace(generate, trace, label=label)
    if stack is Stack.static_batch:
        run_batches(partial(static, model), warm_up, progress=False)
        return run_batches(partial(static, model), trace, label=label)
    if stack is Stack.window:
        serve = partial(window, model, max_waiting=len(trace))
        run_callers(serve, warm_up, progress=False)
        return run_callers(serve, trace, label=label)
    settings: dict[str, Any] = {"prefix_caching": stack is Stack.prefix, "max_waiting": len(trace)}
    if stack is Stack.paged:
        settings["max_num_seqs"] = 1
    engine = EngineSteps(model, **settings)
    run_steps(engine, warm_up, progress=False)
    return run_steps(engine, trace, label=label)


def one_at_a_time(stack: Stack, model: "Transformer") -> "Generate":
    """The stack as a function of a prompt and a number of tokens."""
    if stack is Stack.naive:
        from shared.measure.baseline import generate_naive

        return lambda prompt_ids, n: generate_naive(model, prompt_ids, n)
    from shared.inference.generate import generate

    return lambda prompt_ids, n: generate(model, prompt_ids, greedy(n))


def static(model: "Transformer", trace: "Trace") -> Iterator[int]:
    """The index of the request of each token of static batches."""
    from shared.inference.static_batch import static_batch

    params = [greedy(request.max_new_tokens) for request in trace]
    for index, _ in static_batch(model, [request.prompt_ids for request in trace], params):
        yield index


@asynccontextmanager
async def window(model: "Transformer", max_waiting: int) -> AsyncIterator["Submit"]:
    """Chapter 11's batcher, as long as the block lasts."""
    from shared.inference.batch_queue import BatchPolicy
    from shared.inference.batcher import model_batcher

    async with model_batcher(model, BatchPolicy(max_waiting=max_waiting)) as batcher:
        yield lambda request: batcher.submit(request.prompt_ids, greedy(request.max_new_tokens))


class EngineSteps:
    """The engine as `run_steps` drives it."""

    def __init__(self, model: "Transformer", **settings: Any) -> None:
        from shared.inference.llm_engine import LLMEngine

        self.engine = LLMEngine(model, **settings)

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return self.engine.has_unfinished

    def add(self, index: int, request: "TraceRequest") -> None:
        """Hand request `index` of the trace to the engine."""
        self.engine.add_request(str(index), request.prompt_ids, greedy(request.max_new_tokens))

    def step(self) -> Iterator[int]:
        """Compute one step. Returns the requests' indices, one for each new token; raises what failed one of them."""
        for request_id, output in self.engine.step():
            if isinstance(output, Exception):
                output.add_note(f"while answering requests[{request_id}] of the trace")
                raise output
            yield int(request_id)


def greedy(max_tokens: int) -> "SamplingParams":
    """The likeliest tokens, exactly max_tokens of them: stacks are compared on the same amount of work."""
    from shared.inference.sampling import SamplingParams

    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)
