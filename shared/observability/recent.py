"""The last minutes, for the dashboard: exact percentiles over the latest requests, and a row of whole seconds."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from shared.observability.trace import RequestTrace

WINDOW_S = 300
SECONDS = 120  # of the row
MOST_REQUESTS = 1000  # of the window; more would make a snapshot slow
FOR_P99 = 1000  # successful requests, however old
SHOWN = (
    "version", "key", "status", "error", "prompt_tokens", "cached_tokens", "output_tokens", "resumed", "max_blocks",
    "mean_batch", "machine_s", "cost",
)  # fmt: skip
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


class Second:
    """What happened in one second of the clock. waiting: the most seen in it; running: the most of each version."""

    __slots__ = ("at", "requests", "running", "tokens", "waiting")

    def __init__(self, at: int) -> None:
        self.at, self.requests, self.tokens, self.waiting = at, 0, 0, 0
        self.running: dict[str, int] = {}


class Recent:
    """Bounded, whatever happens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests: deque[RequestTrace] = deque(maxlen=MOST_REQUESTS)
        self._succeeded: deque[float] = deque(maxlen=FOR_P99)  # E2E, in seconds
        self._seconds: deque[Second] = deque(maxlen=SECONDS + 1)
        self._p99: tuple[float, float] | None = None  # (when it was computed, the value)
        self.totals = {"requests": 0, "prompt_tokens": 0, "output_tokens": 0}
        self.cancelled = 0
        self.errors: Counter[str] = Counter()
        self.bad_requests: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    @property
    def num_measured(self) -> int:
        """How many requests p99_s rests on."""
        return len(self._succeeded)

    def finished(self, trace: RequestTrace, error: str) -> None:
        """error: the trace's, or "other"."""
        self._requests.append(trace)
        self.totals["requests"] += 1
        self.totals["prompt_tokens"] += trace.prompt_tokens
        self.totals["output_tokens"] += trace.output_tokens
        if error:
            self._count_error(error, trace.status)
        elif trace.first_token is not None and trace.e2e_s is not None:
            self._succeeded.append(trace.e2e_s)
        self._second().requests += 1

    def stepped(self, version: str, tokens: int, running: int, waiting: int) -> None:
        """A step of a version's engine: its new tokens, and how many requests ran and waited meanwhile."""
        second = self._second()
        second.tokens += tokens
        second.running[version] = max(second.running.get(version, 0), running)
        second.waiting = max(second.waiting, waiting)

    def p99_s(self) -> float | None:
        """The 99th percentile of E2E, in seconds, of the latest that succeeded; None before the first. At most a
        second old once there are a hundred: every request asks, for its deadline."""
        now = self._clock()
        if self._p99 is None or len(self._succeeded) < 100 or now - self._p99[0] > 1.0:
            if not self._succeeded:
                return None
            self._p99 = now, quantile(sorted(self._succeeded), 0.99)
        return self._p99[1]

    def snapshot(self) -> dict[str, Any]:
        """Totals since the start, latencies of the last WINDOW_S seconds, and a row of the latest SECONDS."""
        now = self._clock()
        recent = [trace for trace in self._requests if trace.done is not None and trace.done > now - WINDOW_S]
        good = [trace for trace in recent if not trace.error]
        values = {
            "ttft": [trace.ttft_s for trace in good],
            "tpot": [trace.tpot_s for trace in good],
            "e2e": [trace.e2e_s for trace in good if trace.first_token is not None],
            "queue": [trace.queue_s for trace in recent],
        }
        return {
            "window_s": WINDOW_S,
            "latency": {name: _quantiles([v for v in row if v is not None]) for name, row in values.items()},
            "series": self._series(int(now)),
            "totals": {
                **self.totals,
                "cancelled": self.cancelled,
                "errors": dict(self.errors),
                "bad_requests": dict(self.bad_requests),
                "refusals": dict(self.refusals),
            },
        }

    def _count_error(self, error: str, status: int) -> None:
        whose = fault(error, status)
        if whose == "server":
            self.errors[error] += 1
        elif whose == "request":
            self.bad_requests[error] += 1
        elif whose == "left":
            self.cancelled += 1

    def _second(self) -> Second:
        now = int(self._clock())
        if not self._seconds or self._seconds[-1].at != now:
            self._seconds.append(Second(now))
        return self._seconds[-1]

    def _series(self, now: int) -> dict[str, Any]:
        """The latest whole seconds, the oldest first; a second in which nothing happened is all zeros."""
        seen = {second.at: second for second in self._seconds}
        row = [seen.get(at) or Second(at) for at in range(now - SECONDS, now)]
        return {
            "step_s": 1,
            "tokens_per_s": [second.tokens for second in row],
            "requests_per_s": [second.requests for second in row],
            "running": [sum(second.running.values()) for second in row],
            "waiting": [second.waiting for second in row],
        }


def fault(error: str, status: int) -> Literal["left", "request", "refused", "server"]:
    """Whose fault was it? The callers', who left or sent nonsense; nobody's, and `refused` counts it; or ours."""
    if error == "cancelled":
        return "left"
    if status in (429, 503):
        return "refused"
    return "request" if 400 <= status < 500 else "server"


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, between two of them in proportion."""
    index = (len(ordered) - 1) * q
    below, above = math.floor(index), math.ceil(index)
    return ordered[below] + (ordered[above] - ordered[below]) * (index - below)


def _quantiles(values: list[float]) -> dict[str, float | int | None]:
    ordered = sorted(values)
    return {name: quantile(ordered, q) if ordered else None for name, q in QUANTILES.items()} | {"n": len(ordered)}


def summaries(traces: Iterable[RequestTrace], most: int) -> list[dict[str, Any]]:
    """The latest traces for the dashboard: times as seconds after arrival, arrival itself as seconds since 1970."""
    epoch = time.time() - time.monotonic()
    rows = []
    for trace in list(traces)[-most:]:
        row: dict[str, Any] = {"id": trace.request_id, "arrived_at": epoch + trace.arrived}
        for stamp in ("queued", "started", "first_token", "done"):
            at = getattr(trace, stamp)
            row[stamp] = None if at is None else at - trace.arrived
        for name in SHOWN:
            row[name] = getattr(trace, name)
        rows.append(row)
    return rows
