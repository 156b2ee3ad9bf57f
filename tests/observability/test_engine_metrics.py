"""What Prometheus is told of engines: steps, totals that survive a death, and nothing of a version that has gone."""

import pytest

from shared.observability.labels import MAX_LABELS
from tests.observability.scenes import served, stats, value


def series(telemetry, *without: str) -> set[tuple]:
    found = (s for f in telemetry.metrics.registry.collect() for s in f.samples)
    return {(s.name, *sorted(s.labels.items())) for s in found if s.name not in without}


def test_no_series_is_left_of_a_version_that_was_unloaded(telemetry):
    before = series(telemetry)
    for k in range(MAX_LABELS + 6):
        version = f"v{k}"
        telemetry.event("engine_ready", "ready", version=version, model="tiny")
        telemetry.step("tiny", version, stats(7, preemptions=1, kv_waste=0.5, gc_pauses=[(2, 0.3)]))
        served(telemetry, version=version, machine_s=1.0)
        served(telemetry, version=version, route="/v1/completions", status=504, error="timeout")
        telemetry.event("engine_died", "killed", version=version, model="tiny")
        assert len(series(telemetry)) > len(before)
        telemetry.event("version_unloaded" if k % 2 else "version_failed", "gone", version=version, model="tiny")
        assert series(telemetry) == before
    assert telemetry.snapshot()["totals"]["preemptions"] == MAX_LABELS + 6  # what they did isn't undone


def test_versions_are_never_mixed_up_however_many_there_were(telemetry):
    for k in range(MAX_LABELS + 6):
        telemetry.event("engine_ready", "ready", version=f"v{k}", model="tiny")
        telemetry.event("version_unloaded", "gone", version=f"v{k}", model="tiny")
    for name in "ab":
        telemetry.event("engine_ready", "ready", version=name, model="tiny")
        telemetry.step("tiny", name, stats(7))
    telemetry.event("engine_died", "killed", version="a", model="tiny")
    assert value(telemetry, "llm_engine_up", version="a") == 0
    assert value(telemetry, "llm_engine_up", version="b") == 1
    telemetry.event("version_unloaded", "gone", version="a", model="tiny")
    assert value(telemetry, "llm_engine_up", version="b") == 1
    assert value(telemetry, "llm_running", version="b") == 3
    assert value(telemetry, "llm_engine_up", version="a") is None


def test_all_series_of_a_version_are_there_when_its_engine_is(telemetry):
    telemetry.event("engine_ready", "ready", version="v1", model="tiny")
    telemetry.step("tiny", "v1", stats(kv_waste=0.5))
    before = series(telemetry)
    for route in ("/v1/chat/completions", "/v1/completions"):
        for error, status in (("", 200), ("timeout", 504), ("cancelled", 499), ("generation_failed", 500)):
            served(telemetry, route=route, error=error, status=status, machine_s=1.0, degraded="shorter")
        served(telemetry, route=route, error="invalid_value", status=400, queued=None)
        served(telemetry, route=route, error="engine_away", status=503, queued=None)
    for reason in ("queue_full", "engine_away"):
        telemetry.refused(reason)
    for kind in ("engine_died", "engine_restarted", "version_promoted", "traffic_shifted"):
        telemetry.event(kind, "…", version="v1", model="tiny")
    telemetry.step("tiny", "v1", stats(gc_pauses=[(0, 0.001), (1, 0.001), (2, 0.3)], kv_waste=0.5))
    assert series(telemetry) == before


def test_totals_survive_an_engine(telemetry):
    telemetry.step("tiny", "v1", stats(100, preemptions=3, hit_tokens=40, asked_tokens=80))
    telemetry.step("tiny", "v1", stats(150, preemptions=4, hit_tokens=60, asked_tokens=120))
    telemetry.step("tiny", "v1", stats(2, preemptions=0, hit_tokens=5, asked_tokens=10))  # a new engine, from 0
    telemetry.step("tiny", "v1", stats(6, preemptions=1, hit_tokens=5, asked_tokens=10))
    assert value(telemetry, "llm_generated_tokens_total", version="v1") == 156
    assert value(telemetry, "llm_preemptions_total", version="v1") == 5
    assert value(telemetry, "llm_prefix_hit_tokens_total", version="v1") == 65
    assert value(telemetry, "llm_prefix_asked_tokens_total", version="v1") == 130
    assert value(telemetry, "llm_busy_seconds_total", version="v1") == pytest.approx(0.08)


def test_an_engine_that_soon_did_more_than_the_one_before(telemetry):
    """The old one was ended early; the first step of the new one makes a token for each of many answers."""
    telemetry.step("tiny", "v1", stats(3, hit_tokens=500, asked_tokens=1000))
    telemetry.event("engine_restarted", "again", version="v1", model="tiny")
    telemetry.step("tiny", "v1", stats(8, hit_tokens=0, asked_tokens=400))
    assert value(telemetry, "llm_generated_tokens_total", version="v1") == 11
    assert value(telemetry, "llm_prefix_hit_tokens_total", version="v1") == 500
    assert value(telemetry, "llm_prefix_asked_tokens_total", version="v1") == 1400


def test_steps(telemetry):
    telemetry.step("tiny", "v1", stats())
    assert value(telemetry, "llm_running", version="v1") == 3
    assert value(telemetry, "llm_engine_waiting", version="v1") == 1
    blocks = {state: value(telemetry, "llm_kv_blocks", state=state) for state in ("used", "cached", "free")}
    assert blocks == {"used": 10, "cached": 15, "free": 75}
    assert value(telemetry, "llm_batch_tokens_sum", version="v1") == 40
    assert value(telemetry, "llm_batch_requests_bucket", le="4.0", version="v1") == 1


def test_an_engine_at_rest_says_so_without_a_step(telemetry):
    telemetry.step("tiny", "v1", stats(7))
    at_rest = {"seconds": 0.0, "num_running": 0, "num_waiting": 0, "batch_tokens": 0, "num_free_blocks": 100}
    telemetry.step("tiny", "v1", stats(7, **at_rest))
    assert value(telemetry, "llm_running", version="v1") == 0
    assert value(telemetry, "llm_kv_blocks", state="used") == 0
    assert value(telemetry, "llm_step_seconds_count", version="v1") == 1
    assert value(telemetry, "llm_batch_requests_count", version="v1") == 1


def test_waste_is_told_where_it_is_known(telemetry):
    telemetry.step("tiny", "v1", stats())
    assert value(telemetry, "llm_kv_waste_ratio", version="v1") is None
    telemetry.step("tiny", "v1", stats(kv_waste=0.125))
    assert value(telemetry, "llm_kv_waste_ratio", version="v1") == 0.125
    assert telemetry.snapshot()["kv_waste"] == {"v1": 0.125}


def test_an_engine_that_dies_and_comes_back(telemetry):
    telemetry.event("engine_ready", "ready", version="v1")
    assert value(telemetry, "llm_engine_up", version="v1") == 1
    assert value(telemetry, "llm_engine_restarts_total", version="v1") == 0  # there before the first restart
    telemetry.event("engine_died", "killed by signal 9", version="v1")
    assert value(telemetry, "llm_engine_up", version="v1") == 0
    telemetry.event("engine_restarted", "again", version="v1")
    assert value(telemetry, "llm_engine_up", version="v1") == 1
    assert value(telemetry, "llm_engine_restarts_total", version="v1") == 1
    assert telemetry.snapshot()["totals"]["restarts"] == 1
    telemetry.step("tiny", "v1", stats())
    telemetry.event("version_unloaded", "gone", version="v1")
    assert value(telemetry, "llm_engine_up", version="v1") is None
    assert value(telemetry, "llm_running", version="v1") is None
    telemetry.step("tiny", "v1", stats())  # loaded again, under the same name
    assert value(telemetry, "llm_running", version="v1") == 3
    assert [event["kind"] for event in telemetry.snapshot()["events"]][:2] == ["engine_ready", "engine_died"]


def test_pauses_of_an_engine_in_a_process_of_its_own(telemetry):
    telemetry.step("tiny", "v1", stats())
    telemetry.step("tiny", "v1", stats(gc_pauses=[(0, 0.001), (2, 0.3)]))
    telemetry.step("tiny", "v1", stats(gc_pauses=[(2, 0.1)]))
    name = "llm_gc_pause_seconds"
    assert value(telemetry, f"{name}_count", process="engine-v1", generation="2") == 2
    assert value(telemetry, f"{name}_sum", process="engine-v1", generation="2") == pytest.approx(0.4)
    assert value(telemetry, f"{name}_sum", process="engine-v1", generation="0") == pytest.approx(0.001)
    assert value(telemetry, f"{name}_count", process="api", generation="2") == 0
