"""The clock of the simulations jumps to the next event, and says when none can come."""

import asyncio

import pytest

from shared.inference.virtual_time import Deadlock, Spinning, run_virtual
from tests.inference.batcher_scenes import now


def test_the_virtual_clock_jumps():
    """Sleeping for an hour takes no time, and an hour has passed; alarms ring in order."""
    heard = []

    async def sleeper(seconds):
        await asyncio.sleep(seconds)
        heard.append((seconds, now()))

    async def scene():
        await asyncio.gather(sleeper(3600), sleeper(1), sleeper(60))

    run_virtual(scene())
    assert heard == [(1, 1.0), (60, 60.0), (3600, 3600.0)]


def test_the_virtual_clock_knows_when_nothing_can_happen():
    with pytest.raises(Deadlock):
        run_virtual(asyncio.Event().wait())

    async def spin():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Spinning):
        run_virtual(spin())

    cleaned = []

    async def spin_and_clean():
        try:
            await spin()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(Spinning):
        run_virtual(spin_and_clean())
    assert cleaned == [True]

    async def inside():
        return run_virtual(asyncio.sleep(5, "done"))

    assert asyncio.run(inside()) == "done"  # a loop runs here already, as it does in a notebook
