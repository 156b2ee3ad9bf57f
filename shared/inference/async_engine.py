"""Many callers, one model: requests come in over a queue, a thread of its own runs the steps, answers go back.

The event loops that the callers live on never compute: they get the text over queues, and stay free to answer others.
The model is touched by the engine's thread alone, and never by two requests at a time: they share each step.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shared.inference.answer_text import EngineTokenizer
from shared.inference.async_outputs import Outputs
from shared.inference.async_requests import AsyncRequest, AsyncRequests
from shared.inference.engine_settings import check_resumed
from shared.inference.engine_thread import EngineThread
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import RequestNotes
from shared.model.transformer import Transformer
from shared.observability.trace import RequestTrace, StepStats

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0  # a step takes less on any model this engine is for


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
        at_a_time, self.max_waiting = engine.scheduler.max_num_seqs, engine.scheduler.max_waiting
        self.engine, self.places = engine, self.max_waiting + at_a_time  # for answers, running or waiting
        self._requests = AsyncRequests(self.places, at_a_time, engine.clock)
        self._thread: EngineThread | None = None
        self.on_step: Callable[[StepStats], None] = lambda stats: None  # called by the engine's thread

    @property
    def stopped(self) -> str:
        """Why the engine takes no requests; empty while it does."""
        return self._requests.stopped

    @property
    def running(self) -> bool:
        """Whether requests are taken. The thread of one that was stopped may still be in its last step."""
        return not self.stopped

    def start(self) -> None:
        """Start serving. Raises RuntimeError when started already, or when a step from before still runs."""
        with self._requests.changed:
            if self._thread is not None and self._thread.is_alive():
                why = "has been started already" if self.running else "still computes its last step; await stop()"
                raise RuntimeError(f"the engine {why}")
            thread = EngineThread(self.engine, self._requests, lambda stats: self.on_step(stats))
            thread.start()
            self._thread, self._requests.stopped = thread, ""  # the thread looks at it when this lock is free

    async def stop(self) -> None:
        """End every request with EngineStopped and wait for the thread, which takes one step of the model at most.

        A step that takes longer than STOP_TIMEOUT_S is left behind; until it ends the engine can't be started again.
        """
        with self._requests.changed:
            self._requests.close(EngineStopped("the engine was stopped"))
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
        request = AsyncRequest(request_id, list(prompt_ids), params, priority, loop, answers, notes, on_end, resumed)
        self._requests.add(request)
        return Outputs(request.outputs, params.n, partial(self._requests.end, request), loop)

    def check_place(self, n: int = 1) -> None:
        """Raises what generate would raise now, whatever the prompt: QueueFull or EngineStopped."""
        self._requests.check_place(n)

    def retry_after(self) -> float:
        """About how many seconds it takes to serve everyone who is here now: see AsyncRequests."""
        return self._requests.retry_after()

    def abort(self, request_id: str) -> None:
        """End a request at once; what it holds is free after the current step. Unknown ids are ignored."""
        self._requests.abort(request_id)
