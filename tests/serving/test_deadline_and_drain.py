"""A request's time, and the server's: what is over is ended, and at the end nobody new comes in."""

import asyncio

import pytest

from shared.inference.virtual_time import run_virtual
from shared.serving.guard.deadline import Deadline, DeadlinePassed, within
from shared.serving.guard.drain import Drain, Draining
from tests.serving.simulated import now


def test_within_what_is_left():
    async def scene():
        deadline = Deadline.after(5.0, now())
        assert await within(deadline, asyncio.sleep(2.0, "done"), now) == "done"
        with pytest.raises(DeadlinePassed):
            await within(deadline, asyncio.sleep(4.0), now)
        assert now() == pytest.approx(5.0)
        assert deadline.expired(now())

        async def own_timeout():
            raise TimeoutError("the disk's")

        with pytest.raises(TimeoutError, match="the disk's"):
            await within(Deadline.after(5.0, now()), own_timeout(), now)

    run_virtual(scene())


def test_whoever_is_in_counts_and_newcomers_are_refused():
    async def scene():
        drain = Drain()
        drain.enter()
        drain.enter()
        drain.leave()
        assert (drain.num_open, drain.draining) == (1, False)
        drain.begin()
        with pytest.raises(Draining, match="shutting down"):
            drain.enter()
        assert drain.num_open == 1
        drain.leave()
        with pytest.raises(RuntimeError, match="more often than enter"):
            drain.leave()
        assert drain.num_open == 0

    run_virtual(scene())
