"""One place that the server tells what happens, and that tells it on: metrics, log lines, and the dashboard's numbers.

Called on the API process's event loop; nothing here waits. A request costs some tens of microseconds, a step a few.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from prometheus_client.exposition import choose_encoder

from shared.observability.collectors import EngineNumbers, ScrapeCollector
from shared.observability.cost import price
from shared.observability.gc_pauses import GcPauses
from shared.observability.logs import FULL, dropped_lines, request_fields, sampled
from shared.observability.process import gpus, resident_bytes
from shared.observability.recent import Recent, summaries
from shared.observability.serving_metrics import PROVIDER, ServingMetrics
from shared.observability.trace import RequestTrace, StepStats

logger = logging.getLogger("server")

MAX_LABELS = 64  # values of one label; what comes later is "other"
EXEMPLAR_CHARS = 128 - len("request_id")  # OpenMetrics allows 128 in all
TEXT_COMPLETION = "/v1/completions"


class Telemetry:
    """debug: keep the latest requests' traces. cost: the machine's price per hour, in any money. log_full_share: of so
    many requests the texts are logged, 0 to 1."""

    def __init__(
        self,
        debug: bool = False,
        cost: float | None = None,
        log_full_share: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.debug, self.cost, self.log_full_share, self.clock = debug, cost, log_full_share, clock
        self.metrics = ServingMetrics()
        self.open: dict[int, RequestTrace] = {}  # id(trace) -> trace: two callers may have sent the same request id
        self.traces: deque[RequestTrace] = deque(maxlen=200)  # the latest that finished, in debug mode
        self.events: deque[dict[str, Any]] = deque(maxlen=200)
        self.queue_depth: Callable[[], int] = lambda: 0  # settable: how many wait for a place
        self.queue_capacity: Callable[[], int] = lambda: 0  # settable: how many may
        self.processes: Callable[[], Mapping[str, int]] = lambda: {"api": os.getpid()}  # settable: name -> pid
        self.engines: dict[tuple[str, str], EngineNumbers] = {}
        self.gc_pauses = GcPauses()
        self._recent = Recent(clock)
        self._started = clock()
        self._timeouts = self._restarts = 0
        self._step_metrics = cache(self._bind_step)
        self._request_metrics = cache(self._bind_request)
        self._labels: dict[str, set[str]] = {}
        self.metrics.queue_depth.set_function(lambda: self.queue_depth())
        self.metrics.queue_capacity.set_function(lambda: self.queue_capacity())
        self.metrics.in_flight.set_function(lambda: len(self.open))
        self.metrics.registry.register(ScrapeCollector(self.engines, lambda: self.processes(), dropped_lines))

    def begin(self, request_id: str, route: str, arrived: float | None = None) -> RequestTrace:
        """A request has arrived. route: the route's own path, never the caller's."""
        trace = RequestTrace(request_id, route, arrived=self.clock() if arrived is None else arrived)
        trace.debug = self.debug
        self.open[id(trace)] = trace
        return trace

    def finish(self, trace: RequestTrace) -> None:
        """The request has ended, whatever happened; trace.status, .error and the rest say how. Once for each trace."""
        trace.done = self.clock() if trace.done is None else trace.done
        self.open.pop(id(trace), None)
        self.metrics.requests.labels(self._known("route", trace.route), str(trace.status)).inc()
        error = self._known("kind", trace.error) if trace.error else ""
        if error:
            self._count_error(error, trace.status)
        if trace.degraded:
            self.metrics.degraded.labels(self._known("how", trace.degraded)).inc()
        if trace.model and trace.queued is not None:  # who is refused at once would make the server look fast
            self._observe(trace, error)
        self._recent.finished(trace, error)
        logger.info("request", extra={"fields": request_fields(trace)})
        if self.debug:
            self.traces.append(trace)

    def logs_texts_of(self, request_id: str) -> bool:
        """Whether this request is one of those whose texts are logged: none, unless log_full_share is above 0."""
        return self.log_full_share > 0 and sampled(request_id, self.log_full_share)

    def log_texts(self, request_id: str, **texts: str) -> None:
        """Log the texts of a request, such as prompt= and answer=, if it is one of those; else nothing happens."""
        if self.logs_texts_of(request_id):
            logger.info(FULL, extra={"fields": {"request_id": request_id, **texts}})

    def step(self, model: str, version: str, stats: StepStats) -> None:
        """An engine has made a step."""
        engine, seconds, requests, tokens = self._step_metrics(model, version)
        new_tokens = engine.step(stats)
        seconds.observe(stats.seconds)
        requests.observe(stats.num_running)
        tokens.observe(stats.batch_tokens)
        self._recent.stepped(new_tokens, stats.num_running, self.queue_depth())

    def event(self, kind: str, text: str, **fields: Any) -> None:
        """Something happened that an operator should hear of: a counter, a log line, and the dashboard's list."""
        self.metrics.events.labels(self._known("event", kind)).inc()
        self._note_engine(kind, self._known("version", str(fields.get("version", ""))))
        self.events.append({"at": time.time(), "kind": kind, "text": text, **fields})
        bad = kind.endswith(("_died", "_hung", "_failed", "_lost"))
        logger.log(logging.ERROR if bad else logging.INFO, text, extra={"fields": {"event": kind, **fields}})

    def refused(self, reason: str) -> None:
        """A request was not let in, for one of serving_metrics.REFUSALS."""
        reason = self._known("reason", reason)
        self.metrics.refusals.labels(reason).inc()
        self._recent.refusals[reason] += 1

    def watch_gc(self) -> Callable[[], None]:
        """Measure this process's garbage collections from now on. Returns what ends it."""
        self.gc_pauses.start()
        return self.gc_pauses.stop

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text, and their content type: OpenMetrics, with exemplars, for those who accept it."""
        for generation, seconds in self.gc_pauses.drain():
            self.metrics.gc_pauses.labels(str(generation)).observe(seconds)
        encode, content_type = choose_encoder(accept)
        return encode(self.metrics.registry), content_type

    def p99_s(self) -> float | None:
        """The 99th percentile of E2E, in seconds, of the latest requests that succeeded; None before the first."""
        return self._recent.p99_s()

    @property
    def num_measured(self) -> int:
        """How many requests p99_s rests on."""
        return self._recent.num_measured

    def snapshot(self) -> dict[str, Any]:
        """What the dashboard shows, as JSON can hold it."""
        engines, recent = list(self.engines.values()), self._recent.snapshot()
        recent["totals"] |= {
            "timeouts": self._timeouts,
            "restarts": self._restarts,
            "preemptions": sum(engine.total("preemptions") for engine in engines),
        }
        return {
            "uptime_s": self.clock() - self._started,
            **recent,
            "prefix": {name: sum(engine.total(name) for engine in engines) for name in ("hit_tokens", "asked_tokens")},
            "process": {f"{name}_bytes": resident_bytes(pid) for name, pid in self.processes().items()},
            "gpus": [asdict(gpu) for gpu in gpus()],
            "events": list(self.events),
            "debug": self.debug,
            "traces": summaries(self.traces, 40),
        }

    def _note_engine(self, kind: str, version: str) -> None:
        if kind in ("engine_ready", "engine_restarted"):
            self.metrics.engine_up.labels(version).set(1)
            self.metrics.restarts.labels(version)  # so that it is there, at 0
        if kind == "engine_restarted":
            self.metrics.restarts.labels(version).inc()
            self._restarts += 1
        if kind in ("engine_died", "engine_hung", "engine_failed"):
            self.metrics.engine_up.labels(version).set(0)
        if kind in ("version_unloaded", "version_failed"):  # else its last numbers, and its alerts, would stay for ever
            self.metrics.engine_up.remove(version)
            for key in [key for key in self.engines if key[1] == version]:
                del self.engines[key]
            self._step_metrics.cache_clear()

    def _count_error(self, error: str, status: int) -> None:
        """Whose fault was it? The callers', who left or sent nonsense; nobody's, counted by `refused`; or ours."""
        if error == "timeout":
            self.metrics.timeouts.inc()
            self._timeouts += 1
        if error == "cancelled":
            self.metrics.cancelled.inc()
        elif 400 <= status < 500 and status != 429:
            self.metrics.bad_requests.labels(error).inc()
        elif status not in (429, 503):
            self.metrics.errors.labels(error).inc()

    def _observe(self, trace: RequestTrace, error: str) -> None:
        operation = "text_completion" if trace.route == TEXT_COMPLETION else "chat"
        exemplar = {"request_id": trace.request_id} if len(trace.request_id) <= EXEMPLAR_CHARS else None
        names = (operation, PROVIDER, self._known("model", trace.model), self._known("version", trace.version))
        bound = self._request_metrics(*names)
        self.metrics.duration.labels(*names, error).observe(trace.e2e_s or 0.0, exemplar)
        if trace.queue_s is not None:
            bound["queue"].observe(trace.queue_s, exemplar)
        if trace.ttft_s is not None and not trace.error:
            bound["ttft"].observe(trace.ttft_s, exemplar)
        if trace.tpot_s is not None and not trace.error:
            bound["tpot"].observe(trace.tpot_s, exemplar)
        if trace.prompt_tokens:
            bound["input"].observe(trace.prompt_tokens)
        if trace.output_tokens:
            bound["output"].observe(trace.output_tokens)
        if trace.machine_s is not None:
            bound["machine"].observe(trace.machine_s)
            if self.cost is not None:
                bound["cost"].observe(price(trace.machine_s, self.cost))

    def _bind_step(self, model: str, version: str) -> tuple[EngineNumbers, Any, Any, Any]:
        """A metric's child for its labels, looked up once: `labels` takes longer than what is done with the child."""
        key = (self._known("model", model), self._known("version", version))
        engine = self.engines.setdefault(key, EngineNumbers())
        m = self.metrics
        return engine, m.step.labels(*key), m.batch_requests.labels(*key), m.batch_tokens.labels(*key)

    def _bind_request(self, *names: str) -> dict[str, Any]:
        m, version = self.metrics, names[2:]
        return {
            "ttft": m.ttft.labels(*names),
            "tpot": m.tpot.labels(*names),
            "input": m.tokens.labels(*names, "input"),
            "output": m.tokens.labels(*names, "output"),
            "queue": m.queue_time.labels(*version),
            "machine": m.machine_seconds.labels(*version),
            "cost": m.cost.labels(*version),
        }

    def _known(self, label: str, value: str) -> str:
        """The value, or "other" where a label would get more than MAX_LABELS of them."""
        values = self._labels.setdefault(label, set())
        if value in values or len(values) < MAX_LABELS:
            values.add(value)
            return value
        return "other"
