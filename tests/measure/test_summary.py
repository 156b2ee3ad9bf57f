"""The report: what summarize adds to the exercises' parts. (Those are judged in tests/ch00_baseline.)"""

import json

import numpy as np
import pytest

from shared.measure.summary import RequestRecord, percentiles, summarize


def test_report():
    records = [
        RequestRecord(0, 10, 0.0, [1.0, 2.0, 3.0]),  # ttft 1, tpot 1, e2e 3
        RequestRecord(1, 20, 1.0, [5.0, 5.5]),  # ttft 4, tpot 0.5, e2e 4.5
        RequestRecord(2, 30, 2.0, [9.0, 9.0], streamed=False),  # in one piece: ttft = e2e = 7, no pace
        RequestRecord(3, 40, 0.0, [0.1], error="HTTP 500"),
        RequestRecord(4, 50, 0.0),  # never said a word
    ]
    report = summarize(records, peak_memory_mb=123.0)
    assert report["total"] == pytest.approx(
        {
            "requests": 3,
            "prompt_tokens": 60,
            "output_tokens": 7,
            "wall_s": 9.0,
            "output_tok_s": 7 / 9,
            "total_tok_s": 67 / 9,
            "peak_memory_mb": 123.0,
        }
    )
    for name, values in {"ttft_s": [1, 4, 7], "tpot_s": [1, 0.5], "e2e_s": [3, 4.5, 7]}.items():
        for p in (50, 90, 99):
            assert report["latency"][name][f"p{p}"] == pytest.approx(np.percentile(values, p))
    assert report["errors"] == {"HTTP 500": 1, "no tokens": 1}
    assert [row["tpot_s"] for row in report["requests"]] == [1.0, 0.5, None, None, None]
    assert [row["error"] for row in report["requests"]] == [None, None, None, "HTTP 500", "no tokens"]
    assert records[4].error is None  # the caller's records stay as they were
    json.dumps(report, allow_nan=False)


def test_nothing_answered():
    report = summarize([RequestRecord(0, 10, 0.0, error="timeout")], peak_memory_mb=1.0)
    assert report["latency"]["ttft_s"] == {"p50": None, "p90": None, "p99": None}
    assert report["total"]["output_tok_s"] == 0


def test_percentiles_are_of_all_values_together():
    """Averaging the P90 of two halves is not the P90 of the whole."""
    fast, slow = [1.0] * 9, [1.0] * 5 + [100.0] * 4
    assert percentiles(fast + slow)["p90"] == pytest.approx(np.percentile(fast + slow, 90))
    assert percentiles(fast + slow)["p90"] != pytest.approx((np.percentile(fast, 90) + np.percentile(slow, 90)) / 2)
