# Yours to finish. Generated from shared/observability/trace.py (version b52e7d3aed72).
"""A request's life in time stamps, and what one engine step looked like.

All times are seconds of time.monotonic, which is one clock for all processes of a machine.
"""

from chapters import Todo
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

# What a request does between two of its time stamps: the stage's name, and the stamp at which it begins.
STAGES = (("admit", "arrived"), ("queue", "queued"), ("prefill", "started"), ("decode", "first_token"))


@dataclass(slots=True)
class StepStats:
    """One step of an engine. preemptions and the three after it are totals since the engine's start.

    at: when the step ended; seconds: how long it took. num_running, num_waiting: requests in the engine. batch_tokens:
    tokens computed in this step. num_free_blocks: KV blocks in nobody's use; num_cached_blocks: those among them that
    hold a prefix for later; num_blocks: the whole pool, 0 when unknown. hit_tokens of asked_tokens prompt tokens came
    out of the prefix cache. kv_waste: the share of the slots in the blocks that are held which hold no token, 0 to 1;
    pages have no other fragmentation. None when unknown. gc_pauses: (generation, seconds) of each garbage collection
    since the step before, where the engine has a process of its own.
    """

    at: float
    seconds: float
    num_running: int
    num_waiting: int
    batch_tokens: int
    num_free_blocks: int
    num_cached_blocks: int
    preemptions: int
    hit_tokens: int
    asked_tokens: int
    generated_tokens: int
    num_blocks: int = 0
    kv_waste: float | None = None
    gc_pauses: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class RequestTrace:
    """One request. A time is None until it is reached, and stays None when the request ends before.

    arrived: the middleware saw it. queued: it has passed the limits and waits for a place. started: the first step
    that has some of it began. first_token: the first output token came. done: the answer, or the error, was complete.
    key: the caller's name, never the secret. max_blocks: the most KV blocks it held. batch_sizes: the sizes of the
    batches it lived through (debug mode only). resumed: how often a new engine took it over. n: answers asked for;
    output_tokens counts the tokens of all of them. machine_s: its share of the engine's time, where the engine says;
    cost: what that cost, where the machine's price is known.
    """

    request_id: str
    route: str
    model: str = ""
    version: str = ""
    key: str = ""
    arrived: float = 0.0
    queued: float | None = None
    started: float | None = None
    first_token: float | None = None
    done: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    n: int = 1
    max_blocks: int = 0
    batch_sizes: list[int] = field(default_factory=list)
    resumed: int = 0
    machine_s: float | None = None
    cost: float | None = None
    status: int = 0
    error: str = ""
    finish_reason: str = ""
    degraded: str = ""
    debug: bool = False  # whether batch_sizes is kept

    @property
    def queue_s(self) -> float | None:
        """From passing the limits to the first step that has some of it."""
        return _between(self.arrived if self.queued is None else self.queued, self.started)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the arrival to the first token; None while there is none."""
        return _between(self.arrived, self.first_token)

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first, of one answer. With n answers side by side each has an n-th of them."""
        later = self.output_tokens / max(self.n, 1) - 1
        seconds = _between(self.first_token, self.done)
        return None if seconds is None or later <= 0 else seconds / later

    @property
    def mean_batch(self) -> float | None:
        """How many answers were in its steps, on average. None unless batch_sizes was kept."""
        return sum(self.batch_sizes) / len(self.batch_sizes) if self.batch_sizes else None

    @property
    def e2e_s(self) -> float | None:
        """Seconds from the arrival to the last token; None while the request is open."""
        return _between(self.arrived, self.done)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def stages(trace: RequestTrace) -> list[tuple[str, float, float]]:
    """What the request was doing when: (name, begin, end) of each stage it reached, without gaps.

    A stage begins at its time stamp in STAGES and ends where the next one that was reached begins; the last ends at
    `done`. A stage whose stamp is None was never reached and is left out. A request that isn't done yet has no last
    stage.

    arrived 1.0, queued 1.5, started 4.0, first_token 4.25, done 6.0:
    [("admit", 1.0, 1.5), ("queue", 1.5, 4.0), ("prefill", 4.0, 4.25), ("decode", 4.25, 6.0)]
    Refused at once, arrived 1.0, done 1.25, the others None: [("admit", 1.0, 1.25)]
    """
    # exercise 13.9: keep the stamps that were reached, put `done` behind them, and pair each with the next
    raise Todo("13.9")
    # end


def chrome_trace(traces: Iterable[RequestTrace]) -> dict[str, Any]:
    """The requests as a Chrome trace, for chrome://tracing or Perfetto: a row for each request, a bar for each stage.

    Format: "Trace Event Format", complete events (ph X), with ts and dur in microseconds.
    """
    events: list[dict[str, Any]] = []
    for row, trace in enumerate(traces, 1):
        name = {"name": trace.request_id}
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": name})
        details = {
            "route": trace.route, "model": trace.model, "version": trace.version, "status": trace.status,
            "prompt_tokens": trace.prompt_tokens, "cached_tokens": trace.cached_tokens, "error": trace.error,
            "output_tokens": trace.output_tokens, "max_blocks": trace.max_blocks, "resumed": trace.resumed,
            "mean_batch": trace.mean_batch, "batch_sizes": trace.batch_sizes, "key": trace.key,
            "finish_reason": trace.finish_reason, "degraded": trace.degraded, "machine_s": trace.machine_s,
            "cost": trace.cost,
        }  # fmt: skip
        for stage, begin, end in stages(trace):
            events.append({
                "name": stage, "cat": "request", "ph": "X", "pid": 1, "tid": row,
                "ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": details,
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
