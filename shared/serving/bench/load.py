"""Load beyond what can be done: callers who come when they come, at 50 to 150% of what the server can answer."""

import math
import random
from collections.abc import Sequence

from shared.measure.trace import TraceRequest, make_trace
from shared.serving.bench.callers import Ask, Seen
from shared.serving.bench.run import (
    Numbers,
    Setup,
    answered,
    ask_all,
    completion,
    e2e,
    p,
    statuses,
    ttft,
    verdict,
    vocab,
)
from shared.serving.bench.server import ServerUnderTest, server_under_test

LEVELS = (0.5, 0.8, 1.0, 1.5)
SECONDS = 90.0  # of each level
CAPACITY_REQUESTS = 96
CALLERS = 32  # as many as the server computes at a time
PROMPTS, OUTPUTS = (16, 128), (16, 64)
REFUSED = (429, 503)


def measure_load(setup: Setup) -> Numbers:
    """The capacity, from callers who wait for their turn; then each level, from callers who don't.

    Arrivals are Poisson's, the same for the same seed. Latencies count from when a request was due. Goodput: output
    tokens a second of the answers in full.
    """
    seconds = setup.seconds or SECONDS
    with server_under_test(setup.model) as server:
        capacity = measure_capacity(server, setup)
        levels = {}
        for number, level in enumerate(LEVELS):
            asks = arrivals(server, level * capacity, seconds, seed=number)
            seen = ask_all(server, asks, None, f"load at {level:.0%}: requests", setup.progress)
            levels[f"{level:.0%}"] = summed_up(seen, seconds) | {"offered_per_s": level * capacity}
    return {"capacity_per_s": capacity, "seconds": seconds, "levels": levels, "verdicts": verdicts(levels)}


def measure_capacity(server: ServerUnderTest, setup: Setup) -> float:
    """Requests a second, with as many callers as the server computes answers at a time.

    The first ones come together and the last ones end one by one; only the time between is full, so it alone counts.
    """
    trace = make_trace(CAPACITY_REQUESTS, 1, PROMPTS, OUTPUTS, vocab=vocab(server))
    asks = [completion(i, request, server.model) for i, request in enumerate(trace)]
    seen = ask_all(server, asks, CALLERS, "load: capacity", setup.progress)
    ends = sorted(one.ended for one in answered(seen))
    middle = ends[CALLERS // 2 : -CALLERS]
    return (len(middle) - 1) / (middle[-1] - middle[0])


def arrivals(server: ServerUnderTest, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Requests of random lengths with exponential gaps, until the time is over. No prompt comes twice.

    The gaps are the same for all rates, but for their scale: else chance would make one level harder than the next.
    """
    rng, at, times = random.Random(0), 0.0, []
    while (at := at - math.log(1 - rng.random()) / rate) < seconds:
        times.append(at)
    trace = make_trace(max(len(times), 1), 100 + seed, PROMPTS, OUTPUTS, vocab=vocab(server))
    due = [TraceRequest(r.prompt_ids, r.max_new_tokens, at) for r, at in zip(trace, times, strict=False)]
    return [completion(i, request, server.model) for i, request in enumerate(due)]


def summed_up(seen: Sequence[Seen], seconds: float) -> Numbers:
    """One level of load in numbers. seconds: for how long requests came."""
    done = answered(seen)
    began = min(one.arrived for one in seen)
    in_time = sum(one.tokens for one in done if one.ended <= began + seconds)
    return {
        "requests": len(seen),
        "statuses": statuses(seen),
        "answered": len(done),
        "goodput_tok_s": sum(one.tokens for one in done) / (max(one.ended for one in done) - began),
        "tok_s_while_they_came": in_time / seconds,
        "ttft_s": {"p50": p(ttft(seen), 50), "p99": p(ttft(seen), 99)},
        "e2e_s": {"p50": p(e2e(seen), 50), "p99": p(e2e(seen), 99)},
        "retry_after": all(one.retry_after for one in seen if one.status in REFUSED),
    }


def verdicts(levels: Numbers) -> list[Numbers]:
    """What is promised of the levels, and whether it holds."""
    others = {
        f"{level}: {status}": n
        for level, found in levels.items()
        for status, n in found["statuses"].items()
        if status.split()[0] not in ("200", *map(str, REFUSED)) or status.startswith("200 ")
    }
    at80, at100, at150 = (levels[level] for level in ("80%", "100%", "150%"))
    told = all(found["retry_after"] for found in levels.values())
    p99, p99_80 = at150["e2e_s"]["p99"], at80["e2e_s"]["p99"]
    tokens, tokens_100 = at150["goodput_tok_s"], at100["goodput_tok_s"]
    return [
        verdict("no error but 429 and 503", f"others: {others or 'none'}", not others),
        verdict("each refusal says when to try again", f"Retry-After {'' if told else 'not '}in all", told),
        verdict("P99 of accepted requests at 150% is within 3 times P99 at 80%",
                f"{p99:.2f} s and {p99_80:.2f} s: {p99 / p99_80:.2f} times", p99 <= 3 * p99_80),
        verdict("goodput at 150% is at least 90% of that at 100%",
                f"{tokens:.1f} and {tokens_100:.1f} tokens/s: {tokens / tokens_100:.0%}", tokens >= 0.9 * tokens_100),
    ]  # fmt: skip
