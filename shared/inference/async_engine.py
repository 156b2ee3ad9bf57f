"""Many callers, one model: requests come in over a queue, a thread of its own runs the steps, answers go back.

The event loops that the callers live on never compute: they get the text over queues, and stay free to answer others.
The model is touched by the engine's thread alone, and never by two requests at a time: they share each step.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from shared.inference.answer_text import EngineTokenizer
from shared.inference.async_outputs import OutputQueue, Outputs
from shared.inference.engine_settings import check_resumed
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped, GenerationError, QueueFull, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import MeteredStep, RequestNotes, StepMeter
from shared.model.transformer import Transformer
from shared.observability.cost import share_step
from shared.observability.trace import RequestTrace, StepStats

logger = logging.getLogger(__name__)

WARM_UP_ID = "warm-up"  # a request with this id says nothing about how long others take
STOP_TIMEOUT_S = 10.0  # a step takes less on any model this engine is for

Deliveries = Sequence[tuple["_Request", RequestOutput | Exception | None]]  # None: nothing but the end


@dataclass(eq=False)
class _Request:
    """One caller's request. `open`: which of its n answers haven't ended; the engine's lock guards it."""

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


class AsyncLLMEngine:
    """Serves many callers at a time: `max_num_seqs` answers run, and at most `max_waiting` more wait.

    settings: LLMEngine's, such as max_model_len, max_num_seqs, num_blocks or kv_bytes, attention.
    """

    def __init__(self, model: Transformer, tokenizer: EngineTokenizer, max_waiting: int = 16, **settings: Any) -> None:
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, not {max_waiting}")
        self._begin(LLMEngine(model, tokenizer, max_waiting=max_waiting, **settings))

    @classmethod
    def over(cls, engine: LLMEngine) -> "AsyncLLMEngine":
        """Serve with an engine that is there already, and nobody else's; its own max_waiting counts."""
        served = cls.__new__(cls)
        served._begin(engine)
        return served

    def _begin(self, engine: LLMEngine) -> None:
        self.engine, self.max_waiting = engine, engine.scheduler.max_waiting
        self.places = self.max_waiting + self.engine.scheduler.max_num_seqs  # for answers, running or waiting
        self._changed = threading.Condition()  # guards everything below but _serving; may be taken twice
        self._requests: dict[str, _Request] = {}  # the unfinished ones
        self._arrived: list[_Request] = []  # of those, the ones that the thread hasn't seen yet
        self._left: list[_Request] = []  # ended by their callers: the thread has to free what they hold
        self._serving: dict[str, _Request] = {}  # the thread's own: what `engine` knows of
        self._service_times: deque[float] = deque(maxlen=8)  # seconds, of the latest requests
        self._thread: threading.Thread | None = None
        self.stopped = "the engine is not running"  # why it takes no requests; empty while it does
        self.on_step: Callable[[StepStats], None] = lambda stats: None  # called by the engine's thread

    @property
    def running(self) -> bool:
        return not self.stopped

    def start(self) -> None:
        """Start serving. Raises RuntimeError when started already, or when a step from before still runs."""
        with self._changed:
            if self._thread is not None and self._thread.is_alive():
                why = "has been started already" if self.running else "still computes its last step; await stop()"
                raise RuntimeError(f"the engine {why}")
            thread = threading.Thread(target=self._run, name="engine", daemon=True)
            thread.start()
            self._thread, self.stopped = thread, ""  # the thread looks at it when this lock is free

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
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        trace: RequestTrace | None = None,
        on_end: Callable[[], None] | None = None,
        output_ids: Sequence[int] = (),
        index: int = 0,
    ) -> Outputs:
        """Queue a request, at once, and return its outputs. Leaving the iteration early aborts the request, and so does
        dropping the outputs unread.

        With params.n > 1 outputs of all answers come as they are made; `index` says whose they are. priority: lower is
        sooner. trace: RequestNotes fills it in. on_end: called once, on this event loop, when the engine is done with
        the request, however it ended, read or not. output_ids, index: see LLMEngine.add_request. Raises, before
        anything is queued: ValueError for a prompt that can't be served, a priority that is none or an id in use;
        QueueFull, EngineStopped. The iteration raises GenerationError when the request fails, EngineStopped when the
        engine stops.
        """
        params = self.engine.check(prompt_ids, params, priority)
        if output_ids:
            check_resumed(output_ids, params, self.engine.model.config.vocab_size)
        loop, answers = asyncio.get_running_loop(), set(range(index, index + params.n))
        notes = None if trace is None else RequestNotes(trace, len(prompt_ids), self.engine.pool.block_size)
        resumed = list(output_ids), index
        request = _Request(request_id, list(prompt_ids), params, priority, loop, answers, notes, on_end, resumed)
        with self._changed:
            if request_id in self._requests:
                raise ValueError(f"request id {request_id!r} is in use")
            self.check_place(params.n)
            self._requests[request_id] = request
            self._arrived.append(request)
            self._changed.notify()
        return Outputs(request.outputs, params.n, partial(self._leave, request), loop)

    def check_place(self, n: int = 1) -> None:
        """Raises what generate would raise now, whatever the prompt: QueueFull or EngineStopped."""
        with self._changed:
            if self.stopped:
                raise EngineStopped(self.stopped)
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
        _send(request.loop, [(request, output) for output in (*last, None)])

    def _close(self, why: Exception) -> None:
        """Take no more requests and end those there are. The caller holds the lock."""
        self.stopped = self.stopped or str(why)
        for request in list(self._requests.values()):
            self._end(request, [why])
        self._changed.notify()

    # What follows runs in the thread.

    def _run(self) -> None:
        """Step while there is work, sleep while there is none, for ever."""
        why: Exception = EngineStopped("the engine was stopped")
        meter = StepMeter(self.engine, time.monotonic)
        try:
            while self._take_in():
                metered = meter.step()
                self._hand_over(metered)
                self.on_step(metered.stats)
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
            self._changed.wait_for(lambda: self._serving or self._arrived or self._left or self.stopped)
            if self.stopped:
                return False
            left, arrived = self._left, [request for request in self._arrived if request.open]
            self._left, self._arrived = [], []
        for request in left:  # first, for a later one may have the same id
            self._serving.pop(request.id, None)
            self.engine.abort(request.id)
        for request in arrived:
            self._serving[request.id] = request
            try:
                asked = request.prompt_ids, request.params, request.priority
                self.engine.add_request(request.id, *asked, *request.resumed)
            except Exception as error:  # it was checked before, so this is a bug; the others needn't pay for it
                logger.exception("request %s failed", request.id)
                failure = GenerationError(f"{type(error).__name__}: {error}")
                with self._changed:
                    if request.open:
                        self._end(request, [failure])
        return True

    def _hand_over(self, metered: MeteredStep) -> None:
        """Give a step's outputs to their callers: one wake-up for each event loop, however many of them live on it."""
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[_Request, RequestOutput | Exception | None]]] = {}
        stats, outputs = metered.stats, metered.outputs
        began = stats.at - stats.seconds
        with self._changed:
            for request_id, cached_tokens in metered.admitted.items():
                request = self._serving[request_id]
                request.started = began if request.started is None else request.started
                if request.notes is not None:
                    request.notes.started(began, cached_tokens)
            for request_id, seconds in share_step(stats.seconds, metered.tokens).items():
                if (notes := self._serving[request_id].notes) is not None:
                    notes.spent(seconds)
            for request_id, output in outputs:
                request = self._serving[request_id]
                if not request.open:
                    continue  # ended by its caller while the step ran
                deliveries.setdefault(request.loop, []).append((request, output))
                self._note(request, output, began)
        for loop, items in deliveries.items():
            if not _send(loop, items, stats.num_running):
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


def _send(loop: asyncio.AbstractEventLoop, items: Deliveries, num_running: int = 0) -> bool:
    """Put outputs into their callers' queues, from any thread. False when the callers' event loop is closed."""

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
