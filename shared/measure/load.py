"""The load generator: callers who come when they come, or callers who wait their turn.

Open loop: every request of a trace is sent when it is due, however busy the server is, as strangers on the internet do.
Closed loop: a fixed number of callers, each of whom sends the next request when the last is answered.

Coordinated omission (Gil Tene): a closed loop stops asking while the server stalls. A stall of ten seconds then shows
up as one slow request, where ten seconds of strangers would all have waited, and the percentiles look fine. The open
loop therefore counts each request's latency from the moment it was due, not from the moment it could be sent.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from shared.measure.memory import peak_memory_mb
from shared.measure.progress import progress_bar
from shared.measure.summary import RequestRecord, summarize
from shared.measure.trace import Trace, TraceRequest

Send = Callable[[TraceRequest], AsyncIterator[int]]  # yields, for each piece of the answer, how many tokens it holds


class RequestFailed(Exception):
    """A request that was not answered in full. Its text is the kind of error, the same for all of a kind."""


async def open_loop(send: Send, trace: Trace, progress: bool = True) -> dict[str, Any]:
    """Send every request when it is due and return the report (see `summarize`).

    Latencies count from when a request was due. A request that fails is counted under its kind of error. Ctrl-C, or
    cancelling the task, ends the run: what isn't answered by then counts as "interrupted", and the report still comes.
    """
    records = [RequestRecord(i, len(r.prompt_ids), arrived=r.at, error="interrupted") for i, r in enumerate(trace)]
    start = time.perf_counter()
    with progress_bar("requests answered", len(trace), progress) as step:

        async def caller(record: RequestRecord, request: TraceRequest) -> None:
            await asyncio.sleep(start + request.at - time.perf_counter())
            await _ask(send, request, record, start)
            step()

        await _run_all([caller(record, request) for record, request in zip(records, trace, strict=True)])
    return summarize(records, peak_memory_mb())


async def closed_loop(send: Send, trace: Trace, callers: int, progress: bool = True) -> dict[str, Any]:
    """Let `callers` callers work through the trace, each sending its next request when its last is answered.

    The trace's "at" is not used: a request arrives when a caller gets to it. Returns the report, as `open_loop` does.
    Raises ValueError for fewer than one caller.
    """
    if callers < 1:
        raise ValueError(f"callers must be at least 1, not {callers}")
    records: list[RequestRecord] = []
    waiting = iter(enumerate(trace))
    start = time.perf_counter()
    with progress_bar("requests answered", len(trace), progress) as step:

        async def caller() -> None:
            for index, request in waiting:  # one iterator for all callers: each request is taken once
                now = time.perf_counter() - start
                record = RequestRecord(index, len(request.prompt_ids), arrived=now, error="interrupted")
                records.append(record)
                await _ask(send, request, record, start)
                step()

        await _run_all([caller() for _ in range(callers)])
    return summarize(sorted(records, key=lambda record: record.index), peak_memory_mb())


async def _ask(send: Send, request: TraceRequest, record: RequestRecord, start: float) -> None:
    """Send one request and note its tokens' times; its error stays "interrupted" unless it comes to an end."""
    pieces = 0
    try:
        async for n_tokens in send(request):
            pieces += 1
            record.token_times += [time.perf_counter() - start] * n_tokens
    except RequestFailed as error:
        record.error = str(error)
    except Exception as error:  # a fault of the sender is an error of its own kind, not the end of the run
        record.error = f"{type(error).__name__}: {error}"
    else:
        record.error = None
        record.streamed = pieces > 1 or len(record.token_times) == 1


async def _run_all(jobs: list[Coroutine[Any, Any, None]]) -> None:
    """Run all jobs to their end, or to Ctrl-C: then they are cancelled and what they recorded remains."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:  # what asyncio.run makes of Ctrl-C
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
