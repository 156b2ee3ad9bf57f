"""Exercises 13.5 to 13.7: the request's id, what is logged of it, and of which requests all."""

import json
import subprocess
import sys
import zlib
from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest

from chapters.ch13_observability import logs as own
from chapters.ch13_observability import request_id
from chapters.judge import crash_means, exercise, expect, expect_equal, no_result
from shared.observability.trace import RequestTrace

# 13.5 request_id_from


def id_from(header: str | None) -> str:
    with crash_means("a caller may send no id at all: then the header is None", TypeError):
        got = request_id.request_id_from(header)
    expect(isinstance(got, str), because=no_result("an id is a text"))
    return got


@exercise("13.5")
@pytest.mark.parametrize("header", ["order-17", "a", "A.b_c:d/e+f=g-0", "x" * 118])
def test_a_good_id_is_kept(header):
    expect_equal(id_from(header), header, because="a caller's id is kept as it is: it is how the caller finds the line")


@exercise("13.5")
@pytest.mark.parametrize(
    ("header", "because"),
    [
        (None, "without a header an id is made"),
        ("\r\n", "a header is text from the network: only what is a GOOD_ID is kept"),
        ("", "an empty id finds nothing; one is made"),
        ("\nok", "only the end was looked at, or some part; the whole of it must be a GOOD_ID: use fullmatch"),
        ("ok\r\nSet-Cookie: x", "only the beginning was looked at; the whole of it must be a GOOD_ID: use fullmatch"),
        ("a\n", "`match` with a $ lets a last line's end through: use fullmatch"),
        ("a\nlevel=error forged", "what comes after a line's end would be a log line of the caller's own making"),
        ("order 17", "a space isn't in GOOD_ID: the id would be two words of a log line"),
        ("x" * 119, "an id of any length fills the log; GOOD_ID ends at 118"),
        ("größe", "letters beyond ASCII aren't in GOOD_ID"),
    ],
)
def test_others_are_replaced(header, because):
    got = id_from(header)
    expect(got != header, because=because)
    expect(
        not (header or "").startswith(got),
        because="cut off, the ids of two callers that begin alike become one: one that is too long is replaced",
    )
    expect(
        request_id.GOOD_ID.fullmatch(got) is not None and len(got) >= 16,
        because="the new id must be a GOOD_ID itself, and long enough to be the only one: uuid4().hex; "
        f"got {got!r}. What was wrong with the caller's isn't mended",
    )


@exercise("13.5")
def test_made_ids_differ():
    made = {id_from(bad) for bad in (None, None, None, "no good", "no good")}
    expect(len(made) == 5, because="each request needs an id of its own, also when two send the same bad one")
    for one, other in combinations(made, 2):
        differ = sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
        expect(
            differ >= 8,
            because=f"{one} and {other} are nearly the same: another process counts from 1 as well, and reads the same "
            "clock. What makes an id the only one is chance, and much of it: uuid4",
        )


# 13.6 request_fields


def whole_trace(**changes) -> RequestTrace:
    trace = RequestTrace("r1", "/v1/chat/completions", "SmolLM2", "v2", "alice", 10.0, 10.25, 12.0, 12.5, 14.5)
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens, trace.status = 40, 16, 5, 200
    trace.finish_reason, trace.machine_s = "stop", 0.125
    for name, value in changes.items():
        setattr(trace, name, value)
    return trace


def fields_of(trace: RequestTrace) -> dict:
    before = deepcopy(trace)
    with crash_means(
        "a time that was never reached is None, which can't be rounded: leave it out. (If it is `vars`: a trace has no "
        "__dict__; getattr reads it by name)",
        TypeError,
    ):
        got = own.request_fields(trace)
    expect(isinstance(got, dict), because=no_result("the fields are a dict, name -> value"))
    expect(trace == before, because="the trace is read, and stays as it is: others ask it, too")
    return got


def expect_fields(got: dict, want: dict, surplus_because: str) -> None:
    """Name by name: two dicts side by side don't say where they differ."""
    missing, surplus = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
    expect(not missing, because=f"these are missing: {', '.join(missing)}")
    expect(not surplus, because=f"these don't belong there: {', '.join(surplus)}. {surplus_because}")
    for name, value in want.items():
        unit = (
            "in seconds, a number, rounded to six places: microseconds"
            if name.endswith("_s")
            else "as the trace has it"
        )
        expect_equal(got[name], value, because=f"{name}: {unit}")


@exercise("13.6")
def test_a_whole_request():
    got = fields_of(whole_trace())
    want = {
        "request_id": "r1", "route": "/v1/chat/completions", "model": "SmolLM2", "version": "v2", "key": "alice",
        "status": 200, "finish_reason": "stop", "prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 5,
        "queue_s": 1.75, "ttft_s": 2.5, "tpot_s": 0.5, "e2e_s": 4.5, "machine_s": 0.125,
    }  # fmt: skip
    because = "An empty text and a None say nothing, and a clock's reading says nothing without another"
    expect_fields(got, want, because)
    everything = whole_trace(max_blocks=3, resumed=1, n=1, degraded="shorter", batch_sizes=[1, 2], debug=True)
    expect_fields(
        fields_of(everything), want, "What is logged is a list; what the trace holds beside it is somebody else's"
    )


@exercise("13.6")
def test_an_error_on_the_way():
    """It had its first token: that it failed later takes none of its times away."""
    got = fields_of(whole_trace(error="cancelled", finish_reason=""))
    want = {"error": "cancelled", "queue_s": 1.75, "ttft_s": 2.5, "tpot_s": 0.5, "e2e_s": 4.5}
    missing = sorted(want.keys() - got.keys())
    expect(not missing, because=f"these are missing: {', '.join(missing)}. What it reached before the error is said")
    expect_equal({name: got[name] for name in want}, want, because="the error as it is, and the times as ever")


@exercise("13.6")
def test_zero_is_said():
    got = fields_of(whole_trace(cached_tokens=0, output_tokens=0, status=0, queued=12.0))
    for name in ("cached_tokens", "output_tokens", "status", "queue_s"):
        expect(
            name in got,
            because=f'{name} is 0, and that is an answer: leave out None and "", and nothing else that is falsy',
        )


@exercise("13.6")
def test_a_refused_request():
    trace = RequestTrace("r2", "/v1/chat/completions", arrived=3.0, done=3.001, status=429, error="queue_full")
    got = fields_of(trace)
    expect(
        None not in got.values() and "" not in got.values(),
        because="what was never reached is left out: a request that was refused has no TTFT, and no null either",
    )
    want = {
        "request_id": "r2", "route": "/v1/chat/completions", "status": 429, "error": "queue_full",
        "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "e2e_s": 0.001,
    }  # fmt: skip
    expect_fields(got, want, "What was never reached is left out: a time of 0 would say that it took no time")


@exercise("13.6")
def test_a_line_can_be_made_of_it():
    got = fields_of(whole_trace(done=14.5000004, queued=10.123457))
    with crash_means("the fields become one line of JSON: texts and numbers only", TypeError):
        line = json.dumps(got)
    expect_equal(json.loads(line)["e2e_s"], 4.5, because="rounded to six places: microseconds")
    expect_equal(json.loads(line)["queue_s"], 1.876543, because="rounded to six places, and no fewer: microseconds")


# 13.7 sampled


def is_sampled(request_id: str, share: float) -> bool:
    got = own.sampled(request_id, share)
    expect(isinstance(got, bool | int | np.bool_), because=no_result("the answer is True or False"))
    return bool(got)


@exercise("13.7")
def test_the_share():
    ids = [f"request-{k}" for k in range(4000)]
    for share in (0.01, 0.1, 0.5):
        got = sum(is_sampled(name, share) for name in ids) / len(ids)
        expect(
            abs(got - share) < 0.35 * share,
            because=f"a share of {share} of 4000 ids should be sampled, and it was {got:.3f}: crc32 gives 0 to 2**32",
        )


@exercise("13.7")
def test_none_and_all():
    ids = [f"request-{k}" for k in range(500)]
    expect(
        not any(is_sampled(name, 0.0) for name in [*ids, ""]),
        because="a share of 0 is nobody, not even an id whose CRC is 0: the number must be below the share",
    )
    expect(all(is_sampled(name, 1.0) for name in ids), because="a share of 1 is everybody")


@exercise("13.7")
def test_by_the_id_alone():
    ids = [f"request-{k}" for k in range(300)]
    want = [(zlib.crc32(name.encode()) & 0xFFFFFFFF) < 0.3 * 2**32 for name in ids]
    first = [is_sampled(name, 0.3) for name in ids]
    again = [is_sampled(name, 0.3) for name in ids]
    expect_equal(again, first, because="asked twice, the same id must get the same answer: no random numbers")
    expect_equal(
        first,
        want,
        because="every process must decide the same, so all must reckon alike: zlib.crc32 of the id's bytes / 2**32 < "
        "share. No other number of the id, no other comparison, and not Python's hash, which differs between processes",
    )


@exercise("13.7")
def test_a_larger_share_keeps_the_smaller():
    ids = [f"id{k}" for k in range(500)]
    few, many = ({name for name in ids if is_sampled(name, share)} for share in (0.2, 0.6))
    expect(few <= many, because="who is sampled at 0.2 is at 0.6, too: compare one number of the id with the share")


def test_crc_is_the_same_in_another_process():
    """What 13.7 rests on."""
    code = "import zlib; print(zlib.crc32(b'request-1'))"
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == zlib.crc32(b"request-1")
