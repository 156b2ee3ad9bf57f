"""One request's outputs on their way to a caller on an event loop, who may stop reading at any time, or never begin."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from shared.inference.outputs import RequestOutput

OutputQueue = asyncio.Queue[RequestOutput | Exception]


class Outputs(AsyncIterator[RequestOutput]):
    """What comes out of a queue, until n answers have ended; an exception in it is raised, and is the last.

    leave: called when nobody reads on, on `loop`: after the end, an exception or a cancellation, when this is closed,
    and also when it is dropped, even if it was never begun. It may be called more than once, and must not hold this.
    """

    def __init__(self, queue: OutputQueue, n: int, leave: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._queue, self._unfinished, self._leave, self._loop = queue, n, leave, loop

    async def __anext__(self) -> RequestOutput:
        if not self._unfinished:
            raise StopAsyncIteration
        try:
            output = await self._queue.get()
            if isinstance(output, Exception):
                raise output
        except BaseException:
            await self.aclose()
            raise
        self._unfinished -= output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        """Read no more, and call `leave`: the engine stops working on it. May be called at any time, and again."""
        self._unfinished = 0
        self._leave()

    def __del__(self) -> None:
        if self._unfinished:  # not here: where garbage is collected, the engine's books may be in disorder
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._leave)
