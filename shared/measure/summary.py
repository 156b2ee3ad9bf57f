"""From time stamps to the numbers that everyone compares: throughput, TTFT, TPOT, E2E and their percentiles."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

PERCENTILES = (50, 90, 99)


class Latency(NamedTuple):
    """How long one request's caller waited, in seconds."""

    ttft: float  # time to first token, from the request's arrival
    tpot: float | None  # time per output token after the first; None when there is no second one
    e2e: float  # end to end: from arrival to the last token


@dataclass
class RequestRecord:
    """What was seen of one request. Times are seconds on the run's clock, which starts at 0."""

    index: int  # its place in the trace
    prompt_tokens: int
    arrived: float  # when it was due, not when somebody got round to it
    token_times: list[float] = field(default_factory=list)  # when each token arrived, in order
    streamed: bool = True  # False: all tokens came in one piece, so that nothing is known of the time between them
    error: str | None = None  # what kind of error it met; None: it was answered in full


def percentile(values: Sequence[float], p: float) -> float:
    """The value below which p per cent of `values` lie, by linear interpolation: numpy.percentile's default.

    Of n sorted values the smallest is the 0th percentile and the largest the 100th, so that the p-th lies at index
    (n - 1) * p / 100. Between two indices the result lies between their values, in proportion.
    Raises ValueError for no values, or a p outside 0 to 100.

    >>> percentile([40, 10, 30, 20], 50)  # sorted 10 20 30 40; index 3 * 0.5 = 1.5, halfway from 20 to 30
    25.0
    """
    if not values or not 0 <= p <= 100:
        raise ValueError(f"a percentile needs values and a p from 0 to 100, not {len(values)} values and p = {p}")
    # exercise 0.5: sort a copy, find the (fractional) index, and go from the value below it towards the one above it
    ordered = sorted(values)
    index = (len(ordered) - 1) * p / 100
    below, above = math.floor(index), math.ceil(index)
    return ordered[below] + (ordered[above] - ordered[below]) * (index - below)
    # end


def request_latency(arrived: float, token_times: Sequence[float]) -> Latency:
    """TTFT, TPOT and E2E of one request, in seconds.

    arrived: when the request was due; token_times: when each of its n >= 1 tokens came, on the same clock. Between n
    tokens lie n - 1 steps; with a single token there is no step, and TPOT is None.

    >>> request_latency(1.0, [3.0, 3.5, 4.0])  # due at 1, first token at 3, then one every half second
    Latency(ttft=2.0, tpot=0.5, e2e=3.0)
    """
    # exercise 0.6: three subtractions and one division
    first, last = token_times[0], token_times[-1]
    steps = len(token_times) - 1
    tpot = (last - first) / steps if steps else None
    return Latency(ttft=first - arrived, tpot=tpot, e2e=last - arrived)
    # end


def run_totals(records: Sequence[RequestRecord]) -> dict[str, float]:
    """What a whole run achieved, over the requests that were answered (those without an error).

    requests, prompt_tokens, output_tokens: their sums. wall_s: from the first arrival to the last token of all, in
    seconds. output_tok_s and total_tok_s (prompt + output): tokens per second of wall time. All 0 if none was answered.

    Two requests at time 0, each of ten tokens; one ends at 1 s, the other, which had to wait, at 2 s: 20 tokens in
    2 s are 10 tokens/s.
    """
    # exercise 0.7: leave out the failed, then the sums, the wall time, and the two rates
    done = [record for record in records if record.error is None]
    prompt = sum(record.prompt_tokens for record in done)
    output = sum(len(record.token_times) for record in done)
    wall = max(r.token_times[-1] for r in done) - min(r.arrived for r in done) if done else 0.0
    return {
        "requests": len(done),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "wall_s": wall,
        "output_tok_s": output / wall if wall else 0.0,
        "total_tok_s": (prompt + output) / wall if wall else 0.0,
    }
    # end


def summarize(records: Sequence[RequestRecord], peak_memory_mb: float) -> dict[str, Any]:
    """The report of a run: "total", "latency" (percentiles over all requests), "errors" by kind, and "requests".

    Seconds, tokens per second and MB; None where there is nothing to measure. A record without an error and without
    a token counts as the error "no tokens".
    """
    records = [r if r.error or r.token_times else replace(r, error="no tokens") for r in records]
    rows = [_row(record) for record in records]
    latency = {
        name: percentiles([row[name] for row in rows if row["error"] is None and row[name] is not None])
        for name in ("ttft_s", "tpot_s", "e2e_s")
    }
    return {
        "total": {**run_totals(records), "peak_memory_mb": peak_memory_mb},
        "latency": latency,
        "errors": dict(Counter(record.error for record in records if record.error is not None)),
        "requests": rows,
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """P50, P90 and P99 of all values together, never of other percentiles: {"p50": …, "p90": …, "p99": …}."""
    return {f"p{p}": percentile(values, p) if values else None for p in PERCENTILES}


def _row(record: RequestRecord) -> dict[str, Any]:
    ttft = tpot = e2e = None
    if record.error is None:
        ttft, tpot, e2e = request_latency(record.arrived, record.token_times)
    return {
        "index": record.index,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": len(record.token_times),
        "at": record.arrived,
        "ttft_s": ttft,
        "tpot_s": tpot if record.streamed else None,
        "e2e_s": e2e,
        "error": record.error,
    }
