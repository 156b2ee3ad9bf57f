"""What the server tells Prometheus: counts, latencies, exemplars, refusals, restarts, cost."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from shared.observability.telemetry import MAX_LABELS, Telemetry
from tests.observability.scenes import served, stats, value


def test_a_request_is_counted_and_measured(telemetry):
    served(telemetry)
    assert value(telemetry, "http_requests_total", route="/v1/chat/completions", status="200") == 1
    names = {
        "gen_ai_operation_name": "chat", "gen_ai_provider_name": "your_own_parts", "gen_ai_request_model": "tiny",
        "version": "v1",
    }  # fmt: skip
    assert value(telemetry, "gen_ai_server_time_to_first_token_seconds_sum", **names) == pytest.approx(0.5)
    assert value(telemetry, "gen_ai_server_time_per_output_token_seconds_sum", **names) == pytest.approx(0.5)  # 2 s / 4
    duration = "gen_ai_server_request_duration_seconds"
    assert value(telemetry, f"{duration}_sum", error_type="", **names) == pytest.approx(2.5)
    assert value(telemetry, f"{duration}_bucket", le="2.56", error_type="", **names) == 1
    assert value(telemetry, f"{duration}_bucket", le="1.28", error_type="", **names) == 0
    assert value(telemetry, "gen_ai_client_token_usage_sum", gen_ai_token_type="input") == 10
    assert value(telemetry, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 5
    assert value(telemetry, "llm_request_queue_seconds_sum", model="tiny") == pytest.approx(0.1)


def test_completions_are_an_operation_of_their_own(telemetry):
    served(telemetry, route="/v1/completions")
    name = "gen_ai_server_request_duration_seconds_count"
    assert value(telemetry, name, gen_ai_operation_name="text_completion") == 1


def test_exemplars_lead_from_a_bucket_to_a_request(telemetry):
    served(telemetry, "slow-one", ttft=4.0, e2e=9.0)
    text, content_type = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    found = {
        family.name: sample.exemplar.labels["request_id"]
        for family in read_openmetrics(text.decode())
        for sample in family.samples
        if sample.exemplar
    }
    assert found["gen_ai_server_time_to_first_token_seconds"] == "slow-one"
    assert found["gen_ai_server_request_duration_seconds"] == "slow-one"
    assert b"slow-one" not in telemetry.exposition("text/plain")[0]  # the older format has no place for it


def test_an_id_too_long_for_an_exemplar_is_left_out(telemetry):
    served(telemetry, "x" * 128)
    text, _ = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    assert b"xxx" not in text
    assert value(telemetry, "gen_ai_server_time_to_first_token_seconds_count") == 1


@pytest.mark.parametrize(
    ("status", "error", "counter", "labels"),
    [
        (504, "timeout", "llm_timeouts_total", {}),
        (504, "timeout", "llm_errors_total", {"kind": "timeout"}),
        (500, "internal_error", "llm_errors_total", {"kind": "internal_error"}),
        (200, "generation_failed", "llm_errors_total", {"kind": "generation_failed"}),
        (400, "invalid_value", "llm_bad_requests_total", {"kind": "invalid_value"}),
        (499, "cancelled", "llm_cancelled_total", {}),
    ],
)
def test_whose_fault_it_was(telemetry, status, error, counter, labels):
    before = value(telemetry, counter, **labels) or 0
    served(telemetry, status=status, error=error)
    assert value(telemetry, counter, **labels) == before + 1


def test_callers_who_leave_and_refusals_are_no_errors(telemetry):
    served(telemetry, status=499, error="cancelled")
    served(telemetry, status=429, error="queue_full", queued=None)
    telemetry.refused("queue_full")
    samples = [s for f in read_text(telemetry.exposition()[0].decode()) if f.name == "llm_errors" for s in f.samples]
    assert len(samples) >= 5  # known kinds are there from the start
    assert sum(sample.value for sample in samples) == 0
    assert value(telemetry, "llm_refusals_total", reason="queue_full") == 1
    assert value(telemetry, "llm_refusals_total", reason="overloaded") == 0


def test_failures_and_refusals_stay_out_of_the_good_latencies(telemetry):
    served(telemetry, status=500, error="internal_error", ttft=0.001, e2e=0.002)
    served(telemetry, status=429, error="queue_full", queued=None, started=None, first_token=None, e2e=0.001)
    assert value(telemetry, "gen_ai_server_request_duration_seconds_count", error_type="") is None
    assert value(telemetry, "gen_ai_server_request_duration_seconds_count", error_type="internal_error") == 1
    assert not value(telemetry, "gen_ai_server_time_to_first_token_seconds_count")
    assert telemetry.p99_s() is None
    assert telemetry.snapshot()["latency"]["e2e"]["n"] == 0


def test_labels_are_bounded(telemetry):
    for k in range(MAX_LABELS + 30):
        served(telemetry, f"r{k}", route=f"/{k}", model=f"model-{k}", version=f"v{k}", error=f"kind-{k}", status=500)
        telemetry.refused(f"reason-{k}")
        telemetry.event(f"kind-{k}", "something", version=f"v{k}")
        telemetry.step(f"model-{k}", f"v{k}", stats())
    families = list(read_text(telemetry.exposition()[0].decode()))
    for family in families:
        for label in ("route", "gen_ai_request_model", "model", "version", "kind", "reason", "error_type"):
            seen = {sample.labels[label] for sample in family.samples if label in sample.labels}
            assert len(seen) <= MAX_LABELS + 12, f"{family.name} has {len(seen)} values of {label}"  # + those preset
    assert value(telemetry, "http_requests_total", route="other") == 30


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


def test_steps(telemetry):
    telemetry.step("tiny", "v1", stats())
    assert value(telemetry, "llm_running", version="v1") == 3
    assert value(telemetry, "llm_engine_waiting", version="v1") == 1
    blocks = {state: value(telemetry, "llm_kv_blocks", state=state) for state in ("used", "cached", "free")}
    assert blocks == {"used": 10, "cached": 15, "free": 75}
    assert value(telemetry, "llm_batch_tokens_sum", version="v1") == 40
    assert value(telemetry, "llm_batch_requests_bucket", le="4.0", version="v1") == 1


def test_waste_is_told_where_it_is_known(telemetry):
    telemetry.step("tiny", "v1", stats())
    assert value(telemetry, "llm_kv_waste_ratio", version="v1") is None
    telemetry.step("tiny", "v1", stats(kv_waste=0.125))
    assert value(telemetry, "llm_kv_waste_ratio", version="v1") == 0.125


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


def test_cost(telemetry):
    served(telemetry, machine_s=2.0)
    served(telemetry)  # an engine that doesn't say what it took
    assert value(telemetry, "llm_request_machine_seconds_count", model="tiny") == 1
    assert value(telemetry, "llm_request_cost_sum", model="tiny") == pytest.approx(
        0.002
    )  # 3.6 an hour is 0.001 a second
    free = Telemetry()
    served(free, machine_s=2.0)
    assert value(free, "llm_request_machine_seconds_sum", model="tiny") == 2.0
    assert not value(free, "llm_request_cost_count", model="tiny")


def test_gauges_ask_when_they_are_read(telemetry):
    telemetry.queue_depth, telemetry.queue_capacity = lambda: 7, lambda: 64
    open_one = telemetry.begin("r1", "/v1/chat/completions")
    telemetry.begin("r1", "/v1/chat/completions")  # another caller with the same id
    assert value(telemetry, "llm_queue_depth") == 7
    assert value(telemetry, "llm_queue_capacity") == 64
    assert value(telemetry, "llm_requests_in_flight") == 2
    telemetry.finish(open_one)
    assert value(telemetry, "llm_requests_in_flight") == 1
