"""The engine's speed on a trace, in one stream, and on a long prompt; and what people would use instead, beside it."""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from shared.inference.bench_steps import Stopwatch, bench_steps
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError
from shared.inference.peers import PEERS
from shared.inference.peers.rates import Told, rates, tokens_to_come
from shared.inference.peers.run import PeerFailed, PeerMissing, run_peer
from shared.inference.sampling import SamplingParams
from shared.measure.progress import progress_bar
from shared.measure.trace import Trace, make_trace, write_trace
from shared.model.transformer import Transformer

FOUR = ("out_tok_s", "total_tok_s", "decode1_tok_s", "prefill512_tok_s")

Say = Callable[[str], None]


def default_trace() -> Trace:
    """64 requests with 9,973 prompt and 4,513 output tokens."""
    return make_trace(64, seed=6998, prompt_lengths=(16, 512), output_lengths=(16, 128))


def answer_all(engine: LLMEngine, requests: Trace, told: Told) -> list[list[int]]:
    """Give an engine all requests at once and step until they are answered: the `Answer` that `rates` measures."""
    answers: list[list[int]] = [[] for _ in requests]
    for i, request in enumerate(requests):
        params = SamplingParams(max_tokens=request.max_new_tokens, ignore_eos=True)
        engine.add_request(str(i), request.prompt_ids, params)
    try:
        while engine.has_unfinished:
            for request_id, output in engine.step():
                if isinstance(output, GenerationError):
                    output.add_note(f"while answering requests[{request_id}] of the trace")
                    raise output
                answers[int(request_id)] += output.token_ids
                told(len(output.token_ids))
    finally:
        for i in range(len(requests)):
            engine.abort(str(i))  # after Ctrl-C; the answered ones are forgotten already
    return answers


def measure_engine(model: Transformer, trace: Trace, told: Told) -> dict[str, Any]:
    """What `rates` measures, and scheduler_share: the part of the steps' time that went into deciding what to run."""
    engine, watch = LLMEngine(model, max_waiting=len(trace)), Stopwatch()

    def answer(requests: Trace, told: Told) -> list[list[int]]:
        watch.seconds = {}  # so that the last call, which is the trace, counts
        return answer_all(engine, requests, told)

    with watch.on(engine.scheduler, "schedule", "update"), watch.on(engine, "step"):
        report = rates(answer, trace, model.config.vocab_size, told)
    report["scheduler_share"] = (watch.seconds["schedule"] + watch.seconds["update"]) / watch.seconds["step"]
    report["attention"] = engine.runner.backend.name
    return report


def bench_engine(
    model: Transformer, model_dir: Path, trace: Trace, threads: int = 1, scaling: bool = False,
    peers: Sequence[str] = (), python: str = sys.executable, progress: bool = True, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """The report: "engine", a group for each peer that could be measured, "skipped" (name -> why) for the others, the
    number of threads, and whether it was "interrupted" by Ctrl-C; what was measured until then is in it.

    Each group has the keys of `rates`; the engine's has those of measure_engine, bench_steps and twice_threads, too.
    model: ours, as it is to be measured. model_dir: the weights that the peers convert. trace: all requests are there
    from the start, whatever their times. scaling: twice_threads, too. python: the interpreter of an environment that
    has the peers. first_tokens_as_ours: the share of requests to which a peer's answer begins as ours does; rounding
    decides here and there, but far from 1 at the same precision, a peer computes something else.
    """
    torch.set_num_threads(threads)
    report: dict[str, Any] = {"skipped": {}, "threads": threads, "interrupted": False}
    try:
        with progress_bar("engine: tokens", tokens_to_come(trace), progress) as step:
            ours = measure_engine(model, trace, told=stepper(step))
        first = ours.pop("first_tokens")
        report["engine"] = ours
        say(_line("engine", ours))
        ours |= bench_steps(model, progress)
        if scaling:
            ours["twice_threads_speedup"] = twice_threads(model, trace, ours["wall_s"], threads, progress)
        with tempfile.TemporaryDirectory() as scratch:
            trace_file = Path(scratch) / "trace.json"
            write_trace(trace, trace_file)
            for name in peers:
                try:
                    with progress_bar(f"{name}: tokens", tokens_to_come(trace), progress) as step:
                        group = run_peer(name, model_dir, trace_file, threads, stepper(step), say, python)
                except (PeerMissing, PeerFailed) as error:
                    report["skipped"][name] = str(error)
                    say(f"{name}: left out: {error}")
                    continue
                theirs = group.pop("first_tokens")
                same = fmean(a == b for a, b in zip(first, theirs, strict=True))
                report[name] = group | {"first_tokens_as_ours": same, "setting": PEERS[name].setting}
                say(_line(name, group))
    except KeyboardInterrupt:
        report["interrupted"] = True
    return report


def twice_threads(model: Transformer, trace: Trace, wall_s: float, threads: int, progress: bool) -> float:
    """How many times as fast the trace runs on twice the threads; wall_s: how long it took on `threads`."""
    torch.set_num_threads(2 * threads)
    try:
        engine = LLMEngine(model, max_waiting=len(trace))
        answer_all(engine, trace[:1], lambda n: None)  # a warm-up
        engine = LLMEngine(model, max_waiting=len(trace))
        n_tokens = sum(request.max_new_tokens for request in trace)
        with progress_bar("engine, twice the threads: tokens", n_tokens, progress) as step:
            start = time.perf_counter()
            answer_all(engine, trace, stepper(step))
            return wall_s / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)


def stepper(step: Callable[[], None]) -> Told:
    """A progress bar's single steps as steps of n."""

    def told(n: int) -> None:
        for _ in range(n):
            step()

    return told


def _line(name: str, group: dict[str, Any]) -> str:
    out, _, decode, prefill = (group[key] for key in FOUR)
    return f"{name:<17} {out:6.1f} output tokens/s, one stream {decode:5.1f}, prefill {prefill:5.0f} tokens/s"
