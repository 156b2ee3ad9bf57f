"""Replaying a trace: what is timed, from when, and what happens when a run goes wrong. The clock is a fake one."""

import json

import pytest

from shared.measure.bench import run_trace
from shared.measure.trace import TraceRequest


class Clock:
    """Time that passes only when someone sleeps or computes."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def stack(clock: Clock, prefill_s: float, step_s: float, calls: list | None = None):
    """Generates 7, 7, 7, …: the first token takes prefill_s seconds, each one after it step_s."""

    def generate(prompt_ids, n):
        if calls is not None:
            calls.append((prompt_ids, n, clock.now))
        for i in range(n):
            clock.sleep(step_s if i else prefill_s)
            yield 7

    return generate


def replay(generate, clock, trace):
    return run_trace(generate, trace, progress=False, clock=clock.read, sleep=clock.sleep)


def test_two_at_once_queue():
    clock = Clock()
    trace = [TraceRequest((1, 2), 3), TraceRequest((1, 2, 3), 5)]
    report = replay(stack(clock, prefill_s=1.0, step_s=0.5), clock, trace)
    first, second = report["requests"]
    # the first: tokens at 1, 1.5, 2; the second starts at 2: tokens at 3, 3.5, 4, 4.5, 5
    assert (first["ttft_s"], first["tpot_s"], first["e2e_s"]) == pytest.approx((1.0, 0.5, 2.0))
    assert (second["ttft_s"], second["tpot_s"], second["e2e_s"]) == pytest.approx((3.0, 0.5, 5.0))
    total = report["total"]
    assert (total["requests"], total["prompt_tokens"], total["output_tokens"]) == (2, 5, 8)
    assert total["wall_s"] == pytest.approx(5.0)
    assert total["output_tok_s"] == pytest.approx(8 / 5)
    assert total["total_tok_s"] == pytest.approx(13 / 5)
    assert total["peak_memory_mb"] > 10
    assert report["latency"]["ttft_s"] == pytest.approx({"p50": 2.0, "p90": 2.8, "p99": 2.98})
    assert report["errors"] == {}
    assert report["interrupted"] is False


def test_arrivals():
    """The second in the file is due first; the last is due when the machine is idle again."""
    clock, calls = Clock(), []
    trace = [TraceRequest((1,), 1, at=2.0), TraceRequest((2,), 1, at=1.0), TraceRequest((3,), 1, at=10.0)]
    report = replay(stack(clock, prefill_s=3.0, step_s=0.0, calls=calls), clock, trace)
    assert calls == [((2,), 1, 101.0), ((1,), 1, 104.0), ((3,), 1, 110.0)]
    assert [row["index"] for row in report["requests"]] == [0, 1, 2]
    assert [row["at"] for row in report["requests"]] == [2.0, 1.0, 10.0]
    assert [row["ttft_s"] for row in report["requests"]] == pytest.approx([5.0, 3.0, 3.0])  # 2 s of the first: queue
    assert report["total"]["wall_s"] == pytest.approx(12.0)  # from 1 to 13


def test_short_answer_is_an_error():
    clock = Clock()

    def generate(prompt_ids, n):
        clock.sleep(1.0)
        yield from [7] * (n if len(prompt_ids) == 1 else 2)

    report = replay(generate, clock, [TraceRequest((1,), 3), TraceRequest((1, 1), 3)])
    assert report["errors"] == {"2 of 3 tokens": 1}
    assert report["total"]["output_tokens"] == 3
    assert report["requests"][1]["error"] == "2 of 3 tokens"
    assert report["requests"][1]["ttft_s"] is None


def test_interrupted_run_reports_so_far():
    clock = Clock()

    def generate(prompt_ids, n):
        for i in range(n):
            if len(prompt_ids) == 2 and i == 1:
                raise KeyboardInterrupt
            clock.sleep(1.0)
            yield 7

    report = replay(generate, clock, [TraceRequest((1,), 3), TraceRequest((1, 1), 3), TraceRequest((1,), 3)])
    assert report["interrupted"] is True
    assert report["errors"] == {"interrupted": 2}
    assert report["total"]["requests"] == 1
    assert report["total"]["output_tokens"] == 3


def test_failure_names_the_request():
    def generate(prompt_ids, n):
        raise RuntimeError("no more memory")
        yield

    with pytest.raises(RuntimeError, match="no more memory") as caught:
        run_trace(generate, [TraceRequest((1,), 3)], progress=False)
    assert caught.value.__notes__ == ["while answering requests[0] of the trace"]


def test_report_is_json_in_the_documented_shape():
    clock = Clock()
    report = replay(stack(clock, 1.0, 0.5), clock, [TraceRequest((1, 2), 1)])
    again = json.loads(json.dumps(report, allow_nan=False))
    assert set(again["total"]) == {
        "requests", "prompt_tokens", "output_tokens", "wall_s", "output_tok_s", "total_tok_s", "peak_memory_mb",
    }  # fmt: skip
    assert {name: set(values) for name, values in again["latency"].items()} == {
        name: {"p50", "p90", "p99"} for name in ("ttft_s", "tpot_s", "e2e_s")
    }
    assert again["latency"]["tpot_s"]["p50"] is None  # a single token has no pace
    row = again["requests"][0]
    assert {"index", "prompt_tokens", "output_tokens", "at", "ttft_s", "tpot_s", "e2e_s"} <= set(row)
