"""Work beside the event loop, work for callers who may leave, and reading what others make as it comes."""

import asyncio
import threading
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")
MOST_AT_ONCE = 256  # items in one batch, so that nobody who makes them faster than they are sent is heard too late


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


async def in_batches(items: AsyncIterator[T]) -> AsyncGenerator[list[T], None]:
    """The items, as many in one list as are there without waiting, in the order they come.

    The next item is asked for before the batch is handed out, by beginning to await it by hand: if it is there, that
    says so at once, and if not, the wait that has begun is gone on with later. So nothing is copied into another queue,
    and no task has to run between who makes the items and who sends them.
    """
    batch: list[T] = []
    begun: Any = None  # while it waits
    try:
        while True:
            step = anext(items).__await__()
            try:
                waits_for = step.send(None)
            except StopIteration as there:
                batch.append(there.value)
                if len(batch) == MOST_AT_ONCE:
                    yield batch
                    batch = []
                continue
            begun = step
            if batch:
                yield batch
            batch, begun = [], None
            batch.append(await _go_on(step, waits_for))
    except Exception as error:  # what was made before it is for the reader all the same
        if batch:
            yield batch
        if not isinstance(error, StopAsyncIteration):
            raise
    finally:
        if begun is not None:
            await _cancel(begun)


@types.coroutine
def _go_on(begun: Generator[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Await to the end what has been begun, and was found waiting for `waits_for`."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # such as a cancellation: it is for who waits inside
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(value)
    except StopIteration as there:
        return there.value


async def _cancel(begun: Generator[Any, Any, Any]) -> None:
    """Nobody will go on with what has been begun."""
    with suppress(asyncio.CancelledError):
        try:
            waits_for = begun.throw(asyncio.CancelledError())
        except StopIteration:
            return
        await _go_on(begun, waits_for)
