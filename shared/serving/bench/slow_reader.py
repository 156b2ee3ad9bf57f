"""Readers who take a byte a second: what they cost those who read as usual, and the server's memory."""

import time
from typing import Any

from shared.measure.progress import progress_bar
from shared.measure.trace import make_trace
from shared.serving.bench.callers import Ask
from shared.serving.bench.run import Numbers, Setup, answered, callers_at, completion, rate, verdict, vocab
from shared.serving.bench.server import ServerUnderTest, cpu_s, memory_mb, server_under_test

STREAMS = 8
ROUNDS = 3
PLACES = 16
SLOW = 20  # more than are computed at a time: if they kept their places, nobody else would be answered
SLOW_TOKENS = 160
BIG = {"logprobs": 20}  # makes some 800 bytes of each token, and of an answer more than the kernel keeps for a reader
MOST_LOSS = 0.1
MOST_MB = 1.0  # for each of them


def measure_slow_readers(setup: Setup) -> Numbers:
    """Eight normal streams, alone and beside readers whose answers are computed and not read. In turn, several times.

    While the slow ones' answers are being computed they take their share of the engine, as anybody does; so the normal
    streams are measured when that is over.
    """
    rounds = setup.count or ROUNDS
    alone: list[float] = []
    beside: list[float] = []
    with (
        server_under_test(setup.model, "--max-num-seqs", PLACES, "--max-waiting", 64) as server,
        progress_bar("slow readers: rounds", 2 * rounds, setup.progress) as step,
    ):
        normal(server, 99)  # a warm-up
        memory = memory_mb(server.process.pid)["rss"]
        most = memory
        for turn in range(rounds):
            alone.append(normal(server, turn))
            step()
            with callers_at(server, slow_asks(server)):
                wait_until_idle(server)
                beside.append(normal(server, rounds + turn))
                most = max(most, memory_mb(server.process.pid)["rss"])
                still_open = server.versions()[0]["requests"]["open"]
            step()
    loss, each = 1 - max(beside) / max(alone), (most - memory) / SLOW
    return {
        "streams": STREAMS, "slow_readers": SLOW, "still_open": still_open,
        "alone_tok_s": alone, "beside_tok_s": beside, "loss": loss, "api_memory_mb": [memory, most],
        "verdicts": [
            verdict("readers of a byte a second cost others nothing (under 10%, which is noise)",
                    f"{max(beside):.1f} against {max(alone):.1f} tokens/s: {loss:+.1%}", loss < MOST_LOSS),
            verdict("and more of them than are computed at a time leave room for others",
                    f"{still_open} were still being read, {PLACES} places", still_open > PLACES),
            verdict("and under 1 MB of memory each", f"{each:.2f} MB", each < MOST_MB),
        ],
    }  # fmt: skip


def slow_asks(server: ServerUnderTest) -> list[Ask]:
    """Long answers whose callers read a byte a second."""
    trace = make_trace(SLOW, 5, (16, 32), (SLOW_TOKENS, SLOW_TOKENS), vocab=vocab(server))
    return [completion(i, request, server.model, body=BIG, bytes_per_s=1.0) for i, request in enumerate(trace)]


def normal(server: ServerUnderTest, seed: int) -> float:
    """Output tokens a second of eight streams."""
    trace = make_trace(STREAMS, 1000 + seed, (32, 32), (64, 64), vocab=vocab(server))
    asks = [completion(i, request, server.model) for i, request in enumerate(trace)]
    with callers_at(server, asks) as at_work:
        seen = at_work.wait()
    if len(answered(seen)) < STREAMS:
        raise RuntimeError(f"only {len(answered(seen))} of {STREAMS} normal streams were answered")
    return rate(seen)


def wait_until_idle(server: ServerUnderTest, quiet_s: float = 2.0, most_s: float = 120.0) -> None:
    """Wait until the engine's process uses no CPU time to speak of."""
    end = time.monotonic() + most_s
    pid: Any = server.engine_pid
    time.sleep(1)
    while time.monotonic() < end:
        before = cpu_s(pid)
        time.sleep(quiet_s)
        if cpu_s(pid) - before < 0.2 * quiet_s:
            return
    raise RuntimeError(f"the engine was still computing after {most_s:.0f} s")
