"""Replay a trace on a stack that answers one request at a time, and report what it achieved."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shared.measure.memory import peak_memory_mb, reset_peak
from shared.measure.progress import progress_bar
from shared.measure.summary import RequestRecord, summarize
from shared.measure.trace import Trace

Generate = Callable[[Sequence[int], int], Iterator[int]]  # (prompt_ids, max_new_tokens) -> ids; greedy, EOS ignored


def run_trace(
    generate: Generate,
    trace: Trace,
    progress: bool = True,
    label: str = "tokens",
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Answer a trace's requests one after the other, in the order of their arrival, and return the report.

    A request is answered when it is due and those before it are done; its latencies count from when it was due, so
    that queueing is part of them. An answer that isn't of the length asked for counts as an error ("5 of 8 tokens").
    Ctrl-C ends the run: the report then has "interrupted": true and counts the rest as "interrupted". What `generate`
    raises is raised here, with the request's index. The peak of memory is this run's own on Linux, else the process's.
    """
    records = [RequestRecord(i, len(r.prompt_ids), arrived=r.at, error="interrupted") for i, r in enumerate(trace)]
    interrupted = False
    reset_peak()
    start = clock()
    try:
        with progress_bar(label, sum(request.max_new_tokens for request in trace), progress) as step:
            for record in sorted(records, key=lambda record: record.arrived):
                request = trace[record.index]
                if (early := start + request.at - clock()) > 0:
                    sleep(early)
                try:
                    for _ in generate(request.prompt_ids, request.max_new_tokens):
                        record.token_times.append(clock() - start)
                        step()
                except Exception as error:
                    error.add_note(f"while answering requests[{record.index}] of the trace")
                    raise
                n = len(record.token_times)
                record.error = None if n == request.max_new_tokens else f"{n} of {request.max_new_tokens} tokens"
    except KeyboardInterrupt:
        interrupted = True
    return {"interrupted": interrupted, **summarize(records, peak_memory_mb())}
