"""Replay a trace on stacks that work on many requests at once: an engine, static batches, a batcher's callers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol

from shared.measure.memory import peak_memory_mb, reset_peak
from shared.measure.progress import progress_bar
from shared.measure.summary import RequestRecord, summarize
from shared.measure.trace import Trace, TraceRequest

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Submit = Callable[[TraceRequest], Awaitable[Sequence[int]]]


class Steps(Protocol):
    """An engine that takes requests at any time and computes one step when asked to."""

    def add(self, index: int, request: TraceRequest) -> None:
        """Take in a request of the trace; its tokens are told by `index`."""

    def step(self) -> Iterable[int]:
        """Compute one step. Returns, for each new token, the index of the request it belongs to."""

    @property
    def busy(self) -> bool:
        """Whether any request is open."""


class Recorder:
    """When each token of a run came. Its report has the form of run_trace's."""

    def __init__(self, trace: Trace, told: Callable[[], None], clock: Clock, streamed: bool) -> None:
        self.trace, self.told, self.clock, self.start = trace, told, clock, clock()
        self.interrupted = False
        self.records = [
            RequestRecord(i, len(r.prompt_ids), arrived=r.at, streamed=streamed, error="interrupted")
            for i, r in enumerate(trace)
        ]

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.start

    def token(self, index: int) -> None:
        """A token of request `index` has come, now."""
        self.records[index].token_times.append(self.now)
        self.told()

    def report(self) -> dict[str, Any]:
        """An answer that isn't of the length asked for counts as an error, and after Ctrl-C as "interrupted"."""
        for record, request in zip(self.records, self.trace, strict=True):
            n = len(record.token_times)
            if n == request.max_new_tokens:
                record.error = None
            elif not self.interrupted:
                record.error = f"{n} of {request.max_new_tokens} tokens"
        return {"interrupted": self.interrupted, **summarize(self.records, peak_memory_mb())}


@contextmanager
def recording(
    trace: Trace, label: str, progress: bool, clock: Clock = time.perf_counter, streamed: bool = True
) -> Iterator[Recorder]:
    """A recorder with a progress bar. Ctrl-C ends the block, and the recorder knows."""
    reset_peak()
    with progress_bar(label, sum(request.max_new_tokens for request in trace), progress) as told:
        recorder = Recorder(trace, told, clock, streamed)
        try:
            yield recorder
        except KeyboardInterrupt:
            recorder.interrupted = True


def run_steps(
    engine: Steps, trace: Trace, progress: bool = True, label: str = "tokens",
    clock: Clock = time.perf_counter, sleep: Sleep = time.sleep,
) -> dict[str, Any]:  # fmt: skip
    """Give an engine each request when it is due, between its steps. Returns the report, as run_trace does."""
    due = sorted(range(len(trace)), key=lambda i: trace[i].at, reverse=True)
    with recording(trace, label, progress, clock) as recorder:
        while due or engine.busy:
            while due and trace[due[-1]].at <= recorder.now:
                index = due.pop()
                engine.add(index, trace[index])
            if engine.busy:
                for index in engine.step():
                    recorder.token(index)
            else:
                sleep(max(0.0, trace[due[-1]].at - recorder.now))
    return recorder.report()


def run_batches(
    answer: Callable[[Trace], Iterable[int]], trace: Trace, progress: bool = True, label: str = "tokens",
    clock: Clock = time.perf_counter, sleep: Sleep = time.sleep,
) -> dict[str, Any]:  # fmt: skip
    """For a stack that must know all requests before it plans its batches: it begins when the last one is due.

    answer: gives, for each token as it comes, the index of its request. Returns the report, as run_trace does.
    """
    with recording(trace, label, progress, clock) as recorder:
        sleep(max(0.0, max(request.at for request in trace) - recorder.now))
        for index in answer(trace):
            recorder.token(index)
    return recorder.report()


def run_callers(
    serve: Callable[[], AbstractAsyncContextManager[Submit]], trace: Trace, progress: bool = True, label: str = "tokens"
) -> dict[str, Any]:
    """For a batcher: every request is a caller who comes when it is due, and whose answer comes in one piece.

    serve: starts the batcher for as long as the block lasts, and gives the function to call. Returns the report, as
    run_trace does; not to be called where an event loop is running.
    """

    async def call(submit: Submit, index: int, recorder: Recorder) -> None:
        await asyncio.sleep(trace[index].at - recorder.now)
        for _ in await submit(trace[index]):
            recorder.token(index)

    async def callers(recorder: Recorder) -> None:
        async with serve() as submit, asyncio.TaskGroup() as group:
            for index in range(len(trace)):
                group.create_task(call(submit, index, recorder))

    with recording(trace, label, progress, streamed=False) as recorder:
        asyncio.run(callers(recorder))
    return recorder.report()
