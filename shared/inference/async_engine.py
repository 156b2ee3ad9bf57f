"""Many callers, one model: requests come in over a queue, a thread of its own runs the steps, answers go back.

The event loops that the callers live on never compute: they get the text over queues, and stay free to answer others.
The model is touched by the engine's thread alone, and never by two requests at a time: they share each step.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from shared.data.fallback_tokenizer import LibraryTokenizer
from shared.data.tokenizer import Tokenizer
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.model.transformer import Transformer

logger = logging.getLogger(__name__)

WARM_UP_ID = "warm-up"  # a request with this id says nothing about how long others take
STOP_TIMEOUT_S = 10.0  # a step takes less on any model this engine is for

Deliveries = Sequence[tuple["_Request", RequestOutput | Exception]]


@dataclass(eq=False)
class _Request:
    """One caller's request. `open`: which of its n answers haven't ended; the engine's lock guards it."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int
    loop: asyncio.AbstractEventLoop
    open: set[int]
    outputs: asyncio.Queue[RequestOutput | Exception] = field(default_factory=asyncio.Queue)
    started: float | None = None  # when the first step that had some of it began


class Outputs(AsyncIterator[RequestOutput]):
    """One request's outputs: an async generator that knows when it is closed or dropped before it was begun, too."""

    def __init__(
        self, outputs: AsyncGenerator[RequestOutput, None], request: _Request, leave: Callable[[_Request], None]
    ) -> None:
        self._outputs, self._request, self._leave = outputs, request, leave

    async def __anext__(self) -> RequestOutput:
        return await anext(self._outputs)

    async def aclose(self) -> None:
        await self._outputs.aclose()
        self._leave(self._request)

    def __del__(self) -> None:
        if self._request.open:  # not here: where garbage is collected, the engine's books may be in disorder
            with suppress(RuntimeError):  # the loop is closed
                self._request.loop.call_soon_threadsafe(self._leave, self._request)


class AsyncLLMEngine:
    """Serves many callers at a time: `max_num_seqs` answers run, and at most `max_waiting` more wait.

    settings: LLMEngine's, such as max_model_len, max_num_seqs, num_blocks or kv_bytes, attention.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer | LibraryTokenizer, max_waiting: int = 16, **settings: Any
    ) -> None:
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, not {max_waiting}")
        self.engine = LLMEngine(model, tokenizer, max_waiting=max_waiting, **settings)
        self.max_waiting = max_waiting
        self.places = max_waiting + self.engine.scheduler.max_num_seqs  # for answers, running or waiting
        self._changed = threading.Condition()  # guards everything below but _serving; may be taken twice
        self._requests: dict[str, _Request] = {}  # the unfinished ones
        self._arrived: list[_Request] = []  # of those, the ones that the thread hasn't seen yet
        self._left: list[_Request] = []  # ended by their callers: the thread has to free what they hold
        self._serving: dict[str, _Request] = {}  # the thread's own: what `engine` knows of
        self._service_times: deque[float] = deque(maxlen=8)  # seconds, of the latest requests
        self._thread: threading.Thread | None = None
        self._stopped = "the engine is not running"  # why it takes no requests; empty while it does

    @property
    def running(self) -> bool:
        return not self._stopped

    def start(self) -> None:
        """Start serving. Raises RuntimeError when started already, or when a step from before still runs."""
        with self._changed:
            if self._thread is not None and self._thread.is_alive():
                why = "has been started already" if self.running else "still computes its last step; await stop()"
                raise RuntimeError(f"the engine {why}")
            thread = threading.Thread(target=self._run, name="engine", daemon=True)
            thread.start()
            self._thread, self._stopped = thread, ""  # the thread looks at it when this lock is free

    async def stop(self) -> None:
        """End every request with EngineStopped and wait for the thread, which takes one step of the model at most.

        A step that takes longer than STOP_TIMEOUT_S is left behind; until it ends the engine can't be started again.
        """
        with self._changed:
            self._close(EngineStopped("the engine was stopped"))
            thread = self._thread
        if thread is not None:
            end = time.monotonic() + STOP_TIMEOUT_S
            while thread.is_alive() and time.monotonic() < end:  # in a pool's thread, join could wait for other work
                await asyncio.sleep(0.01)
            if thread.is_alive():
                logger.warning("the engine is still computing after %.0f s; leaving it behind", STOP_TIMEOUT_S)

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str, priority: int = 0
    ) -> "Outputs":
        """Queue a request, at once, and return its outputs. Leaving the iteration early aborts the request, and so does
        dropping the outputs unread.

        With params.n > 1 outputs of all answers come as they are made; `index` says whose they are. priority: lower is
        sooner. Raises, before anything is queued: ValueError for a prompt that can't be served, a priority that is none
        or an id in use; QueueFull, EngineStopped. The iteration raises GenerationError when the request fails,
        EngineStopped when the engine stops.
        """
        params = self.engine.check(prompt_ids, params, priority)
        loop, answers = asyncio.get_running_loop(), set(range(params.n))
        request = _Request(request_id, list(prompt_ids), params, priority, loop, answers)
        with self._changed:
            if request_id in self._requests:
                raise ValueError(f"request id {request_id!r} is in use")
            self.check_place(params.n)
            self._requests[request_id] = request
            self._arrived.append(request)
            self._changed.notify()
        return Outputs(self._outputs(request), request, self._leave)

    def check_place(self, n: int = 1) -> None:
        """Raises what generate would raise now, whatever the prompt: QueueFull or EngineStopped."""
        with self._changed:
            if self._stopped:
                raise EngineStopped(self._stopped)
            if sum(len(request.open) for request in self._requests.values()) + n > self.places:
                raise QueueFull(self.retry_after())

    def retry_after(self) -> float:
        """About how many seconds it takes to serve everyone who is here now.

        A place is free sooner, but callers who were refused before want it too.
        """
        with self._changed:
            now, requests = time.monotonic(), self._requests.values()
            elapsed = [now - request.started for request in requests if request.started is not None]
            usual = fmean(self._service_times or elapsed or [0.0])
            # What has taken longer than usual may take as long again: nothing is known of it but that it is long.
            remaining = [usual - seconds if seconds < usual else seconds for seconds in elapsed]
            turns = (len(requests) - len(elapsed)) / self.engine.scheduler.max_num_seqs
            return max(fmean(remaining or [0.0]) + usual * turns, 1.0)

    def abort(self, request_id: str) -> None:
        """End a request at once; what it holds is free after the current step. Unknown ids are ignored."""
        with self._changed:
            if (request := self._requests.get(request_id)) is not None:
                self._end(request, [RequestOutput("", [], "abort", index) for index in sorted(request.open)])

    async def _outputs(self, request: _Request) -> AsyncGenerator[RequestOutput, None]:
        unfinished = request.params.n
        try:
            while unfinished:
                output = await request.outputs.get()
                if isinstance(output, Exception):
                    raise output
                unfinished -= output.finish_reason is not None
                yield output
        finally:
            self._leave(request)

    def _leave(self, request: _Request) -> None:
        """Nobody reads on."""
        with self._changed:
            if request.open:
                self._end(request, [])

    def _end(self, request: _Request, last: Sequence[RequestOutput | Exception]) -> None:
        """End a request from outside the thread, and free its place. The caller holds the lock."""
        request.open.clear()
        del self._requests[request.id]
        self._left.append(request)
        self._changed.notify()
        _send(request.loop, [(request, output) for output in last])

    def _close(self, why: Exception) -> None:
        """Take no more requests and end those there are. The caller holds the lock."""
        self._stopped = self._stopped or str(why)
        for request in list(self._requests.values()):
            self._end(request, [why])
        self._changed.notify()

    # What follows runs in the thread.

    def _run(self) -> None:
        """Step while there is work, sleep while there is none, for ever."""
        why: Exception = EngineStopped("the engine was stopped")
        try:
            while self._take_in():
                began = time.monotonic()
                self._hand_over(self.engine.step(), began)
        except BaseException as error:  # not a request's failure: those are outputs
            logger.exception("the engine has failed")
            why = GenerationError(f"the engine has failed: {type(error).__name__}: {error}")
        finally:  # nobody may wait for a thread that is gone
            with self._changed:
                self._close(why)
            for request_id in self._serving:
                self.engine.abort(request_id)
            self._serving.clear()

    def _take_in(self) -> bool:
        """Between steps: wait for work, and apply what callers have asked for. False when the engine is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._serving or self._arrived or self._left or self._stopped)
            if self._stopped:
                return False
            left, arrived = self._left, [request for request in self._arrived if request.open]
            self._left, self._arrived = [], []
        for request in left:  # first, for a later one may have the same id
            self._serving.pop(request.id, None)
            self.engine.abort(request.id)
        for request in arrived:
            self._serving[request.id] = request
            try:
                self.engine.add_request(request.id, request.prompt_ids, request.params, request.priority)
            except Exception as error:  # it was checked before, so this is a bug; the others needn't pay for it
                logger.exception("request %s failed", request.id)
                failure = GenerationError(f"{type(error).__name__}: {error}")
                with self._changed:
                    if request.open:
                        self._end(request, [failure])
        return True

    def _hand_over(self, outputs: Sequence[tuple[str, RequestOutput | GenerationError]], began: float) -> None:
        """Give a step's outputs to their callers: one wake-up for each event loop, however many of them live on it."""
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[_Request, RequestOutput | Exception]]] = {}
        with self._changed:
            for sequence in self.engine.scheduler.running:
                request = self._serving[sequence.request_id]
                request.started = began if request.started is None else request.started
            for request_id, output in outputs:
                request = self._serving[request_id]
                if not request.open:
                    continue  # ended by its caller while the step ran
                deliveries.setdefault(request.loop, []).append((request, output))
                self._note(request, output, began)
        for loop, items in deliveries.items():
            if not _send(loop, items):
                with self._changed:
                    for request in {request for request, _ in items if request.open}:
                        self._end(request, [])

    def _note(self, request: _Request, output: RequestOutput | GenerationError, began: float) -> None:
        """Free a finished request's place before it is told, so that whoever sees the last output finds it free."""
        if isinstance(output, GenerationError):
            request.open.clear()
        elif output.finish_reason is not None:
            request.open.discard(output.index)
        if not request.open:
            del self._requests[request.id], self._serving[request.id]
            if isinstance(output, RequestOutput) and request.id != WARM_UP_ID:
                self._service_times.append(time.monotonic() - (began if request.started is None else request.started))


def _send(loop: asyncio.AbstractEventLoop, items: Deliveries) -> bool:
    """Put outputs into their callers' queues, from any thread. False when the callers' event loop is closed."""

    def deliver() -> None:
        for request, output in items:
            request.outputs.put_nowait(output)

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        return False  # nobody is left to read them
    return True
