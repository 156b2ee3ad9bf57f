"""What Prometheus is told of requests: counts, latencies, exemplars, whose fault it was, refusals, cost."""

import logging
import math
import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from shared.observability.labels import MAX_LABELS
from shared.observability.serving_metrics import BAD_REQUESTS, ERROR_KINDS, EVENTS, REFUSALS
from shared.observability.telemetry import Telemetry
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


def test_a_long_id_is_cut_in_an_exemplar(telemetry):
    served(telemetry, "x" * 100 + "y" * 28)
    text, _ = telemetry.exposition("application/openmetrics-text; version=1.0.0")
    found = {s.exemplar.labels["request_id"] for f in read_openmetrics(text.decode()) for s in f.samples if s.exemplar}
    assert found == {"x" * 100 + "y" * 18}  # OpenMetrics allows 128 characters, of which 10 are "request_id"


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
    assert value(telemetry, "gen_ai_server_request_duration_seconds_count", error_type="_OTHER") == 1
    assert not value(telemetry, "gen_ai_server_time_to_first_token_seconds_count")
    assert telemetry.p99_s() is None
    assert telemetry.snapshot()["latency"]["e2e"]["n"] == 0


def test_labels_are_bounded(telemetry):
    before = {family.name: len(family.samples) for family in read_text(telemetry.exposition()[0].decode())}
    for k in range(MAX_LABELS + 30):
        served(telemetry, f"r{k}", route=f"/{k}", error=f"kind-{k}", status=500, degraded=f"how-{k}")
        served(telemetry, f"b{k}", error=f"bad-{k}", status=400)
        telemetry.refused(f"reason-{k}")
        telemetry.event(f"kind-{k}", "something", version=f"v{k}")
    for family in read_text(telemetry.exposition()[0].decode()):
        if family.type == "counter":
            assert len(family.samples) - before[family.name] <= MAX_LABELS + 1, family.name
        for label in ("error_type", "version"):
            assert len({sample.labels.get(label) for sample in family.samples}) <= 4, family.name
    assert value(telemetry, "http_requests_total", route="other") == 30
    assert value(telemetry, "llm_refusals_total", reason="other") == 30
    served(telemetry, status=500, error="internal_error")  # what is known beforehand never becomes "other"
    assert value(telemetry, "llm_errors_total", kind="internal_error") == 1


def test_what_the_server_calls_things_is_known_beforehand():
    """Against the server's own source: the kinds that it counts have their series from the start."""
    root = Path(__file__).resolve().parents[2] / "shared/serving"
    files = [root / "errors.py", *(f for f in root.glob("*/*.py") if f.parent.name not in ("bench", "deploy"))]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    events = set(re.findall(r'(?:_tell|on_event)\(\s*"(\w+)"', code)) | {"engine_hung", "engine_died"}
    assert len(events) > 10
    assert events <= set(EVENTS)
    kinds = set(re.findall(r'code="(\w+)"', code)) | {"timeout", "context_length_exceeded"}
    of_operators = {"admin_closed", "invalid_http", "invalid_model", "not_enough_memory", "version_not_found"}
    renamed = {"deadline_passed"}  # to "timeout"
    assert kinds - of_operators - renamed <= {*ERROR_KINDS, *BAD_REQUESTS, *REFUSALS}


def test_a_request_that_ends_twice_counts_once(telemetry):
    trace = served(telemetry)
    telemetry.finish(trace)
    assert value(telemetry, "http_requests_total", route="/v1/chat/completions", status="200") == 1


@pytest.mark.parametrize("wrong", [{"log_full_share": 50}, {"log_full_share": -1}, {"log_full_share": float("nan")},
                                   {"cost": -1.0}, {"cost": float("nan")}, {"cost": float("inf")}])  # fmt: skip
def test_settings_that_are_none(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Telemetry(**wrong)


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


def test_one_requests_cost_is_in_its_log_line_and_its_trace(telemetry, caplog):
    with caplog.at_level(logging.INFO, "server"):
        served(telemetry, "dear", machine_s=2.0)
        served(telemetry, "unknown")
    dear, unknown = (record.fields for record in caplog.records)
    assert (dear["machine_s"], dear["cost"]) == (2.0, 0.002)
    assert "cost" not in unknown
    first, second = telemetry.snapshot()["traces"]
    assert (first["machine_s"], first["cost"], second["cost"]) == (2.0, pytest.approx(0.002), None)


def test_one_number_that_cannot_be_had_leaves_the_others(telemetry, monkeypatch, caplog):
    def broken():
        raise RuntimeError("not now")

    monkeypatch.setattr("shared.observability.collectors.gpus", broken)
    monkeypatch.setattr("shared.observability.telemetry.gpus", broken)
    telemetry.queue_depth = telemetry.queue_capacity = telemetry.processes = broken
    for _ in range(2):
        telemetry.step("tiny", "v1", stats(7))
        served(telemetry)
        assert telemetry.snapshot()["totals"]["output_tokens"]
        assert value(telemetry, "llm_generated_tokens_total", version="v1") == 7
    assert math.isnan(value(telemetry, "llm_queue_depth"))
    assert value(telemetry, "llm_process_resident_memory_bytes", process="api") is None
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == len(set(said)) >= 4  # once for each, and not with every scrape
    telemetry.queue_depth = lambda: 5
    assert value(telemetry, "llm_queue_depth") == 5
