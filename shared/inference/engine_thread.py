"""The thread that the model computes in: it takes in what callers ask for, runs the steps, and hands outputs over.

Only it touches the engine while it runs. It meets the callers in `AsyncRequests`, between steps.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

from shared import in_words
from shared.inference.async_requests import AsyncRequest, AsyncRequests, send
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped, GenerationError, RequestOutput
from shared.inference.step_meter import MeteredStep, StepMeter
from shared.observability.cost import share_step
from shared.observability.trace import StepStats

logger = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """Steps while there is work and sleeps while there is none, until the requests are closed.

    on_step: called after each step. serving: the requests that the engine knows of, by id; the thread's own.
    """

    def __init__(self, engine: LLMEngine, requests: AsyncRequests, on_step: Callable[[StepStats], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine, self.requests, self.on_step = engine, requests, on_step
        self.serving: dict[str, AsyncRequest] = {}

    def run(self) -> None:
        """What the thread does; `start` calls it. However it ends, nobody is left waiting."""
        why: Exception = EngineStopped("the engine was stopped")
        meter = StepMeter(self.engine, self.engine.clock)
        try:
            while self._take_in():
                metered = meter.step()
                self._hand_over(metered)
                self.on_step(metered.stats)
        except BaseException as error:  # not a request's failure: those are outputs
            logger.exception("the engine has failed")
            why = GenerationError(f"the engine has failed: {in_words(error)}")
        finally:  # nobody may wait for a thread that is gone
            self.requests.close(why)
            for request_id in self.serving:
                self.engine.abort(request_id)
            self.serving.clear()

    def _take_in(self) -> bool:
        """Between steps: wait for work, and apply what callers have asked for. False when the engine is to stop."""
        news = self.requests.news(busy=bool(self.serving))
        if news is None:
            return False
        left, arrived = news
        for request in left:  # first, for a later one may have the same id
            self.serving.pop(request.id, None)
            self.engine.abort(request.id)
        for request in arrived:
            self.serving[request.id] = request
            try:
                asked = request.prompt_ids, request.params, request.priority
                self.engine.add_request(request.id, *asked, *request.resumed)
            except Exception as error:  # it was checked before, so this is a bug; the others needn't pay for it
                logger.exception("request %s failed", request.id)
                self.requests.end(request, [GenerationError(in_words(error))])
        return True

    def _hand_over(self, metered: MeteredStep) -> None:
        """Give a step's outputs to their callers: one wake-up for each event loop, however many of them live on it."""
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[AsyncRequest, RequestOutput | Exception | None]]] = {}
        stats, began = metered.stats, metered.stats.at - metered.stats.seconds
        with self.requests.changed:  # nobody ends a request between its output and the note of it
            for request_id, cached_tokens in metered.admitted.items():
                request = self.serving[request_id]
                request.started = began if request.started is None else request.started
                if request.notes is not None:
                    request.notes.started(began, cached_tokens)
            for request_id, seconds in share_step(stats.seconds, metered.tokens).items():
                if (notes := self.serving[request_id].notes) is not None:
                    notes.spent(seconds)
            for request_id, output in metered.outputs:
                request = self.serving[request_id]
                if not request.open:
                    continue  # ended by its caller while the step ran
                deliveries.setdefault(request.loop, []).append((request, output))
                self.requests.note(request, output, began)
                if not request.open:
                    del self.serving[request_id]
        for loop, items in deliveries.items():
            if not send(loop, items, stats.num_running):
                for request, _ in items:
                    self.requests.end(request)
