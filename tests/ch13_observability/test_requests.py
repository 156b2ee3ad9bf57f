"""Exercises 13.9 and 13.11: a request's stages, and its share of a step."""

import json
import math
import random
from dataclasses import replace

import pytest

from chapters.ch13_observability import cost
from chapters.ch13_observability import trace as own
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal, no_result

# 13.9 stages


def stages_of(**times: float | None) -> list:
    trace = own.RequestTrace("r", "/v1/chat/completions", **times)
    before = replace(trace)
    with crash_means("a time that was never reached is None; leave its stage out", TypeError):
        got = own.stages(trace)
    expect(got is not None, because=no_result("a list of (name, begin, end)"))
    expect(trace == before, because="the trace is read, and stays as it is: others ask it, too")
    got = got if isinstance(got, dict) else list(got)
    expect(
        not isinstance(got, dict) and all(isinstance(stage, tuple | list) and len(stage) == 3 for stage in got),
        because=f"the result is a list of (name, begin, end), one for each stage; got {got!r}",
    )
    return [tuple(stage) for stage in got]


@exercise("13.9")
def test_all_stages():
    got = stages_of(arrived=1.0, queued=1.5, started=4.0, first_token=4.25, done=6.0)
    expect_equal(
        [stage[0] for stage in got],
        ["admit", "queue", "prefill", "decode"],
        because="the names in STAGES, of all that were reached; the last ends at `done`",
    )
    expect_equal(
        got,
        [("admit", 1.0, 1.5), ("queue", 1.5, 4.0), ("prefill", 4.0, 4.25), ("decode", 4.25, 6.0)],
        because="each stage goes from its own stamp to the next one's: begin and end, on the clock, not a duration",
    )


@exercise("13.9")
def test_refused_at_once():
    expect_equal(
        stages_of(arrived=1.0, done=1.25),
        [("admit", 1.0, 1.25)],
        because="it ended while it was being admitted; that stage lasts to `done`, and the others were never reached",
    )


@exercise("13.9")
@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({"queued": 2.0, "done": 9.0}, [("admit", 1.0, 2.0), ("queue", 2.0, 9.0)]),
        (
            {"queued": 2.0, "started": 3.0, "done": 9.0},
            [("admit", 1.0, 2.0), ("queue", 2.0, 3.0), ("prefill", 3.0, 9.0)],
        ),
    ],
)
def test_ended_on_the_way(times, want):
    expect_equal(
        stages_of(arrived=1.0, **times),
        want,
        because="the last stage that was reached ends at `done`, whichever it is: it's where the request ended",
    )


@exercise("13.9")
def test_a_stamp_that_is_missing_in_between():
    expect_equal(
        stages_of(arrived=1.0, started=3.0, first_token=4.0, done=5.0),
        [("admit", 1.0, 3.0), ("prefill", 3.0, 4.0), ("decode", 4.0, 5.0)],
        because="a stage ends where the next one that was *reached* begins, so that no time is lost between them",
    )


@exercise("13.9")
def test_still_running():
    expect_equal(
        stages_of(arrived=1.0, queued=2.0, started=3.0),
        [("admit", 1.0, 2.0), ("queue", 2.0, 3.0)],
        because="a request that isn't done is still in its last stage, which has no end to be shown yet",
    )


@exercise("13.9")
def test_at_time_zero():
    expect_equal(
        stages_of(arrived=0.0, queued=0.0, started=1.0, first_token=2.0, done=3.0),
        [("admit", 0.0, 0.0), ("queue", 0.0, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 3.0)],
        because="0.0 is a time like any other: ask whether a stamp `is None`, not whether it is true",
    )


@exercise("13.9")
def test_microseconds_count():
    expect_equal(
        stages_of(arrived=80231.000001, queued=80231.000004, done=80231.000009),
        [("admit", 80231.000001, 80231.000004), ("queue", 80231.000004, 80231.000009)],
        because="the stamps as they are: a stage may take microseconds, and nothing is rounded here",
    )


@exercise("13.9")
def test_the_stages_add_up():
    trace = own.RequestTrace("r", "/v1", arrived=5.0, queued=5.5, started=7.0, first_token=7.5, done=11.0)
    total = sum(end - begin for _, begin, end in own.stages(trace))
    expect_close(total, 6.0, because="stages without gaps add up to the whole, from `arrived` to `done`")
    events = own.chrome_trace([trace])["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    expect_close([bar["ts"] for bar in bars], [5.0e6, 5.5e6, 7.0e6, 7.5e6], because="a bar for each stage")
    expect(json.dumps(events), because="the trace is JSON")


# 13.11 share_step


def shares(seconds: float, tokens: dict[str, int]) -> dict[str, float]:
    with crash_means("a step without requests has no tokens, and no shares: {}", ZeroDivisionError):
        given = dict(tokens)
        got = cost.share_step(seconds, given)
    expect(isinstance(got, dict), because=no_result("request id -> seconds"))
    expect(given == tokens, because="the tokens are the engine's own, which goes on with them: make a new dict")
    expect_equal(sorted(got), sorted(tokens), because="each request of the step has a share, and nobody else")
    return got


@exercise("13.11")
def test_in_proportion_to_tokens():
    got = shares(0.5, {"reads a prompt": 3, "writes": 1})
    expect_close(
        [got["reads a prompt"], got["writes"]],
        [0.375, 0.125],
        because="three of the step's four tokens are three quarters of its time: not a half each, and not all to each",
    )


@exercise("13.11")
def test_a_request_alone_pays_for_all():
    expect_close(shares(0.25, {"a": 7})["a"], 0.25, because="whoever is alone in a step has it to itself")


@exercise("13.11")
def test_nobody():
    expect_equal(shares(0.5, {}), {}, because="without requests there are no shares")


@exercise("13.11")
def test_nothing_is_paid_twice():
    draw = random.Random(7)
    paid, spent = dict.fromkeys("abcde", 0.0), 0.0
    for _ in range(50):
        there = draw.sample("abcde", draw.randint(1, 5))
        seconds = draw.uniform(0.01, 0.3)
        spent += seconds
        for name, share in shares(seconds, {name: draw.randint(1, 64) for name in there}).items():
            paid[name] += share
    expect(
        math.isclose(sum(paid.values()), spent, rel_tol=1e-9),
        because=f"over all steps the shares add up to the time: spent {spent:.4f} s, paid {sum(paid.values()):.4f} s",
    )
