"""One model, many callers: requests wait in a bounded queue, and a thread of the engine's own serves them in turn.

The event loop that the callers live on never computes: it gets the text over a queue, and stays free to answer others.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from shared.data.fallback_tokenizer import LibraryTokenizer
from shared.data.tokenizer import Tokenizer
from shared.inference.detokenizer import Detokenizer
from shared.inference.generate import check_prompt, generate
from shared.inference.sampling import SamplingParams
from shared.model.transformer import Transformer

logger = logging.getLogger(__name__)

FinishReason = Literal["stop", "length", "abort"]
WARM_UP_ID = "warm-up"  # a request with this id says nothing about how long others take
STOP_TIMEOUT_S = 10.0  # a step takes less on any model this engine is for


class QueueFull(RuntimeError):
    """As many requests as allowed are waiting; those should have been served in about `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"too many requests are waiting; try again in about {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class EngineStopped(RuntimeError):
    """The engine isn't running, or was stopped before it could finish this request."""


class GenerationError(RuntimeError):
    """This request failed inside the model or its tools; the engine goes on with the others."""


@dataclass(frozen=True)
class RequestOutput:
    """What is new since the request's last output. Text may lag behind the tokens: see Detokenizer.

    finish_reason is None except in the last output: "stop" (an end-of-sequence token or a stop text), "length"
    (max_tokens, or the end of the context) or "abort". Special tokens are in token_ids and have no text.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None


@dataclass(eq=False)
class _Request:
    id: str
    prompt_ids: list[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[RequestOutput | Exception] = field(default_factory=asyncio.Queue)
    cancelled: bool = False

    def put(self, output: RequestOutput | Exception) -> None:
        """Hand an output over to the caller's event loop, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, output)
        except RuntimeError:  # the caller's loop is closed: nobody is left to read it
            self.cancelled = True


class AsyncLLMEngine:
    """Serves one request at a time; at most `max_waiting` others wait, in order of arrival.

    max_model_len: the most tokens of prompt and answer together; the model's whole context when not given.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | LibraryTokenizer,
        max_waiting: int = 16,
        max_model_len: int | None = None,
    ) -> None:
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, not {max_waiting}")
        context = model.config.max_position_embeddings
        if max_model_len is not None and not 2 <= max_model_len <= context:
            raise ValueError(f"max_model_len must be from 2 to the model's context of {context}, not {max_model_len}")
        self.model = model
        self.tokenizer = tokenizer
        self.max_waiting = max_waiting
        self.max_model_len = max_model_len or context
        self._silent = tokenizer.eos_ids | set(tokenizer.special_tokens.values())  # tokens that are no part of the text
        self._changed = threading.Condition()  # guards everything below; may be taken twice
        self._requests: dict[str, _Request] = {}  # unfinished ones: the one being served, and those that wait
        self._waiting: deque[_Request] = deque()
        self._service_times: deque[float] = deque(maxlen=8)  # seconds, of the latest requests
        self._serving_since = 0.0
        self._thread: threading.Thread | None = None
        self._running = False

    def start(self) -> None:
        """Start serving. Raises RuntimeError when started already."""
        with self._changed:
            if self._thread is not None:
                raise RuntimeError("the engine has been started already")
            self._running = True
            self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """End every request with EngineStopped and wait for the thread, which takes one step of the model at most."""
        with self._changed:
            self._close()
            thread, self._thread = self._thread, None
        if thread is not None:
            end = time.monotonic() + STOP_TIMEOUT_S
            while thread.is_alive() and time.monotonic() < end:  # in a pool's thread, join could wait for other work
                await asyncio.sleep(0.01)
            if thread.is_alive():
                logger.warning("the engine is still computing after %.0f s; leaving it behind", STOP_TIMEOUT_S)

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        """Queue a request, at once, and return its outputs. Leaving the iteration early aborts the request.

        Raises, before anything is queued: ValueError for a prompt that can't be served or an id in use, QueueFull,
        EngineStopped. The iteration raises GenerationError when the request fails, EngineStopped when the engine stops.
        """
        check_prompt(prompt_ids, self.model.config.vocab_size, self.max_model_len)
        limit = min(params.max_tokens, self.max_model_len - len(prompt_ids))
        request = _Request(request_id, list(prompt_ids), replace(params, max_tokens=limit), asyncio.get_running_loop())
        with self._changed:
            if request_id in self._requests:
                raise ValueError(f"request id {request_id!r} is in use")
            self.check_place()
            self._requests[request_id] = request
            self._waiting.append(request)
            self._changed.notify()
        return self._outputs(request)

    def check_place(self) -> None:
        """Raises what generate would raise now, whatever the prompt: QueueFull or EngineStopped."""
        with self._changed:
            if not self._running:
                raise EngineStopped("the engine is not running")
            if len(self._requests) > self.max_waiting:  # one of them is being served
                raise QueueFull(self.retry_after())

    def retry_after(self) -> float:
        """About how many seconds it takes to serve everyone who is here now.

        A place is free sooner, but callers who were refused before want it too.
        """
        with self._changed:
            serving = len(self._requests) > len(self._waiting)
            elapsed = time.monotonic() - self._serving_since if serving else 0.0
            usual = fmean(self._service_times) if self._service_times else elapsed
            # What has taken longer than usual may take as long again: nothing is known of it but that it is long.
            remaining = usual - elapsed if elapsed < usual else elapsed
            return max(remaining + usual * len(self._waiting), 1.0)

    def abort(self, request_id: str) -> None:
        """End a request: at once if it waits, after the current step if it is being served. Unknown ids are ignored."""
        with self._changed:
            request = self._requests.get(request_id)
            if request is None:
                return
            request.cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)
                del self._requests[request_id]
                request.put(RequestOutput("", [], "abort"))

    async def _outputs(self, request: _Request) -> AsyncIterator[RequestOutput]:
        try:
            while True:
                output = await request.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            if self._requests.get(request.id) is request:  # finished ones are gone, and the id may be in use again
                self.abort(request.id)

    def _run(self) -> None:
        """The thread: serve whoever has waited longest, for ever."""
        try:
            while (request := self._next()) is not None:
                try:
                    last: RequestOutput | Exception = self._serve(request)
                except Exception as error:
                    logger.exception("request %s failed", request.id)
                    last = GenerationError(": ".join(filter(None, (type(error).__name__, str(error)))))
                self._finish(request, last)
        finally:  # nobody may wait for a thread that is gone
            with self._changed:
                self._close()

    def _next(self) -> _Request | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._running)
            self._serving_since = time.monotonic()
            return self._waiting.popleft() if self._running else None

    def _serve(self, request: _Request) -> RequestOutput:
        """Generate the answer: hand over every output but the last, which is returned."""
        detokenizer = Detokenizer(self.tokenizer, request.params.stop)
        params, eos_ids = replace(request.params, stop=()), self.tokenizer.eos_ids
        tokens = generate(self.model, request.prompt_ids, params, eos_ids, cancelled=lambda: request.cancelled)
        for count, token in enumerate(tokens, start=1):
            text = "" if token in self._silent else detokenizer.add(token)
            ended = token in eos_ids and not params.ignore_eos
            if ended or detokenizer.stopped or count == params.max_tokens:
                text += detokenizer.flush(cut=not ended)
                return RequestOutput(text, [token], "stop" if ended or detokenizer.stopped else "length")
            request.put(RequestOutput(text, [token]))
        return RequestOutput("", [], "abort")

    def _finish(self, request: _Request, last: RequestOutput | Exception) -> None:
        """Free the request's place first, so that whoever sees the last output finds it free."""
        with self._changed:
            if self._requests.pop(request.id, None) is None:
                return  # the engine was stopped, and the caller has been told
            done = isinstance(last, RequestOutput) and last.finish_reason != "abort"
            if done and request.id != WARM_UP_ID:
                self._service_times.append(time.monotonic() - self._serving_since)
        request.put(last)

    def _close(self) -> None:
        """Take no more requests and end those there are. The caller holds the lock."""
        self._running = False
        for request in self._requests.values():
            request.cancelled = True
            request.put(EngineStopped("the engine was stopped"))
        self._requests.clear()
        self._waiting.clear()
        self._changed.notify_all()
