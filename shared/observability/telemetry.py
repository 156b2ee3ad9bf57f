"""One place that the server tells what happens, and that tells it on: metrics, log lines, and the dashboard's numbers.

Called on the API process's event loop; nothing here waits. A request costs some tens of microseconds, a step a few.
"""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from prometheus_client.exposition import choose_encoder

from shared.observability.collectors import TOTALS, Asker, EngineNumbers, ScrapeCollector
from shared.observability.cost import price
from shared.observability.gc_pauses import GcPauses
from shared.observability.labels import LabelValues
from shared.observability.logs import FULL, dropped_lines, request_fields, sampled
from shared.observability.process import Gpu, gpus, resident_bytes
from shared.observability.recent import Recent, fault, summaries
from shared.observability.serving_metrics import (
    BAD_REQUESTS,
    ERROR_KINDS,
    EVENTS,
    REFUSALS,
    ROUTES,
    WAYS_TO_DEGRADE,
    ServingMetrics,
    engine_process,
)
from shared.observability.trace import RequestTrace, StepStats

logger = logging.getLogger("server")

LABELS = {
    "route": ROUTES,
    "kind": ERROR_KINDS + BAD_REQUESTS,
    "reason": REFUSALS,
    "event": EVENTS,
    "how": WAYS_TO_DEGRADE,
}


class Telemetry:
    """debug: keep the latest requests' traces. cost: the machine's price per hour, in any money. log_full_share: of so
    many requests the texts are logged, 0 to 1. Raises ValueError for what can't be a price or a share."""

    def __init__(
        self,
        debug: bool = False,
        cost: float | None = None,
        log_full_share: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= log_full_share <= 1:
            raise ValueError(f"log_full_share must be a share, 0 to 1, not {log_full_share}")
        if cost is not None and not 0 <= cost < math.inf:
            raise ValueError(f"cost must be a price per hour, 0 or more, not {cost}")
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
        self._gone = dict.fromkeys((field for field, _ in TOTALS.values()), 0)  # totals of versions that were unloaded
        self._warm_up = dict.fromkeys(("hit_tokens", "asked_tokens"), 0)  # no callers': what warming up has asked
        self._step_metrics = cache(self._bind_step)  # as ServingMetrics keeps a request's
        self._bounded = LabelValues(LABELS).bounded
        ask = self._ask = Asker()
        self.metrics.queue_depth.set_function(lambda: ask("the queue", self.queue_depth, math.nan))
        self.metrics.queue_capacity.set_function(lambda: ask("the queue's length", self.queue_capacity, math.nan))
        self.metrics.in_flight.set_function(lambda: len(self.open))
        self.metrics.registry.register(ScrapeCollector(self.engines, lambda: self.processes(), dropped_lines, ask))

    def begin(self, request_id: str, route: str, arrived: float | None = None) -> RequestTrace:
        """A request has arrived. route: the route's own path, never the caller's."""
        trace = RequestTrace(request_id, route, arrived=self.clock() if arrived is None else arrived)
        trace.debug = self.debug
        self.open[id(trace)] = trace
        return trace

    def finish(self, trace: RequestTrace) -> None:
        """The request has ended, whatever happened; trace.status, .error and the rest say how. A second time nothing
        happens."""
        if self.open.pop(id(trace), None) is None:
            return
        trace.done = self.clock() if trace.done is None else trace.done
        if trace.machine_s is not None and self.cost is not None:
            trace.cost = price(trace.machine_s, self.cost)
        self.metrics.requests.labels(self._bounded("route", trace.route), str(trace.status)).inc()
        error = self._bounded("kind", trace.error) if trace.error else ""
        if error:
            self._count_error(error, trace.status)
        if trace.degraded:
            self.metrics.degraded.labels(self._bounded("how", trace.degraded)).inc()
        if trace.model and trace.queued is not None:  # who is refused at once would make the server look fast
            self.metrics.observe(trace)
        self._recent.finished(trace, error)
        cost = {} if trace.cost is None else {"cost": float(f"{trace.cost:.3g}")}
        logger.info("request", extra={"fields": request_fields(trace) | cost})
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
        """An engine has made a step; or, with no requests in it, how things are at rest."""
        engine, (seconds, requests, tokens) = self._step_metrics(model, version)
        new_tokens = engine.step(stats)
        if stats.num_running:
            seconds.observe(stats.seconds)
            requests.observe(stats.num_running)
            tokens.observe(stats.batch_tokens)
        for generation, pause_s in stats.gc_pauses:
            self.metrics.gc_pauses.labels(engine_process(version), str(generation)).observe(pause_s)
        self._recent.stepped(version, new_tokens, stats.num_running, self._ask("the queue", self.queue_depth, 0))

    def event(self, kind: str, text: str, **fields: Any) -> None:
        """Something happened that an operator should hear of: a counter, a log line, and the dashboard's list."""
        self.metrics.events.labels(self._bounded("event", kind)).inc()
        self._note_engine(kind, str(fields.get("model", "")), str(fields.get("version", "")))
        self.events.append({"at": time.time(), "kind": kind, "text": text, **fields})
        bad = kind.endswith(("_died", "_hung", "_failed", "_lost"))
        logger.log(logging.ERROR if bad else logging.INFO, text, extra={"fields": {"event": kind, **fields}})

    def refused(self, reason: str) -> None:
        """A request was not let in, for one of serving_metrics.REFUSALS."""
        reason = self._bounded("reason", reason)
        self.metrics.refusals.labels(reason).inc()
        self._recent.refusals[reason] += 1

    def watch_gc(self) -> Callable[[], None]:
        """Measure this process's garbage collections from now on. Returns what ends it."""
        self.gc_pauses.start()
        return self.gc_pauses.stop

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text, and their content type: OpenMetrics, with exemplars, for those who accept it."""
        for generation, seconds in self.gc_pauses.drain():
            self.metrics.gc_pauses.labels("api", str(generation)).observe(seconds)
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

        def total(field: str) -> int:
            return self._gone[field] + sum(engine.total(field) for engine in self.engines.values())

        no_processes: Mapping[str, int] = {}
        no_gpus: list[Gpu] = []
        processes = self._ask("memory", self.processes, no_processes)
        engines = {version: engine.latest for (_, version), engine in self.engines.items()}
        recent = self._recent.snapshot()
        recent["totals"] |= {
            "timeouts": self._timeouts,
            "restarts": self._restarts,
            "preemptions": total("preemptions"),
        }
        return {
            "uptime_s": self.clock() - self._started,
            **recent,
            "prefix": {name: total(name) - n for name, n in self._warm_up.items()},
            "kv_waste": {version: None if step is None else step.kv_waste for version, step in engines.items()},
            "process": {f"{name}_bytes": resident_bytes(pid) for name, pid in processes.items()},
            "gpus": [asdict(gpu) for gpu in self._ask("the GPUs", gpus, no_gpus)],
            "events": list(self.events),
            "debug": self.debug,
            "traces": summaries(self.traces, 40),
        }

    def _note_engine(self, kind: str, model: str, version: str) -> None:
        if kind == "engine_ready" and model:
            self.metrics.add_version(model, version)
            self._step_metrics(model, version)
        if kind in ("engine_ready", "engine_restarted"):
            self.metrics.engine_up.labels(version).set(1)
            self.metrics.restarts.labels(version)  # so that it is there, at 0
        if kind == "engine_restarted":
            self.metrics.restarts.labels(version).inc()
            self._restarts += 1
        if kind in ("engine_died", "engine_hung", "engine_failed"):
            self.metrics.engine_up.labels(version).set(0)
        if kind == "version_ready" and (engine := self.engines.get((model, version))) is not None:
            for name in self._warm_up:
                self._warm_up[name] += engine.total(name)
        if kind in ("version_unloaded", "version_failed"):
            self._forget(version)

    def _forget(self, version: str) -> None:
        for key in [key for key in self.engines if key[1] == version]:
            engine = self.engines.pop(key)
            for field in self._gone:
                self._gone[field] += engine.total(field)
        self._step_metrics.cache_clear()
        self.metrics.remove_version(version)

    def _count_error(self, error: str, status: int) -> None:
        if error == "timeout":
            self.metrics.timeouts.inc()
            self._timeouts += 1
        whose = fault(error, status)
        if whose == "left":
            self.metrics.cancelled.inc()
        elif whose == "request":
            self.metrics.bad_requests.labels(error).inc()
        elif whose == "server":
            self.metrics.errors.labels(error).inc()

    def _bind_step(self, model: str, version: str) -> tuple[EngineNumbers, tuple[Any, Any, Any]]:
        return self.engines.setdefault((model, version), EngineNumbers()), self.metrics.of_step(model, version)
