"""Thousands of requests that no client would send: none may bring a 5xx, or a wait without end, or the server down."""

import base64
from collections.abc import Sequence

from shared.measure.progress import progress_bar
from shared.measure.trace import TraceRequest
from shared.serving.bench.callers import Ask, Seen
from shared.serving.bench.fuzz import requests, unfinished
from shared.serving.bench.run import Numbers, Setup, answered, callers_at, completion, statuses, verdict
from shared.serving.bench.server import ServerUnderTest, server_under_test

REQUESTS = 10_000
CALLERS = 16
PATIENCE_S = 60.0  # a good one may be among them, and has to wait for its turn
CUT_OFF = 20  # every so many-th is cut off somewhere, and its caller says so
AT_ONCE = 500  # of which a good request is sent, to see whether the server still answers


def measure_fuzz(setup: Setup) -> Numbers:
    """Send valid and broken requests by the thousand; no answer may be a fault of the server's, and it must live on."""
    n = setup.count or REQUESTS
    counted: dict[str, int] = {}
    bad: list[Numbers] = []
    lost = 0
    with (
        server_under_test(setup.model) as server,
        progress_bar("fuzz: requests", n, setup.progress) as step,
    ):
        endless, cut_off = requests(0, server.model), unfinished(0, server.model)
        for start in range(0, n, AT_ONCE):
            size = min(AT_ONCE, n - start)
            raw = [next(cut_off if i % CUT_OFF == 0 else endless) for i in range(size)]
            asks = [
                Ask(i, raw=base64.b64encode(r).decode(), hold_s=PATIENCE_S, gives_up=i % CUT_OFF == 0)
                for i, r in enumerate(raw)
            ]
            with callers_at(server, asks, CALLERS, told=lambda seen: step()) as at_work:
                seen = at_work.wait()
            for name, number in statuses(seen).items():
                counted[name] = counted.get(name, 0) + number
            bad += [
                {"request": repr(raw[s.index][:2000]), "status": s.status, "left": s.left}
                for s in wrong(seen)
                if s.status or s.left or not asks[s.index].gives_up
            ]
            lost += not still_answers(server)
    hung, broken = sum(b["left"] for b in bad), sum(b["status"] >= 500 for b in bad)
    silent = len(bad) - hung - broken
    return {
        "requests": n, "statuses": dict(sorted(counted.items())), "bad": bad[:20],
        "verdicts": [
            verdict("no 5xx", f"{broken} of {n:,}", not broken),
            verdict("every whole request is answered", f"{silent} were not", not silent),
            verdict("no request hangs", f"{hung} had no answer in {PATIENCE_S:.0f} s", not hung),
            verdict("a good request is answered all the while", f"{lost} were not", not lost),
        ],
    }  # fmt: skip


def wrong(seen: Sequence[Seen]) -> list[Seen]:
    """Those that the server may not answer so, or not at all. 503 says that it is busy, which it may be."""
    return [one for one in seen if one.left or one.status == 0 or (one.status >= 500 and one.status != 503)]


def still_answers(server: ServerUnderTest) -> bool:
    """Whether an ordinary request is answered in full."""
    with callers_at(server, [completion(0, TraceRequest((100, 101, 102), 4), server.model)]) as at_work:
        return len(answered(at_work.wait())) == 1
