"""Replaying a trace on stacks that answer many at once: who is told what and when, mostly on a fake clock."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shared.measure.replay import run_batches, run_callers, run_steps
from shared.measure.trace import TraceRequest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class RoundRobin:
    """Each step takes a second and gives every request it has one token."""

    def __init__(self, clock: Clock, breaks_at: int | None = None) -> None:
        self.clock, self.breaks_at = clock, breaks_at
        self.todo, self.added, self.steps = {}, [], 0

    @property
    def busy(self) -> bool:
        return bool(self.todo)

    def add(self, index: int, request: TraceRequest) -> None:
        self.added.append((index, self.clock.now))
        self.todo[index] = request.max_new_tokens

    def step(self):
        self.steps += 1
        if self.steps == self.breaks_at:
            raise KeyboardInterrupt
        self.clock.now += 1.0
        for index in list(self.todo):
            self.todo[index] -= 1
            if not self.todo[index]:
                del self.todo[index]
            yield index


def replay(clock, engine, trace):
    return run_steps(engine, trace, progress=False, clock=clock.read, sleep=clock.sleep)


def test_requests_join_between_steps():
    clock = Clock()
    engine = RoundRobin(clock)
    report = replay(
        clock, engine, [TraceRequest((1,), 3), TraceRequest((2, 2), 2, at=0.5), TraceRequest((3,), 1, at=9)]
    )
    assert engine.added == [(0, 100.0), (1, 101.0), (2, 109.0)]  # due at 0.5, it joins when the step is over
    assert clock.slept == [6.0]  # nothing to do from 3 to 9
    first, second, third = report["requests"]
    assert (first["ttft_s"], first["tpot_s"], first["e2e_s"]) == pytest.approx((1.0, 1.0, 3.0))
    assert (second["ttft_s"], second["tpot_s"], second["e2e_s"]) == pytest.approx((1.5, 1.0, 2.5))
    assert (third["at"], third["e2e_s"]) == pytest.approx((9.0, 1.0))
    total = report["total"]
    assert (total["requests"], total["prompt_tokens"], total["output_tokens"]) == (3, 4, 6)
    assert total["wall_s"] == pytest.approx(10.0)
    assert report["interrupted"] is False


def test_ctrl_c_keeps_what_was_answered():
    clock = Clock()
    report = replay(clock, RoundRobin(clock, breaks_at=3), [TraceRequest((1,), 2), TraceRequest((2,), 5)])
    assert report["interrupted"] is True
    assert report["errors"] == {"interrupted": 1}
    assert report["total"]["output_tokens"] == 2


def test_an_answer_too_short_is_an_error():
    clock = Clock()

    class Forgets(RoundRobin):
        def step(self):
            found = list(super().step())
            self.todo.pop(1, None)
            return found

    report = replay(clock, Forgets(clock), [TraceRequest((1,), 3), TraceRequest((2,), 3)])
    assert report["errors"] == {"1 of 3 tokens": 1}
    assert report["requests"][1]["ttft_s"] is None


def test_static_batches_begin_when_the_last_request_is_there():
    clock = Clock()

    def answer(trace):
        assert clock.now == 102.0
        for index in (1, 0, 1):
            clock.now += 1.0
            yield index

    trace = [TraceRequest((1,), 1, at=2.0), TraceRequest((2,), 2)]
    report = run_batches(answer, trace, progress=False, clock=clock.read, sleep=clock.sleep)
    first, second = report["requests"]
    assert first["ttft_s"] == pytest.approx(2.0)
    assert (second["ttft_s"], second["e2e_s"]) == pytest.approx((3.0, 5.0))  # due at 0, and it waited for the other


def test_callers_come_when_due_and_get_an_answer_in_one_piece():
    came, served = [], []

    @asynccontextmanager
    async def serve():
        async def submit(request):
            came.append(request.prompt_ids)
            await asyncio.sleep(0.05)
            return [7] * request.max_new_tokens

        yield submit
        served.append(True)

    report = run_callers(serve, [TraceRequest((1,), 3, at=0.03), TraceRequest((2,), 2)], progress=False)
    assert came == [(2,), (1,)]
    assert served == [True]
    assert report["total"]["output_tokens"] == 5
    assert report["total"]["wall_s"] >= 0.08
    assert all(row["tpot_s"] is None and row["ttft_s"] >= 0.05 for row in report["requests"])
