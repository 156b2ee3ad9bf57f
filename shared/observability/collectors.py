"""Numbers that are only looked up when somebody asks for the metrics: the engines' latest step, memory, the GPU."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.observability.process import gpus, resident_bytes
from shared.observability.trace import StepStats

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What a new engine counts from zero again.
TOTALS = {
    "llm_preemptions": ("preemptions", "Requests that gave their KV blocks up for others"),
    "llm_prefix_hit_tokens": ("hit_tokens", "Prompt tokens found in the prefix cache"),
    "llm_prefix_asked_tokens": ("asked_tokens", "Prompt tokens looked up in the prefix cache"),
    "llm_generated_tokens": ("generated_tokens", "Tokens the engine generated"),
}


class Asker:
    """Asks for numbers. One that can't be had is missing, and the others are still told.

    Logged when it begins to fail, and again only after it could be had in between.
    """

    def __init__(self) -> None:
        self._failing: set[str] = set()

    def __call__(self, name: str, ask: Callable[[], T], otherwise: T) -> T:
        """What `ask` returns, or `otherwise` when it raises. name: what can't be measured, for the log."""
        try:
            answer = ask()
        except Exception:
            if name not in self._failing:
                self._failing.add(name)
                logger.exception("%s can't be measured", name)
            return otherwise
        self._failing.discard(name)
        return answer


class EngineNumbers:
    """One engine's latest step, and its totals over all its lives.

    A new engine counts from 0, so that some total falls; only one that outdoes the old one in every total with its
    first step isn't noticed.
    """

    def __init__(self) -> None:
        self.latest: StepStats | None = None
        self.busy_s = 0.0
        self._before = dict.fromkeys((field for field, _ in TOTALS.values()), 0)  # the totals of earlier lives

    def step(self, stats: StepStats) -> int:
        """Returns how many tokens were generated since the step before."""
        last, self.latest = self.latest, stats
        self.busy_s += stats.seconds
        if last is None:
            return stats.generated_tokens
        if any(getattr(stats, field) < getattr(last, field) for field in self._before):
            for field in self._before:
                self._before[field] += getattr(last, field)
            return stats.generated_tokens
        return stats.generated_tokens - last.generated_tokens

    def total(self, field: str) -> int:
        """A StepStats counter since the version was loaded, over all its engine processes."""
        return self._before[field] + (getattr(self.latest, field) if self.latest else 0)


class ScrapeCollector(Collector):
    """Asked by the registry. `processes` names the processes whose memory is shown: {"api": pid, "engine-v1": pid}."""

    def __init__(
        self,
        engines: Mapping[tuple[str, str], EngineNumbers],
        processes: Callable[[], Mapping[str, int]],
        dropped_lines: Callable[[], int],
        ask: Asker,
    ) -> None:
        self._engines, self._processes, self._dropped_lines, self._ask = engines, processes, dropped_lines, ask

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; a part that can't be asked is left out, and the log says so."""
        nothing: list[Metric] = []
        parts = {
            "the engines": self._engine_metrics, "the log": self._own_metrics, "memory": self._memory_metrics,
            "the GPUs": self._gpu_metrics,
        }  # fmt: skip
        for name, metrics in parts.items():
            yield from self._ask(name, partial(_all, metrics), nothing)

    def _own_metrics(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "llm_log_lines_dropped", "Log lines given up because the queue was full", self._dropped_lines()
        )
        yield GaugeMetricFamily("llm_asyncio_tasks", "Tasks of this event loop", value=_num_tasks())

    def _memory_metrics(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily("llm_process_resident_memory_bytes", "Resident memory", labels=["process"])
        for name, pid in self._processes().items():
            if (held := resident_bytes(pid)) is not None:
                memory.add_metric([name], held)
        yield memory

    def _gpu_metrics(self) -> Iterable[Metric]:
        families = {
            "used_bytes": GaugeMetricFamily("llm_gpu_memory_used_bytes", "GPU memory in use", labels=["gpu"]),
            "total_bytes": GaugeMetricFamily("llm_gpu_memory_total_bytes", "GPU memory", labels=["gpu"]),
            "utilization": GaugeMetricFamily("llm_gpu_utilization_ratio", "Time a kernel ran", labels=["gpu"]),
            "celsius": GaugeMetricFamily("llm_gpu_temperature_celsius", "GPU temperature", labels=["gpu"]),
        }
        for gpu in gpus():
            for field, family in families.items():
                if (value := getattr(gpu, field)) is not None:
                    family.add_metric([gpu.name], value)
        return families.values()

    def _engine_metrics(self) -> Iterator[Metric]:
        labels = ["model", "version"]
        running = GaugeMetricFamily("llm_running", "Requests in the running batch", labels=labels)
        waiting = GaugeMetricFamily("llm_engine_waiting", "Requests that wait inside the engine", labels=labels)
        blocks = GaugeMetricFamily("llm_kv_blocks", "KV blocks: used, cached, free", labels=[*labels, "state"])
        waste = GaugeMetricFamily("llm_kv_waste_ratio", "Slots of held KV blocks without a token", labels=labels)
        seconds = CounterMetricFamily("llm_busy_seconds", "Time the engine spent in steps", labels=labels)
        for key, engine in list(self._engines.items()):
            seconds.add_metric(key, engine.busy_s)
            if (stats := engine.latest) is None:
                continue
            running.add_metric(key, stats.num_running)
            waiting.add_metric(key, stats.num_waiting)
            if stats.kv_waste is not None:
                waste.add_metric(key, stats.kv_waste)
            for state, count in kv_blocks(stats).items():
                blocks.add_metric([*key, state], count)
        yield from (running, waiting, blocks, waste, seconds)
        for name, (field, text) in TOTALS.items():
            family = CounterMetricFamily(name, text, labels=labels)
            for key, engine in list(self._engines.items()):
                family.add_metric(key, engine.total(field))
            yield family


def _all(metrics: Callable[[], Iterable[Metric]]) -> list[Metric]:
    return list(metrics())  # so that what fails in the middle fails here


def _num_tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # asked outside an event loop


def kv_blocks(stats: StepStats) -> dict[str, int]:
    """The pool in three parts that add up to it; "used" is left out where the pool's size is unknown."""
    free = {"cached": stats.num_cached_blocks, "free": stats.num_free_blocks - stats.num_cached_blocks}
    return {"used": stats.num_blocks - stats.num_free_blocks, **free} if stats.num_blocks else free
