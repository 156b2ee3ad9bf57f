"""Slow work beside the event loop: in threads that may be left behind, and in turn where there may be much of it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from shared.inference.outputs import QueueFull

T = TypeVar("T")


class OneAtATime:
    """Runs slow work in a thread, one piece at a time; at most `max_waiting` others wait, in order of arrival."""

    def __init__(self, max_waiting: int, retry_after: Callable[[], float]) -> None:
        self.max_waiting = max_waiting
        self._retry_after = retry_after
        self._turn = asyncio.Semaphore(1)
        self._requests = 0  # those whose work is being done or waits, and whose caller hasn't left

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Cancelled before its turn it is never begun. Raises QueueFull when too many wait."""
        if self._requests > self.max_waiting:
            raise QueueFull(self._retry_after())
        self._requests += 1
        try:
            await self._turn.acquire()
            task = asyncio.ensure_future(in_thread(work))
            # Work that has begun can't be stopped: a caller who leaves must not let the next piece begin beside it.
            task.add_done_callback(lambda _: self._turn.release())
            return await asyncio.shield(task)
        finally:
            self._requests -= 1


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None, with the work cancelled, when the caller leaves first. Needs the body read."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(disconnected())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await tasks[0] if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that may be left behind: unlike asyncio.to_thread, it can't hold up the process's end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[Any], None], what: T | Exception) -> None:
        def deliver() -> None:
            if not done.cancelled():
                how(what)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver)

    def run() -> None:
        try:
            tell(done.set_result, work())
        except Exception as error:
            tell(done.set_exception, error)

    threading.Thread(target=run, name="work", daemon=True).start()
    return await done
