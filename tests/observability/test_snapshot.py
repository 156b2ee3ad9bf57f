"""What the dashboard is told, that nothing grows without end, and what it all costs."""

import json
import time

import pytest

from shared.observability.trace import chrome_trace
from tests.observability.scenes import served, stats, value


def test_batches_lived_through_are_told(telemetry):
    served(telemetry, "r1", batch_sizes=[1, 2, 6], max_blocks=3)
    (row,) = telemetry.snapshot()["traces"]
    assert (row["mean_batch"], row["max_blocks"]) == (3.0, 3)
    (bar, *_) = [event for event in chrome_trace(telemetry.traces)["traceEvents"] if event["ph"] == "X"]
    assert bar["args"]["mean_batch"] == 3.0


def test_p99_of_the_latest(telemetry, clock):
    assert telemetry.p99_s() is None
    for k in range(200):
        served(telemetry, e2e=1.0 + k / 100)
    clock.now += 2  # it is computed once a second
    assert telemetry.p99_s() == pytest.approx(2.9701)  # index 197.01 of 0 … 199
    assert telemetry.num_measured == 200


def test_snapshot_is_json_and_tells_the_last_minutes(telemetry, clock):
    served(telemetry, "old", e2e=50.0)
    clock.now += 400
    for k in range(4):
        served(telemetry, f"r{k}", e2e=1.0 + k)
    clock.now += 10  # the four are done by now
    telemetry.step("tiny", "v1", stats(7))
    clock.now += 1
    shot = json.loads(json.dumps(telemetry.snapshot()))
    assert shot["latency"]["e2e"]["n"] == 4
    assert shot["latency"]["e2e"]["p50"] == pytest.approx(2.5)
    assert shot["series"]["tokens_per_s"][-1] == 7
    assert len(shot["series"]["running"]) == 120
    assert sum(shot["series"]["requests_per_s"]) == 4
    assert shot["totals"]["requests"] == 5
    assert shot["uptime_s"] == 411
    assert [row["id"] for row in shot["traces"]] == ["old", "r0", "r1", "r2", "r3"]
    assert shot["traces"][1]["first_token"] == pytest.approx(0.5)


def test_only_what_the_server_failed_is_an_error(telemetry):
    """As the metrics count it: refusals, callers who left and requests that can't be served are apart."""
    endings = {"generation_failed": 200, "timeout": 504, "cancelled": 499, "invalid_value": 400, "queue_full": 429,
               "engine_away": 503}  # fmt: skip
    for error, status in endings.items():
        served(telemetry, error=error, status=status)
    telemetry.refused("queue_full")
    telemetry.refused("engine_away")
    totals = telemetry.snapshot()["totals"]
    assert totals["errors"] == {"generation_failed": 1, "timeout": 1}
    assert (totals["cancelled"], totals["bad_requests"]) == (1, {"invalid_value": 1})
    assert totals["refusals"] == {"queue_full": 1, "engine_away": 1}
    for kind in endings:
        assert (value(telemetry, "llm_errors_total", kind=kind) or 0) == totals["errors"].get(kind, 0)


def test_warming_up_is_no_callers_prefix(telemetry):
    telemetry.step("tiny", "v1", stats(hit_tokens=30, asked_tokens=200))
    telemetry.event("version_ready", "v1: it can answer", model="tiny", version="v1")
    assert telemetry.snapshot()["prefix"] == {"hit_tokens": 0, "asked_tokens": 0}
    telemetry.step("tiny", "v1", stats(hit_tokens=80, asked_tokens=300))
    assert telemetry.snapshot()["prefix"] == {"hit_tokens": 50, "asked_tokens": 100}
    telemetry.event("version_unloaded", "…", model="tiny", version="v1")
    assert telemetry.snapshot()["prefix"] == {"hit_tokens": 50, "asked_tokens": 100}


def test_versions_that_run_side_by_side_add_up(telemetry, clock):
    for version, running in (("v1", 7), ("v2", 5), ("v1", 6), ("v2", 7)):
        telemetry.step("tiny", version, stats(num_running=running))
    clock.now += 1
    assert telemetry.snapshot()["series"]["running"][-1] == 14


def test_nothing_grows_without_end(telemetry):
    for k in range(3000):
        served(telemetry, f"r{k}")
        telemetry.event("engine_ready", "again")
    assert len(telemetry.traces) <= 200
    assert len(telemetry.events) <= 200
    assert not telemetry.open
    assert len(telemetry._recent._requests) <= 1000


def test_chrome_trace_is_complete(telemetry):
    served(telemetry, "a")
    served(telemetry, "b", status=504, error="timeout", first_token=None)
    events = chrome_trace(telemetry.traces)["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert rows == {1: "a", 2: "b"}
    bars = [(rows[event["tid"]], event["name"]) for event in events if event["ph"] == "X"]
    assert bars == [("a", "admit"), ("a", "queue"), ("a", "prefill"), ("a", "decode")] + [
        ("b", "admit"), ("b", "queue"), ("b", "prefill"),
    ]  # fmt: skip
    assert all(isinstance(event["ts"], float) and event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_it_costs_little(telemetry):
    """Under 100 µs a request and 20 µs a step on a quiet machine; three times that is for a busy one."""
    step = stats()

    def best(action, n: int) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            for _ in range(n):
                action()
            times.append((time.process_time() - start) / n)
        return min(times)

    assert best(lambda: served(telemetry), 200) < 300e-6
    assert best(lambda: telemetry.step("tiny", "v1", step), 500) < 60e-6
