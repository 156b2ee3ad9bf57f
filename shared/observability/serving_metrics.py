"""Every metric of the server, by prometheus-client. Names and buckets of gen_ai_* are OpenTelemetry's.

OpenTelemetry's semantic conventions for generative AI (status: development) name metrics with dots; in Prometheus dots
are underscores and seconds are in the name. The rest begins with llm_. No label has values that a caller can choose
freely: routes, kinds and reasons are few, and what is beyond a limit is counted as "other". A version's series live as
long as it does.
"""

from functools import cache
from itertools import product
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)

from shared.observability.trace import RequestTrace

# The conventions' recommended boundaries, and some beyond: on a CPU answers take minutes, on a GPU tokens take little.
DURATION_BUCKETS = tuple(round(0.01 * 2**k, 2) for k in range(16))  # 10 ms to 5.5 min; recommended up to 81.92
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TPOT_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
TOKEN_BUCKETS = tuple(4**k for k in range(14))  # 1, 4, 16 … 67108864
STEP_BUCKETS = tuple(0.001 * 2**k for k in range(13))  # 1 ms to 4 s
COUNT_BUCKETS = tuple(2**k for k in range(10))  # 1 to 512
BATCH_TOKEN_BUCKETS = tuple(2**k for k in range(13))  # 1 to 4096
PAUSE_BUCKETS = (0.0001, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 4.096)

# Known beforehand, so that their series are there from the start, at 0: Prometheus sees no increase in a series whose
# first value is 1, and a series that is new in the tenth hour looks like a leak.
ROUTES = ("/v1/chat/completions", "/v1/completions")
PROBES = ("/health/live", "/health/ready", "/metrics", "/dashboard/state")  # what asks again and again
STATUSES = ("200", "400", "401", "404", "429", "499", "500", "503", "504")
ERROR_KINDS = ("timeout", "generation_failed", "engine_failed", "shutting_down", "internal_error")
BAD_REQUESTS = (
    "body_timeout", "body_too_large", "context_length_exceeded", "forbidden_host", "forbidden_origin",
    "invalid_address", "invalid_api_key", "invalid_json", "invalid_request_error", "invalid_type", "invalid_value",
    "missing_parameter", "model_not_found", "not_offered", "request_too_large", "unknown_parameter",
    "unsupported_parameter", "unsupported_value",
)  # fmt: skip
REFUSALS = (
    "rate_limit_exceeded", "queue_full", "overloaded", "shutting_down", "engine_failed", "engine_away", "not_ready",
)  # fmt: skip
EVENTS = (
    "engine_ready", "engine_died", "engine_hung", "engine_restarted", "engine_failed", "request_failed",
    "replica_lost", "traffic_rolled_back", "traffic_shifted", "version_failed", "version_forced", "version_loading",
    "version_promoted", "version_ready", "version_rejected", "version_unloaded", "version_unloading",
)  # fmt: skip
WAYS_TO_DEGRADE = ("shorter", "model")
GENERATIONS = ("0", "1", "2")  # of Python's garbage collector
OPERATIONS = ("chat", "text_completion")
# error_type of a request's duration: good, or how it ended. Which error it was is in llm_errors_total; here each value
# is a whole histogram more. "_OTHER" is the conventions' word for the rest.
ENDINGS = ("", "timeout", "cancelled", "_OTHER")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter and histogram, which nothing here reads

PROVIDER = "your_own_parts"  # gen_ai.provider.name, which the conventions require
GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "version")
VERSION = ("model", "version")
TEXT_COMPLETION = "/v1/completions"
EXEMPLAR_CHARS = 128 - len("request_id")  # OpenMetrics allows 128 in all


class ServingMetrics:
    """The metrics, in a registry of their own, so that two servers in one process (a test) don't share them."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        # A request, when it ends. error_type is "" for one that succeeded.
        self.requests = counter("http_requests_total", "HTTP requests", ("route", "status"))
        self.duration = histogram(
            "gen_ai_server_request_duration_seconds", "From arrival to the last token",
            (*GEN_AI, "error_type"), DURATION_BUCKETS,
        )  # fmt: skip
        self.ttft = histogram(
            "gen_ai_server_time_to_first_token_seconds", "From arrival to the first token", GEN_AI, TTFT_BUCKETS
        )
        self.tpot = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Per token after the first", GEN_AI, TPOT_BUCKETS
        )
        self.tokens = histogram(
            "gen_ai_client_token_usage", "Tokens of a request", (*GEN_AI, "gen_ai_token_type"), TOKEN_BUCKETS
        )
        self.queue_time = histogram(
            "llm_request_queue_seconds", "From passing the limits to the first step", VERSION, TTFT_BUCKETS
        )
        self.machine_seconds = Summary(
            "llm_request_machine_seconds", "A request's share of the engine's time", VERSION, registry=registry
        )
        self.cost = Summary(
            "llm_request_cost", "A request's share of the machine's price, in the price's money", VERSION,
            registry=registry,
        )  # fmt: skip

        # What went wrong, or was not let in.
        self.errors = counter("llm_errors_total", "Requests that the server failed, by kind", ("kind",))
        self.bad_requests = counter("llm_bad_requests_total", "Requests that can't be served, by kind", ("kind",))
        self.cancelled = counter("llm_cancelled_total", "Requests whose callers left")
        self.refusals = counter("llm_refusals_total", "Requests that were not let in", ("reason",))
        self.timeouts = counter("llm_timeouts_total", "Requests that passed their deadline")
        self.degraded = counter("llm_degraded_total", "Answers made shorter or by a smaller model", ("how",))
        self.events = counter("llm_events_total", "What happened to the engines, by kind", ("kind",))
        self.restarts = counter("llm_engine_restarts_total", "Engines that were replaced", ("version",))
        self.engine_up = gauge("llm_engine_up", "1 while the engine takes requests", ("version",))

        # Steps.
        self.step = histogram("llm_step_seconds", "One step of the engine", VERSION, STEP_BUCKETS)
        self.batch_requests = histogram("llm_batch_requests", "Requests in a step", VERSION, COUNT_BUCKETS)
        self.batch_tokens = histogram("llm_batch_tokens", "Tokens in a step", VERSION, BATCH_TOKEN_BUCKETS)

        # The service and the process. What is looked up only when asked for is in collectors.py.
        self.queue_depth = gauge("llm_queue_depth", "Requests that wait for a place")
        self.queue_capacity = gauge("llm_queue_capacity", "How many may wait for a place")
        self.in_flight = gauge("llm_requests_in_flight", "Requests that have arrived and aren't done")
        self.default_timeout = gauge("llm_default_timeout_seconds", "The deadline of a request that names none")
        self.gc_pauses = histogram(
            "llm_gc_pause_seconds", "Garbage collections; meanwhile the process stands still",
            ("process", "generation"), PAUSE_BUCKETS,
        )  # fmt: skip
        ProcessCollector(registry=registry)  # process_open_fds and so on, where there is /proc
        known = (
            (self.errors, ERROR_KINDS), (self.bad_requests, BAD_REQUESTS), (self.refusals, REFUSALS),
            (self.events, EVENTS), (self.degraded, WAYS_TO_DEGRADE),
        )  # fmt: skip
        for metric, names in known:
            for name in names:
                metric.labels(name)
        for route, status in (*product(ROUTES, STATUSES), *product(PROBES, ("200", "503"))):
            self.requests.labels(route, status)
        self._watch_process("api")
        # A metric's child for its labels, looked up once: `labels` takes longer than what is done with the child.
        self._of_request = cache(self._bind_request)

    def _watch_process(self, name: str) -> None:
        for generation in GENERATIONS:
            self.gc_pauses.labels(name, generation)

    def add_version(self, model: str, version: str) -> None:
        """All series that a version will ever have, at 0."""
        for operation, ending in product(OPERATIONS, ENDINGS):
            self.duration.labels(operation, PROVIDER, model, version, ending)
        for operation in OPERATIONS:
            self._of_request(operation, model, version)
        self.of_step(model, version)
        self.restarts.labels(version)
        self._watch_process(engine_process(version))

    def remove_version(self, version: str) -> None:
        """Forget it: else its last numbers, and its alerts, would stay for ever."""
        of_versions = (
            self.duration, self.ttft, self.tpot, self.tokens, self.queue_time, self.machine_seconds, self.cost,
            self.step, self.batch_requests, self.batch_tokens, self.restarts, self.engine_up,
        )  # fmt: skip
        for metric in of_versions:
            metric.remove_by_labels({"version": version})
        self.gc_pauses.remove_by_labels({"process": engine_process(version)})
        self._of_request.cache_clear()

    def observe(self, trace: RequestTrace) -> None:
        """Count a request that has ended in the histograms of its version. Latencies are those of answers that came
        whole; how long a failed one took is kept apart by error_type."""
        operation = "text_completion" if trace.route == TEXT_COMPLETION else "chat"
        exemplar = {"request_id": trace.request_id[:EXEMPLAR_CHARS]}
        bound = self._of_request(operation, trace.model, trace.version)
        ending = trace.error if trace.error in ENDINGS else "_OTHER"
        duration = self.duration.labels(operation, PROVIDER, trace.model, trace.version, ending)
        duration.observe(trace.e2e_s or 0.0, exemplar)
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
        if trace.cost is not None:
            bound["cost"].observe(trace.cost)

    def _bind_request(self, operation: str, model: str, version: str) -> dict[str, Any]:
        """What is measured of a request, each metric for these labels."""
        names = (operation, PROVIDER, model, version)
        return {
            "ttft": self.ttft.labels(*names),
            "tpot": self.tpot.labels(*names),
            "input": self.tokens.labels(*names, "input"),
            "output": self.tokens.labels(*names, "output"),
            "queue": self.queue_time.labels(model, version),
            "machine": self.machine_seconds.labels(model, version),
            "cost": self.cost.labels(model, version),
        }

    def of_step(self, model: str, version: str) -> tuple[Histogram, Histogram, Histogram]:
        """A step's seconds, its requests and its tokens."""
        metrics = (self.step, self.batch_requests, self.batch_tokens)
        seconds, requests, tokens = (metric.labels(model, version) for metric in metrics)
        return seconds, requests, tokens


def engine_process(version: str) -> str:
    """What the process of a version's engine is called in the label `process`."""
    return f"engine-{version}"
