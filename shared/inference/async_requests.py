"""The requests that callers and the engine's thread share: who is here, who has left, and how long it will take.

Callers live on event loops, any number of them; the thread is `engine_thread`'s. Whatever both touch is guarded by one
lock, and outputs go to a caller's event loop in one wake-up for each loop.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from shared.inference.async_outputs import OutputQueue
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import RequestNotes


@dataclass(eq=False)
class AsyncRequest:
    """One caller's request. `open`: which of its n answers haven't ended; the lock guards it."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int
    loop: asyncio.AbstractEventLoop
    open: set[int]
    notes: RequestNotes | None = None
    on_end: Callable[[], None] | None = None
    resumed: tuple[list[int], int] = ([], 0)  # output_ids and index, as add_request takes them
    outputs: OutputQueue = field(default_factory=asyncio.Queue)
    started: float | None = None  # when the first step that had some of it began


Deliveries = Sequence[tuple[AsyncRequest, RequestOutput | Exception | None]]  # None: nothing but the end


class AsyncRequests:
    """The unfinished requests, and those that the thread has yet to hear of.

    places: for so many answers there is room, running or waiting. at_a_time: so many of them run. clock: in seconds.
    `changed` is the lock, and wakes the thread. It may be taken twice; every method takes it.
    """

    def __init__(self, places: int, at_a_time: int, clock: Callable[[], float]) -> None:
        self.places, self.changed = places, threading.Condition()
        self.stopped = "the engine is not running"  # why it takes no requests; empty while it does
        self.service_times: deque[float] = deque(maxlen=8)  # seconds, of the latest requests
        self._at_a_time, self._clock = at_a_time, clock
        self._unfinished: dict[str, AsyncRequest] = {}
        self._arrived: list[AsyncRequest] = []  # of those, the ones that the thread hasn't seen yet
        self._left: list[AsyncRequest] = []  # ended by their callers: the thread has to free what they hold

    def __len__(self) -> int:
        return len(self._unfinished)

    def __iter__(self) -> Iterator[AsyncRequest]:
        return iter(self._unfinished.values())

    def add(self, request: AsyncRequest) -> None:
        """Let a request wait for the thread. Raises ValueError for an id in use, and what check_place raises."""
        with self.changed:
            if request.id in self._unfinished:
                raise ValueError(f"request id {request.id!r} is in use")
            self.check_place(request.params.n)
            self._unfinished[request.id] = request
            self._arrived.append(request)
            self.changed.notify()

    def check_place(self, n: int) -> None:
        """Raises QueueFull when there is no place for n more answers, and EngineStopped when there is no engine."""
        with self.changed:
            if self.stopped:
                raise EngineStopped(self.stopped)
            if sum(len(request.open) for request in self) + n > self.places:
                raise QueueFull(self.retry_after())

    def retry_after(self) -> float:
        """About how many seconds it takes to serve everyone who is here now, at least 1.

        A place is free sooner, but callers who were refused before want it too.
        """
        with self.changed:
            now = self._clock()
            elapsed = [now - request.started for request in self if request.started is not None]
            usual = fmean(self.service_times or elapsed or [0.0])
            # What has taken longer than usual may take as long again: nothing is known of it but that it is long.
            remaining = [usual - seconds if seconds < usual else seconds for seconds in elapsed]
            turns = (len(self) - len(elapsed)) / self._at_a_time
            return max(fmean(remaining or [0.0]) + usual * turns, 1.0)

    def abort(self, request_id: str) -> None:
        """End a request, and tell its caller so. Unknown ids are ignored."""
        with self.changed:
            if (request := self._unfinished.get(request_id)) is not None:
                self.end(request, [RequestOutput("", [], "abort", index) for index in sorted(request.open)])

    def end(self, request: AsyncRequest, last: Sequence[RequestOutput | Exception] = ()) -> None:
        """End a request from outside the engine, and free its place. last: what its caller still hears.

        Nothing happens to one that has ended already.
        """
        with self.changed:
            if request.open:
                request.open.clear()
                del self._unfinished[request.id]
                self._left.append(request)
                self.changed.notify()
                send(request.loop, [(request, output) for output in (*last, None)])

    def close(self, why: Exception) -> None:
        """Take no more requests, and end those there are with this."""
        with self.changed:
            self.stopped = self.stopped or str(why)
            for request in list(self):
                self.end(request, [why])
            self.changed.notify()

    def news(self, busy: bool) -> tuple[list[AsyncRequest], list[AsyncRequest]] | None:
        """For the thread, between steps: who has left since, and who came and is still here. None: the engine stops.

        Waits until there are any, unless it is busy.
        """
        with self.changed:
            self.changed.wait_for(lambda: busy or self._arrived or self._left or self.stopped)
            if self.stopped:
                return None
            left, arrived = self._left, [request for request in self._arrived if request.open]
            self._left, self._arrived = [], []
            return left, arrived

    def note(self, request: AsyncRequest, output: RequestOutput | GenerationError, began: float) -> None:
        """Enter one of the engine's outputs; `began`: its step. The last one frees the request's place.

        To be called before the output is sent, so that whoever sees the last one finds the place free.
        """
        with self.changed:
            if isinstance(output, GenerationError):
                request.open.clear()
            elif output.finish_reason is not None:
                request.open.discard(output.index)
            if not request.open:
                del self._unfinished[request.id]
                if isinstance(output, RequestOutput):
                    started = began if request.started is None else request.started
                    self.service_times.append(self._clock() - started)


def send(loop: asyncio.AbstractEventLoop, items: Deliveries, num_running: int = 0) -> bool:
    """Put outputs into their callers' queues, from any thread. False when the callers' event loop is closed.

    num_running: how many answers were in the step that made them, for the requests' notes.
    """

    def deliver() -> None:
        for request, output in items:
            if output is not None:
                request.outputs.put_nowait(output)
            if request.notes is not None and isinstance(output, RequestOutput):
                request.notes.output(output, num_running)
            if request.on_end is not None and not request.open:
                on_end, request.on_end = request.on_end, None
                on_end()

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        return False  # nobody is left to read them
    return True
