"""Requests and steps as a server would tell of them, and what Prometheus would read."""

from prometheus_client.parser import text_string_to_metric_families as read_text

from shared.observability.telemetry import Telemetry
from shared.observability.trace import RequestTrace, StepStats


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def served(telemetry: Telemetry, name: str = "r1", ttft: float = 0.5, e2e: float = 2.5, **fields) -> RequestTrace:
    """A request, from begin to finish."""
    trace = telemetry.begin(name, "/v1/chat/completions")
    trace.model, trace.version, trace.status = "tiny", "v1", 200
    trace.prompt_tokens, trace.output_tokens = 10, 5
    trace.queued, trace.started = trace.arrived + 0.1, trace.arrived + 0.2
    trace.first_token, trace.done = trace.arrived + ttft, trace.arrived + e2e
    for field, value in fields.items():
        setattr(trace, field, value)
    telemetry.finish(trace)
    return trace


def stats(generated: int = 0, **fields) -> StepStats:
    values = {
        "at": 0.0, "seconds": 0.02, "num_running": 3, "num_waiting": 1, "batch_tokens": 40, "num_free_blocks": 90,
        "num_cached_blocks": 15, "preemptions": 0, "hit_tokens": 0, "asked_tokens": 0,
        "generated_tokens": generated, "num_blocks": 100,
    }  # fmt: skip
    return StepStats(**(values | fields))


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """The one sample of this name that has these labels, as Prometheus would read it; None when there is none."""
    families = read_text(telemetry.exposition()[0].decode())
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, f"several samples of {name} have {labels}"
    return found[0] if found else None
