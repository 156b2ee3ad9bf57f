"""The leaf's other parts: memory, GPUs, pauses, rates; and that it is a leaf."""

import ast
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from shared.observability import gc_pauses, process
from shared.observability.alerts import Alert, burn_rate
from shared.observability.cost import price
from shared.observability.metrics import EXEMPLAR_CHARS, Counter, Histogram, exposition, histogram_quantile, merged
from shared.observability.request_id import request_id_from
from shared.observability.serving_metrics import ServingMetrics
from shared.observability.telemetry import Telemetry
from shared.observability.trace import RequestTrace

ROOT = Path(__file__).resolve().parents[2]


def test_it_imports_no_other_layer():
    for file in (ROOT / "shared/observability").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert not name.startswith("shared.") or name.startswith("shared.observability"), f"{file.name}: {name}"
                assert name.partition(".")[0] not in ("torch", "fastapi", "starlette", "chapters"), (
                    f"{file.name}: {name}"
                )


def test_memory_of_processes():
    held = process.resident_bytes(os.getpid())
    assert held is not None
    assert 10e6 < held < 100e9
    code = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it runs now
        other = process.resident_bytes(child.pid)
        assert other is not None
        assert 1e6 < other < held
    finally:
        child.communicate()
    assert process.resident_bytes(child.pid) is None


def test_a_process_that_is_gone_has_no_series():
    telemetry = Telemetry()
    telemetry.processes = lambda: {"api": os.getpid(), "engine-v1": 2**22 + 1}
    text = telemetry.exposition()[0].decode()
    assert 'llm_process_resident_memory_bytes{process="api"}' in text
    assert "engine-v1" not in text


def test_without_a_gpu_there_are_no_gpu_numbers(monkeypatch):
    monkeypatch.setattr(process, "_nvml", lambda: None)
    assert process.gpus() == []


def test_gpus_as_nvml_tells_of_them(monkeypatch):
    class NVMLError(Exception):
        pass

    class Nvml:
        NVML_TEMPERATURE_GPU = 0

        def nvmlDeviceGetCount(self):
            return 2

        def nvmlDeviceGetHandleByIndex(self, index):
            return index

        def nvmlDeviceGetMemoryInfo(self, handle):
            return type("Memory", (), {"used": 3 * 2**30, "total": 80 * 2**30})

        def nvmlDeviceGetUtilizationRates(self, handle):
            if handle == 1:
                raise NVMLError("not supported")
            return type("Rates", (), {"gpu": 87})

        def nvmlDeviceGetTemperature(self, handle, sensor):
            return 61

    Nvml.NVMLError = NVMLError
    monkeypatch.setattr(process, "_nvml", Nvml)
    first, second = process.gpus()
    assert (first.name, first.used_bytes, first.utilization, first.celsius) == ("0", 3 * 2**30, 0.87, 61)
    assert second.utilization is None
    text = Telemetry().exposition()[0].decode()
    assert 'llm_gpu_utilization_ratio{gpu="0"} 0.87' in text
    assert 'llm_gpu_utilization_ratio{gpu="1"}' not in text
    assert 'llm_gpu_temperature_celsius{gpu="1"} 61.0' in text


def test_a_gpu_that_fell_off_the_bus(monkeypatch):
    class NVMLError(Exception):
        pass

    class Nvml:
        NVML_TEMPERATURE_GPU = 0
        lost = {0}

        def nvmlDeviceGetCount(self):
            if self.lost is None:
                raise NVMLError("uninitialized")
            return 2

        def nvmlDeviceGetHandleByIndex(self, index):
            if index in self.lost:
                raise NVMLError("GPU is lost")
            return index

        def nvmlDeviceGetMemoryInfo(self, handle):
            return type("Memory", (), {"used": 1, "total": 2})

        def nvmlDeviceGetUtilizationRates(self, handle):
            raise NVMLError("unknown error")

        nvmlDeviceGetTemperature = lambda self, handle, sensor: 61  # noqa: E731

    Nvml.NVMLError = NVMLError
    monkeypatch.setattr(process, "_nvml", Nvml)
    assert [gpu.name for gpu in process.gpus()] == ["1"]
    Nvml.lost = None
    assert process.gpus() == []
    assert Telemetry().snapshot()["gpus"] == []
    assert b"llm_queue_depth 0.0" in Telemetry().exposition()[0]


@pytest.mark.gpu
def test_a_real_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    (gpu, *_) = process.gpus()
    held = torch.empty(2**28, device="cuda")
    (after, *_) = process.gpus()
    assert after.used_bytes >= gpu.used_bytes
    assert after.used_bytes >= held.nbytes
    assert after.total_bytes > after.used_bytes


def test_gc_pauses_reach_the_metric():
    telemetry = Telemetry()
    stop = telemetry.watch_gc()
    try:
        gc.collect()
    finally:
        stop()
    text = telemetry.exposition()[0].decode()
    assert 'llm_gc_pause_seconds_count{generation="2",process="api"} 1.0' in text
    stop()  # a second time nothing happens
    assert telemetry.gc_pauses not in gc.callbacks


def test_tame():
    before = gc.get_threshold()
    try:
        gc_pauses.tame(12_345)
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] == 12_345
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_burn_rate_and_price():
    assert burn_rate(bad=144, total=10_000, objective=0.999) == pytest.approx(14.4)
    assert burn_rate(bad=0, total=0, objective=0.999) == 0
    assert price(7200, 1.5) == 3.0
    for objective in (99.9, 1, 0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            burn_rate(1, 2, objective)
    for for_s in (-1, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            Alert(for_s)


def test_histograms_of_several_servers_are_added():
    a, b = Histogram("h", "H", (1.0, 2.0)), Histogram("h", "H", (1.0, 2.0))
    for value in (0.5, 1.5, 9.0):
        a.observe(value)
    b.observe(0.75)
    both = merged([a, b])
    assert both.cumulative() == [2, 3, 4]
    assert both.sum == pytest.approx(11.75)
    with pytest.raises(ValueError, match="different bounds"):
        merged([a, Histogram("h", "H", (1.0, 3.0))])

    with pytest.raises(ValueError, match="no histogram"):
        merged([])


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_values_that_arent_counted(value):
    histogram = Histogram("h", "H", (1.0,))
    with pytest.raises(ValueError, match="h: can't count"):
        histogram.observe(value)
    assert histogram.counts == [0, 0]
    assert histogram.sum == 0


@pytest.mark.parametrize("openmetrics", [False, True])
def test_what_the_hand_made_metrics_write_can_be_read(openmetrics):
    """By prometheus-client: NumPy's numbers, a counter that never counted, an exemplar whose id is too long."""
    histogram, counter = Histogram("h", "H", np.array([1, 2])), Counter("hits_total", "Hits")
    histogram.observe(np.float64(0.5), "a" * 118)
    histogram.observe(np.float32(1.5), "b" * 119)
    read = read_openmetrics if openmetrics else read_text
    families = read(exposition([histogram, counter], openmetrics))
    samples = {(s.name, s.labels.get("le")): s for family in families for s in family.samples}
    assert samples["h_sum", None].value == 2.0
    assert samples["h_bucket", "2.0"].value == 2.0
    assert samples["hits_total", None].value == 0
    assert (samples["h_bucket", "1.0"].exemplar is not None) == openmetrics
    assert samples["h_bucket", "2.0"].exemplar is None


def test_an_id_fits_into_an_exemplar():
    longest = "x" * (EXEMPLAR_CHARS - len("request_id"))
    assert request_id_from(longest) == longest
    assert len(request_id_from(longest + "x")) == 32


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (1.0, float("nan"))])
def test_bounds_that_are_none(bounds):
    with pytest.raises(ValueError, match="h: bounds"):
        Histogram("h", "H", bounds)


def test_a_counter_refuses_what_isnt_its_own():
    counter = Counter("c_total", "C", ("route",))
    with pytest.raises(ValueError, match="c_total: a counter only grows"):
        counter.inc(-1, route="/")
    for name, labels in (("hits", ()), ("hits_total", "route")):
        with pytest.raises(ValueError, match="ends in _total"):
            Counter(name, "Hits", labels)
    with pytest.raises(ValueError, match="the labels must be"):
        counter.inc(status=200)
    assert exposition([counter], openmetrics=True).endswith("# EOF\n")
    with pytest.raises(ValueError, match="1 bounds have 2 cumulative counts, not 3"):
        histogram_quantile(0.5, (1.0,), [1, 2, 3])


def test_two_servers_in_one_process_share_no_metric():
    one, two = ServingMetrics(), ServingMetrics()
    one.timeouts.inc()
    assert two.registry.get_sample_value("llm_timeouts_total") == 0


def test_tpot_of_several_answers():
    trace = RequestTrace("r", "/v1", first_token=1.0, done=3.0, output_tokens=10, n=2)
    assert trace.tpot_s == pytest.approx(0.5)  # two answers of five tokens, side by side
    assert RequestTrace("r", "/v1", first_token=1.0, done=3.0, output_tokens=1).tpot_s is None
    assert RequestTrace("r", "/v1", first_token=1.0, done=3.0, output_tokens=5, n=0).tpot_s == pytest.approx(0.5)
