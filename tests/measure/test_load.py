"""The load generator: open and closed loops, what they count from, errors by kind, and leaving early."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from shared.measure.load import RequestFailed, closed_loop, open_loop
from shared.measure.senders import in_process
from shared.measure.trace import TraceRequest

WAIT = 0.1  # seconds; what a fake server takes


def trace(n: int, gap: float = 0.0, tokens: int = 2) -> list[TraceRequest]:
    return [TraceRequest((1, 2, 3), tokens, at=i * gap) for i in range(n)]


def one_at_a_time():
    """A sender whose server handles one request after the other, WAIT seconds each, two tokens at its end."""
    lock = asyncio.Lock()

    async def send(request):
        async with lock:
            await asyncio.sleep(WAIT)
            yield 1
            yield 1

    return send


def test_open_loop_counts_from_when_a_request_was_due():
    report = asyncio.run(open_loop(one_at_a_time(), trace(4), progress=False))
    waits = [row["ttft_s"] for row in report["requests"]]
    for i, wait in enumerate(waits):  # the i-th waits for those before it
        assert wait >= (i + 1) * WAIT - 0.01
    assert waits == sorted(waits)
    assert report["total"]["requests"] == 4
    assert report["total"]["output_tokens"] == 8


def test_open_loop_sends_on_time_however_busy_the_server_is():
    sent = []

    async def send(request):
        sent.append(time.perf_counter() - start)
        await asyncio.sleep(0.5)
        yield 1

    start = time.perf_counter()
    asyncio.run(open_loop(send, trace(4, gap=0.1, tokens=1), progress=False))
    for i, at in enumerate(sent):
        assert i * 0.1 - 0.01 <= at < i * 0.1 + 0.3  # one after the other would be 0, 0.5, 1, 1.5


def test_blocked_generator_still_counts_from_when_due():
    """A server that blocks this very loop keeps the generator from sending; the wait must count all the same."""

    async def send(request):
        time.sleep(WAIT)
        yield 1

    report = asyncio.run(open_loop(send, trace(3, tokens=1), progress=False))
    assert report["requests"][2]["e2e_s"] >= 3 * WAIT - 0.01


def test_closed_loop_never_has_more_than_its_callers():
    running = most = 0

    async def send(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        yield 1

    report = asyncio.run(closed_loop(send, trace(12, tokens=1), callers=3, progress=False))
    assert most == 3
    assert report["total"]["requests"] == 12
    assert [row["index"] for row in report["requests"]] == list(range(12))


def test_closed_loop_hides_the_queue():
    """The same server, the same four requests: a single patient caller never sees the queue that four strangers see."""
    patient = asyncio.run(closed_loop(one_at_a_time(), trace(4), callers=1, progress=False))
    strangers = asyncio.run(open_loop(one_at_a_time(), trace(4), progress=False))
    longest = [max(row["e2e_s"] for row in report["requests"]) for report in (patient, strangers)]
    assert longest[1] >= 4 * WAIT - 0.01
    assert longest[1] > 2 * longest[0]


def test_closed_loop_refuses_no_callers():
    with pytest.raises(ValueError, match="callers"):
        asyncio.run(closed_loop(one_at_a_time(), trace(1), callers=0, progress=False))


def test_errors_are_counted_by_kind():
    async def send(request):
        kind = len(request.prompt_ids)
        if kind == 1:
            raise RequestFailed("HTTP 429")
        if kind == 2:
            yield 1
            raise ValueError("surprise")
        if kind == 3:
            return
        yield 1

    requests = [TraceRequest((1,) * n, 1) for n in (1, 2, 3, 4, 1)]
    report = asyncio.run(open_loop(send, requests, progress=False))
    assert report["errors"] == {"HTTP 429": 2, "ValueError: surprise": 1, "no tokens": 1}
    assert report["total"]["requests"] == 1
    assert report["total"]["output_tokens"] == 1


def test_leaving_early_gives_the_report_so_far():
    async def send(request):
        if len(request.prompt_ids) > 1:
            await asyncio.sleep(30)
        yield 1

    async def impatient():
        requests = [TraceRequest((1,), 1), TraceRequest((1, 1), 1), TraceRequest((1,), 1, at=30.0)]
        run = asyncio.create_task(open_loop(send, requests, progress=False))
        await asyncio.sleep(0.1)
        run.cancel()  # what Ctrl-C does to the running task
        return await run

    started = time.perf_counter()
    report = asyncio.run(impatient())
    assert time.perf_counter() - started < 5
    assert report["total"]["requests"] == 1
    assert report["errors"] == {"interrupted": 2}


def test_answer_in_one_piece_has_no_pace():
    async def send(request):
        await asyncio.sleep(0.01)
        yield 5

    (row,) = asyncio.run(open_loop(send, trace(1), progress=False))["requests"]
    assert row["output_tokens"] == 5
    assert row["tpot_s"] is None
    assert row["ttft_s"] == row["e2e_s"]


def test_in_process_runs_one_at_a_time():
    def generate(prompt_ids, n):
        for i in range(n):
            time.sleep(WAIT / 2)
            yield i

    report = asyncio.run(open_loop(in_process(generate), trace(2), progress=False))
    first, second = report["requests"]
    assert first["output_tokens"] == second["output_tokens"] == 2
    assert first["e2e_s"] >= WAIT - 0.01
    assert second["e2e_s"] >= first["e2e_s"] + WAIT - 0.02
    assert first["tpot_s"] == pytest.approx(WAIT / 2, rel=0.8)


def test_in_process_passes_errors_on():
    def generate(prompt_ids, n):
        yield 1
        raise MemoryError("full")

    report = asyncio.run(open_loop(in_process(generate), trace(2), progress=False))
    assert report["errors"] == {"MemoryError: full": 2}


def test_in_process_stops_for_a_caller_who_left():
    made = []

    def generate(prompt_ids, n):
        for i in range(1000):
            made.append(i)
            time.sleep(0.01)
            yield i

    async def impatient():
        run = asyncio.create_task(open_loop(in_process(generate), trace(2), progress=False))
        await asyncio.sleep(0.1)
        run.cancel()
        return await run

    report = asyncio.run(impatient())
    assert report["errors"] == {"interrupted": 2}
    time.sleep(0.1)
    assert len(made) < 100


CTRL_C = """
import asyncio, json
from shared.measure.load import open_loop
from shared.measure.trace import TraceRequest

async def send(request):
    if len(request.prompt_ids) > 1:
        print("waiting", flush=True)
        await asyncio.sleep(60)
    yield 1

report = asyncio.run(open_loop(send, [TraceRequest((1,), 1), TraceRequest((1, 1), 1, at=0.1)], progress=False))
print(json.dumps(report["errors"]), report["total"]["requests"])
"""


def test_ctrl_c_gives_the_report_so_far():
    with subprocess.Popen([sys.executable, "-c", CTRL_C], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == '{"interrupted": 1} 1\n'
        assert process.wait(10) == 0
