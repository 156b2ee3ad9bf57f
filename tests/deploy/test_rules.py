"""The alert rules, the dashboard and the runbook: sound in themselves, and about metrics that the server really has."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from shared.observability.serving_metrics import ROUTES
from shared.observability.telemetry import Telemetry
from shared.observability.trace import StepStats

RULES = Path(__file__).parents[2] / "shared" / "observability" / "rules"
GROUPS = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"] if "record" in rule}
BOARD = json.loads((RULES / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"up", "ALERTS"}  # made by Prometheus itself
ADDED_LABELS = {"job", "instance", "alertstate", "le"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and "NEED_PROMTOOL" not in os.environ,
    reason="promtool (Debian: prometheus) isn't here",
)

# What may stand where a metric's name may: PromQL's words and functions.
WORDS = {
    "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool",
    "sum", "count", "max", "min", "avg", "rate", "increase", "absent", "histogram_quantile", "min_over_time", "vector",
    "predict_linear",
}  # fmt: skip


def expressions():
    """Everything that is asked of Prometheus, and where."""
    yield from ((f"alert {name}", rule["expr"]) for name, rule in ALERTS.items())
    yield from ((f"recorded {name}", expr) for name, expr in RECORDED.items())
    for panel in PANELS:
        yield from ((f"panel {panel['title']}", target["expr"]) for target in panel["targets"])
    yield from (("annotation", annotation["expr"]) for annotation in BOARD["annotations"]["list"])
    yield from (("runbook", expr) for expr in re.findall(r"`([^`\n]*[a-z]_[a-z]+_[^`\n]*[({][^`\n]*)`", runbook()))


def runbook():
    return (RULES / "RUNBOOK.md").read_text()


def promtool(*args, cwd=RULES, **more):
    result = subprocess.run(["promtool", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=180, **more)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def telemetry():
    """One that has seen some of everything, so that every metric has its series."""
    telemetry = Telemetry(debug=True, cost=1.0)
    for kind in ("engine_ready", "engine_died", "engine_restarted"):
        telemetry.event(kind, "…", version="v1", model="tiny")
    step = StepStats(1.0, 0.1, 2, 1, 5, 30, 4, 1, 10, 20, 100, 40, kv_waste=0.1)
    telemetry.step("tiny", "v1", step)
    for error, status in (("", 200), ("timeout", 504)):
        trace = telemetry.begin("r", "/v1/completions")
        trace.model, trace.version, trace.status, trace.error = "tiny", "v1", status, error
        trace.queued, trace.started, trace.first_token = trace.arrived, trace.arrived, trace.arrived + 0.1
        trace.prompt_tokens, trace.output_tokens, trace.machine_s, trace.degraded = 5, 7, 0.2, "shorter"
        telemetry.finish(trace)
    telemetry.refused("queue_full")
    return telemetry


@pytest.fixture(scope="module")
def labels(telemetry):
    """The label names of every series the server can have, by the series' name."""
    found = {}
    for family in telemetry.metrics.registry.collect():
        names = [sample.name for sample in family.samples] or [family.name]
        for name in names:
            found.setdefault(name, set())
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys()
    for gpu in ("memory_used_bytes", "memory_total_bytes", "utilization_ratio", "temperature_celsius"):
        assert f"llm_gpu_{gpu}" in found  # declared here even where there is no GPU
        found[f"llm_gpu_{gpu}"] |= {"gpu"}
    return found


def selectors(expr):
    """(metric, label names) of each selector in an expression, by a reading of our own."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", " ", bare)
    for name, matchers in re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{([^}]*)\})?", bare):
        if name not in WORDS and not re.fullmatch(r"\d.*|[smhd]|e\d+", name):
            yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def test_there_are_alerts_of_three_levels():
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} == {"page", "ticket", "notice"}
    assert len(ALERTS) == sum("alert" in rule for group in GROUPS for rule in group["rules"])  # no name twice


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_the_matter_and_where_to_read_on(name):
    notes = ALERTS[name]["annotations"]
    assert notes.keys() == {"summary", "description", "runbook"}
    assert "$value" in notes["description"]
    assert notes["runbook"] == f"RUNBOOK.md#{name.lower()}"


def test_the_runbook_has_a_section_for_each_alert_and_no_other():
    text = runbook()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(ALERTS), "in the rules' order"
    for name, section in sections.items():
        assert section.startswith(f"**{ALERTS[name]['labels']['severity']}.**"), name
        assert "*Wake someone:*" in section, name
        assert "*Do:*" in section or "do:*" in section, name
    panels = {panel["title"] for panel in PANELS} | {annotation["name"] for annotation in BOARD["annotations"]["list"]}
    named = set(re.findall(r"(?<![*\w])\*([A-Z][^*:]+)\*(?![*\w])", text))
    assert named - {"Status, Targets"} <= panels, "panels that the dashboard hasn't"
    for anchor in re.findall(r"\]\(#(\w+)\)", text):
        assert anchor in {name.lower() for name in ALERTS}


@pytest.mark.parametrize(("where", "expr"), expressions())
def test_expressions_are_about_series_that_the_server_has(where, expr, labels):
    found = list(selectors(expr))
    assert found
    for name, used in found:
        if name in RECORDED:
            continue
        assert name in labels.keys() | OF_PROMETHEUS, f"{where}: there is no metric {name}"
        assert used <= labels.get(name, set()) | ADDED_LABELS, f"{where}: {name} has no labels {used}"


def test_what_is_grouped_by_is_a_label(labels):
    known = set().union(*labels.values()) | ADDED_LABELS
    for where, expr in expressions():
        for names in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expr):
            assert set(re.findall(r"\w+", names)) <= known, where


def test_the_buckets_that_the_rules_name_exist(telemetry):
    text = (RULES / "alerts.yml").read_text()
    named = set(re.findall(r'(\w+_bucket)\{le="([^"]+)"', text))
    assert named == {
        ("gen_ai_server_time_to_first_token_seconds_bucket", "2.5"), ("llm_gc_pause_seconds_bucket", "0.128")
    }  # fmt: skip
    assert text.count('le="') == len(re.findall(r'_bucket\{le="', text))  # no other
    assert named <= {
        (sample.name, sample.labels.get("le"))
        for family in telemetry.metrics.registry.collect()
        for sample in family.samples
    }


def test_all_the_percentiles_are_shown():
    for name, title in (("ttft", "Time to the first token"), ("tpot", "Time per token"), ("e2e", "Whole request")):
        (panel,) = (panel for panel in PANELS if panel["title"] == title)
        shown = {target["legendFormat"].split()[0]: target["expr"] for target in panel["targets"]}
        assert list(shown) == ["P50", "P90", "P95", "P99", "P99.9"]
        for words, expr in shown.items():
            recorded = f"model:{name}_seconds:{words.lower().replace('.', '')}"
            assert expr == recorded + '{job=~"$job"}'
            q = float(re.search(r"histogram_quantile\(([\d.]+),", RECORDED[recorded])[1])
            assert q * 100 == pytest.approx(float(words[1:]))


def test_answers_are_what_is_counted():
    """A page that lists the models every few seconds would make a failing server look well, and an idle one busy."""
    for where, expr in expressions():
        for route in re.findall(r'route=~?"([^"]*)"', expr):
            assert [path for path in ROUTES if re.fullmatch(route, path)] == list(ROUTES), where
            assert not re.fullmatch(route, "/v1/models"), where


def test_no_panel_is_calm_when_nobody_tells_anything():
    calm = {panel["title"] for panel in PANELS for target in panel["targets"] if "vector(" in target["expr"]}
    assert calm == {"Firing alerts"}  # Prometheus' own, and NoMetrics is one of them


def test_the_choice_of_servers_holds_for_the_whole_board():
    (job,) = (variable for variable in BOARD["templating"]["list"] if variable["name"] == "job")
    assert job["includeAll"]
    assert job["current"]["value"] == "$__all"
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for expr in [*asked, *(annotation["expr"] for annotation in BOARD["annotations"]["list"])]:
        for name, used in selectors(expr):
            assert "job" in used or name == "ALERTS", expr


def test_servers_can_be_told_apart():
    """A series that isn't summed up has its server in its name."""
    for panel in PANELS:
        for target in panel["targets"]:
            raw = not re.search(r"\b(sum|max|min|count|histogram_quantile)\b", target["expr"])
            if raw and not set(re.findall(r"[a-z:_0-9]+", target["expr"])) & RECORDED.keys():
                assert "{{instance}}" in target["legendFormat"], panel["title"]


def test_every_metric_of_ours_is_shown_or_watched(labels):
    """What nobody is told of needn't be measured."""
    asked = " ".join(expr for _, expr in expressions()) + runbook()
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in labels if name.startswith(("llm_", "gen_ai_"))}
    assert {name for name in families if name not in asked} == set()


def test_the_dashboard_can_be_imported():
    """Against the shape in which Grafana exports and imports dashboards."""
    assert {"title", "uid", "schemaVersion", "panels", "templating", "annotations", "time"} <= BOARD.keys()
    variable, _ = BOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], "panels lie over one another"
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFG"[: len(panel["targets"])])
        assert all("legendFormat" in target for target in panel["targets"])


@needs_promtool
def test_promtool_accepts_the_rules():
    promtool("check", "rules", "alerts.yml")


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then():
    tests = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == ALERTS.keys()
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == ALERTS.keys()
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_every_expression_of_the_dashboard_and_the_runbook_parses(tmp_path):
    rules = [
        {"record": f"expression:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, (_, expr) in enumerate(expressions())
    ]
    (tmp_path / "all.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", "all.yml", cwd=tmp_path)


@needs_promtool
def test_promtool_accepts_the_configurations(tmp_path):
    promtool("check", "config", "prometheus.yml")
    for name in ("alerts.yml", "key"):
        (tmp_path / name).write_text((RULES / "alerts.yml").read_text())
    ours = (RULES.parents[1] / "serving" / "deploy" / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(ours.replace("/run/secrets/admin_key", "key"))
    promtool("check", "config", "prometheus.yml", cwd=tmp_path)


@needs_promtool
def test_promtool_accepts_what_the_server_tells(telemetry):
    text, content_type = telemetry.exposition("text/plain")
    assert content_type.startswith("text/plain")
    said = promtool("check", "metrics", input=text.decode())
    assert not said.strip(), said
