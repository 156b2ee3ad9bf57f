"""Callers who wait at a gate whose places the test takes and gives back itself."""

import asyncio

from chapters import Todo
from chapters.ch14_service import admission
from shared.serving.guard.deadline import Deadline
from tests.ch14_service.scenes import LATER, now


class Plain(admission.Admission):
    """Whoever came first is granted first: the test's own, so that only _wait is judged."""

    def __init__(self, max_running: int = 1) -> None:
        super().__init__(max_running, 1000, 1000, now)
        self.given_back: list[int] = []

    def _grant(self) -> None:
        for key, queue in list(self._queues.items()):
            while queue and self._fits(queue[0].n):
                waiter = queue.popleft()
                self.num_running += waiter.n
                if not waiter.granted.done():
                    waiter.granted.set_result(None)
            if not queue:
                del self._queues[key]

    def _free(self, n: int) -> None:
        self.given_back.append(n)
        super()._free(n)


def waits(which: Plain, name: str, n: int = 1, deadline: Deadline = LATER) -> tuple[admission.Waiter, asyncio.Task]:
    waiter = admission.Waiter(name, n)
    which._enqueue(waiter)
    return waiter, asyncio.create_task(which._wait(waiter, deadline))


def taken(which: Plain, n: int = 1) -> admission.Place:
    """The test takes places, so that others wait."""
    which.num_running += n
    return admission.Place(which, n, now())


def push_out(which: Plain, waiter: admission.Waiter) -> None:
    """As somebody of another key does who comes when the queue is full."""
    which._queues[waiter.key].remove(waiter)
    if not which._queues[waiter.key]:
        del which._queues[waiter.key]
    waiter.granted.set_exception(admission.Busy("the queue is full", 1.0))


async def outcome(task: asyncio.Task):
    await asyncio.wait([task])
    if task.cancelled():
        return "cancelled"
    if isinstance(task.exception(), Todo):
        task.result()
    return task.exception() or task.result()
