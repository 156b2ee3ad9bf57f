"""The engine's process killed under load, ten times, and nobody notices: every answer is what it would have been."""

import os
import signal
import time
from collections.abc import Callable, Sequence

from shared.measure.progress import progress_bar
from shared.measure.trace import make_trace
from shared.serving.bench.callers import Ask, Seen
from shared.serving.bench.run import (
    Callers,
    Numbers,
    Setup,
    answered,
    ask_all,
    callers_at,
    completion,
    statuses,
    verdict,
    vocab,
)
from shared.serving.bench.server import ServerUnderTest, server_under_test

KILLS = 10
CALLERS = 8
PER_KILL = 8  # requests
MOST_S = 10.0
BETWEEN = 4  # answers, before the next kill: some streams are then at their beginning and some near their end
CLOSE = 0.01  # natural logarithms: where the best two tokens are closer, rounding decides between them


def measure_kills(setup: Setup) -> Numbers:
    """The same greedy requests twice, without kills and with them, and what became of each.

    A kill comes when streams are under way again. An answer that differs is looked at: batches of other sizes round
    otherwise, and where two tokens are all but equally likely either may come, with kills and without.
    """
    kills = setup.count or KILLS
    with server_under_test(setup.model) as server:
        trace = make_trace(kills * PER_KILL, 3, (16, 64), (48, 96), vocab=vocab(server))
        asks = [completion(i, r, server.model, body={"logprobs": 2}, keep_text=True) for i, r in enumerate(trace)]
        wanted = ask_all(server, asks, CALLERS, "kills: answers without", setup.progress)
        with (
            progress_bar("kills: answers with", len(asks), setup.progress) as step,
            callers_at(server, asks, CALLERS, told=lambda seen: step()) as at_work,
        ):
            killed = kill_now_and_then(server, at_work, kills)
            got = at_work.wait()
    return compared(wanted, got, killed, asks)


def kill_now_and_then(server: ServerUnderTest, at_work: Callers, kills: int) -> list[float]:
    """Kill the engine when it has answered some requests since the last time. Returns when."""
    killed: list[float] = []
    while at_work.running and len(killed) < kills:
        until = len(at_work.seen) + BETWEEN
        wait_for(at_work, lambda: len(at_work.seen) >= until)  # noqa: B023
        if at_work.running and (pid := server.engine_pid) is not None:
            os.kill(pid, signal.SIGKILL)
            killed.append(time.monotonic())
            wait_for(at_work, lambda: server.engine_pid not in (pid, None))  # noqa: B023
    return killed


def wait_for(at_work: Callers, condition: Callable[[], bool]) -> None:
    """As long as the callers are at work."""
    while at_work.running and not condition():
        time.sleep(0.02)


def compared(wanted: Sequence[Seen], got: Sequence[Seen], killed: Sequence[float], asks: Sequence[Ask]) -> Numbers:
    """A run with kills beside one without: what failed, which texts differ, and how long the streams paused."""
    failed = [one for one in got if one not in answered(got)]
    pairs = [(a, b) for a, b in zip(wanted, got, strict=True) if a.status == b.status == 200 and not a.error + b.error]
    differ = [(a, b) for a, b in pairs if a.text != b.text]
    unclear = [a.index for a, b in differ if not close_call(a, b)]
    gaps = [gap for at in killed if (gap := next_token_after(got, at)) is not None]
    lengths = [(b.index, b.tokens) for b in got if not b.error and b.tokens != asks[b.index].body["max_tokens"]]
    worst = max(gaps, default=0.0)
    return {
        "kills": len(killed), "requests": len(asks), "callers": CALLERS, "statuses": statuses(got),
        "same": len(pairs) - len(differ), "close_calls": len(differ) - len(unclear), "different": unclear,
        "seconds_to_next_token": gaps, "wrong_lengths": lengths,
        "verdicts": [
            verdict("no request fails", f"{len(failed)} of {len(asks)} failed, {len(killed)} kills", not failed),
            verdict("every answer is the one without kills",
                    f"{len(pairs) - len(differ)} the same, {len(differ) - len(unclear)} part at two tokens that are "
                    f"equally likely, {len(unclear)} others", not unclear and not lengths),
            verdict("streams go on within 10 s", f"at most {worst:.2f} s from kill to token", 0 < worst < MOST_S),
        ],
    }  # fmt: skip


def close_call(wanted: Seen, got: Seen) -> bool:
    """Do the two answers part where the best two tokens were all but equally likely?"""
    for a, b, margin in zip(wanted.pieces, got.pieces, wanted.margins, strict=False):
        if a != b:
            return margin < CLOSE
    return False


def next_token_after(seen: Sequence[Seen], at: float) -> float | None:
    """Seconds from a kill until the last of the streams that were open then had its next token."""
    waits = []
    for one in seen:
        later = [t for t in one.times if t > at]
        if one.arrived < at < one.ended and later and one.times[0] < at:
            waits.append(later[0] - at)
    return max(waits, default=None)
