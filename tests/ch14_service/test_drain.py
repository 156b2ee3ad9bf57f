"""Exercise 14.8: judged on a clock that jumps, by when the waiting ends."""

import asyncio

from chapters.ch14_service import drain
from chapters.judge import exercise, expect, expect_close, expect_raises
from tests.ch14_service.scenes import now, run, survives, until

FOREVER = "the waiting never ends. Somebody leaves: self._changed is set. Nobody does: the grace period has an end"


class Patient(asyncio.Event):
    """Asked a thousand times while it's set, somebody has forgotten to clear it, and nobody else gets a turn."""

    asked = 0

    async def wait(self) -> bool:
        self.asked += 1
        expect(
            self.asked < 1000,
            because="it loops for ever: self._changed stays set once somebody has left, until it's cleared. Clear it "
            "before each wait",
        )
        return await super().wait()


def drained(grace_s: float, leaves: list[float], stay: int = 0, hurry_at: float | None = None):
    """Who is in leaves at these times. Returns (what wait returned, when it did, the Drain)."""

    async def scene():
        which = drain.Drain()
        which._changed = Patient()
        for _ in range(len(leaves) + stay):
            which.enter()

        async def leave(at: float) -> None:
            await until(at)
            which.leave()

        async def hurry() -> None:
            await until(hurry_at)
            which.hurry()

        others = [asyncio.create_task(leave(at)) for at in leaves]
        others += [asyncio.create_task(hurry())] if hurry_at is not None else []
        try:
            with survives("the end of the grace period is no error: it returns whether all have left"):
                got = await which.wait(grace_s)
            return got, now(), which
        finally:
            for task in others:
                task.cancel()

    return run(scene, because=FOREVER)


@exercise("14.8")
def test_when_all_have_left():
    got, at, _ = drained(30.0, [2.0, 5.0, 3.0])
    expect(got is not None, because="does the function return its result? True: all have left; False: some haven't")
    expect(
        at < 29,
        because="the last one left after 5 s, and it waited for the whole 30: the grace period is its patience's end, "
        "and not its length",
    )
    expect(at >= 5 - 1e-6, because=f"the last one leaves after 5 s, and the waiting ended after {at:.1f}: wait for all")
    expect(at < 5.3, because=f"all had left after 5 s, and it was noticed after {at:.1f}")
    expect(got is True, because="all have left within the grace period: True")


@exercise("14.8")
def test_when_some_stay():
    got, at, which = drained(10.0, [2.0, 4.0, 6.0, 8.0], stay=1)
    expect(
        at < 10.5,
        because=f"the grace period is 10 s in all, and it ended after {at:.0f}: it must not begin anew with everybody "
        "who leaves",
    )
    expect_close(at, 10.0, because="somebody stays, so it waits for all of the grace period", rtol=0, atol=0.1)
    expect(got is False, because="one was still in when the time was over: False")
    expect(which.num_open == 1, because="one was still in when the time was over: waiting doesn't make it leave")


@exercise("14.8")
def test_nobody_is_in():
    got, at, _ = drained(30.0, [])
    expect(at < 0.5, because="nobody is in, so there is nothing to wait for")
    expect(got is True, because="nobody is in: all have left, True")


@exercise("14.8")
def test_nobody_enters_any_more():
    async def scene():
        which = drain.Drain()
        which._changed = Patient()
        which.enter()
        waiting = asyncio.create_task(which.wait(10.0))
        await until(1.0)
        with expect_raises(
            drain.Draining,
            because="while one waits for those who are in to leave, others come in: begin with self.begin()",
        ):
            which.enter()
        which.leave()
        await waiting

    run(scene, because=FOREVER)


@exercise("14.8")
def test_nobody_enters_afterwards():
    _, _, which = drained(10.0, [], stay=1)
    with expect_raises(drain.Draining, because="the time is over, and newcomers are let in again: the end is the end"):
        which.enter()


@exercise("14.8")
def test_a_second_signal_hurries():
    got, at, _ = drained(30.0, [20.0], hurry_at=3.0)
    expect(at < 3.3, because=f"hurried after 3 s, it went on waiting until {at:.0f}: whoever is hurried waits no more")
    expect(got is False, because="it was hurried while one was still in: False")
    got, at, _ = drained(30.0, [20.0], hurry_at=-1.0)
    expect(at < 0.5, because="hurried from the first moment on, it doesn't wait at all")


@exercise("14.8")
def test_hurried_before_it_began():
    async def scene():
        which = drain.Drain()
        which._changed = Patient()
        which.enter()
        which.hurry()
        got = await which.wait(30.0)
        expect(
            now() < 0.5, because="it was hurried before the wait began, and that still counts: look at self._hurried"
        )
        expect(got is False, because="one is still in: False")

    run(scene, because=FOREVER)


@exercise("14.8")
def test_no_grace():
    got, at, _ = drained(0.0, [5.0])
    expect(at < 0.5, because="a grace period of 0 s waits for nobody")
    expect(got is False, because="one is still in: False")


@exercise("14.8")
def test_cancelled():
    async def scene():
        which = drain.Drain()
        which._changed = Patient()
        which.enter()
        waiting = asyncio.create_task(which.wait(10.0))
        await until(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        expect(
            waiting.cancelled(),
            because="cancelled, it went on as if its time were over: only TimeoutError is the grace's end",
        )

    run(scene, because=FOREVER)
