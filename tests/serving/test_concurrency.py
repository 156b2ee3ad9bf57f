"""Reading what is made elsewhere in batches: all that is there, at once, and nothing lost when it ends badly."""

import asyncio
from contextlib import aclosing

import pytest

from shared.serving.concurrency import MOST_AT_ONCE, in_batches


class Source:
    """Items that a test puts there; an exception is raised where it stands."""

    def __init__(self, *items):
        self.queue, self.cancelled, self.closed = asyncio.Queue(), False, False
        for item in items:
            self.queue.put_nowait(item)

    async def items(self):
        try:
            while True:
                item = await self.queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.closed = True

    def batches(self):
        return in_batches(self.items())


async def read(source, got):
    async with aclosing(source.batches()) as batches:
        async for batch in batches:
            got.append(batch)


def test_what_is_there_comes_at_once_and_what_is_not_is_waited_for():
    async def main():
        source, got = Source(1, 2, 3), []
        reading = asyncio.create_task(read(source, got))
        await asyncio.sleep(0.01)
        assert got == [[1, 2, 3]]
        for items in ([4], [5, 6], [7, None]):
            for item in items:
                source.queue.put_nowait(item)
            await asyncio.sleep(0.01)
        await reading
        assert got == [[1, 2, 3], [4], [5, 6], [7]]

    asyncio.run(main())


def test_a_slow_reader_finds_all_that_came_meanwhile():
    async def main():
        source, got = Source(0), []

        async def make():
            for i in range(1, 100):
                source.queue.put_nowait(i)
                await asyncio.sleep(0)
            source.queue.put_nowait(None)

        making = asyncio.create_task(make())
        async for batch in source.batches():
            got.append(batch)
            await asyncio.sleep(0.02)
        await making
        assert sum(got, []) == list(range(100))
        assert len(got) < 5

    asyncio.run(main())


def test_a_batch_has_a_limit():
    async def main():
        return [len(batch) async for batch in Source(*range(1, 2 * MOST_AT_ONCE + 3), None).batches()]

    assert asyncio.run(main()) == [MOST_AT_ONCE, MOST_AT_ONCE, 2]


@pytest.mark.parametrize("pause", [0, 0.01])
def test_an_error_comes_after_what_was_made_before_it(pause):
    async def main():
        source, got = Source(1, 2), []

        async def fail():
            await asyncio.sleep(pause)
            source.queue.put_nowait(3)
            source.queue.put_nowait(ValueError("broken"))

        failing = asyncio.create_task(fail())
        with pytest.raises(ValueError, match="broken"):
            await read(source, got)
        await failing
        assert sum(got, []) == [1, 2, 3]

    asyncio.run(main())


def test_a_reader_who_is_cancelled_while_it_waits_cancels_what_it_waits_for():
    async def main():
        source = Source(1)

        reading = asyncio.create_task(read(source, []))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert source.cancelled
        assert source.closed

    asyncio.run(main())


def test_a_reader_who_stops_between_two_batches_leaves_nothing_behind():
    async def main():
        source = Source(1)
        async with aclosing(source.batches()) as batches:
            assert await anext(batches) == [1]  # the wait for the next has begun
        await asyncio.sleep(0)
        assert source.closed
        source.queue.put_nowait(2)
        assert source.queue.qsize() == 1  # nobody took it

    asyncio.run(main())


def test_a_timeout_around_it_works():
    async def main():
        source = Source(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await read(source, [])
        assert source.cancelled

    asyncio.run(main())
