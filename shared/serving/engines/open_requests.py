"""The requests that an engine process works on, as the API process keeps them: what their callers get, and what a new
engine process is asked for when this one is gone.

An engine process knows a request by numbers that are used once. An answer that has to be gone on with gets a new one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from shared import YOURS, in_words
from shared.inference.answer_text import AnswerText, EngineTokenizer, silent_ids
from shared.inference.async_outputs import OutputQueue, Outputs
from shared.inference.outputs import FinishReason, GenerationError, RequestOutput, TokenLogprobs
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import RequestNotes
from shared.observability.cost import share_step
from shared.observability.trace import StepStats
from shared.serving.engines.resume import Open, resubmissions, sort_out

logger = logging.getLogger(__name__)

Send = Callable[..., None]  # (kind, field, …): a frame to the engine process that runs now, if there is one


@dataclass(eq=False)
class OpenRequest(Open):
    """One caller's request. texts: of each of its answers. numbers: what the engine process knows it by. last_death:
    why the latest engine process ended that had it."""

    texts: list[AnswerText] = field(default_factory=list)
    notes: RequestNotes | None = None
    on_end: Callable[[], None] | None = None
    numbers: list[str] = field(default_factory=list)
    last_death: str = ""
    queue: OutputQueue = field(default_factory=asyncio.Queue)


class OpenRequests:
    """on_failure: called with a request's id and why it failed."""

    def __init__(self, tokenizer: EngineTokenizer, send: Send, on_failure: Callable[[str, str], None]) -> None:
        self._tokenizer, self._send, self._on_failure = tokenizer, send, on_failure
        self._silent = silent_ids(tokenizer, tokenizer.eos_ids)
        self._open: dict[str, OpenRequest] = {}
        self._by_number: dict[str, OpenRequest] = {}
        self._numbers = count()
        self._away = True  # there is no engine process that could be asked
        self._suspect: OpenRequest | None = None  # others wait until it is cleared; see sort_out
        self.progress = False  # tokens have come since somebody set it to False

    def __len__(self) -> int:
        return len(self._open)

    def take_in(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        priority: int,
        notes: RequestNotes | None,
        on_end: Callable[[], None] | None,
    ) -> Outputs:
        """Raises ValueError for an id in use."""
        if request_id in self._open:
            raise ValueError(f"request id {request_id!r} is in use")
        eos_ids, silent = self._tokenizer.eos_ids, self._silent
        texts = [AnswerText(self._tokenizer, params, eos_ids, silent) for _ in range(params.n)]
        request = OpenRequest(request_id, list(prompt_ids), params, priority, texts=texts, notes=notes, on_end=on_end)
        self._open[request_id] = request
        if not self._away and self._suspect is None:
            self._submit(request)
        return Outputs(request.queue, params.n, partial(self._leave, request), asyncio.get_running_loop())

    def abort(self, request_id: str) -> None:
        """End a request as its caller wishes: each answer that is open gets its last output, "abort"."""
        if (request := self._open.get(request_id)) is not None:
            indices = [index for index in range(request.params.n) if index not in request.ended]
            self._end(request, *(RequestOutput("", [], "abort", index) for index in indices))

    def end_all(self, why: Callable[[], Exception]) -> None:
        """End each with an exception of its own."""
        for request in list(self._open.values()):
            self._end(request, why())

    # The engine processes.

    def on_ready(self) -> None:
        """There is a new engine process: it's asked for everything that is open."""
        self._away = False
        self._submit_waiting()

    def on_death(self, why: str) -> None:
        """The engine process is gone: what it worked on has another death behind it, and waits for the next one.

        A request that was alone with it, and that the same fault in a part of the reader's has ended twice, fails now:
        it would end the next one, too."""
        self._away, self._suspect = True, None
        had = [request for request in self._open.values() if request.numbers]
        for request in had:
            request.on_death()
            request.numbers.clear()
            again, request.last_death = request.last_death == why, why
            if again and request.deaths > 1 and len(had) == 1 and why.startswith(YOURS):
                self._fail(request, why)
        self._by_number.clear()

    def on_step(
        self, stats: StepStats, outputs: list[list[Any]], admitted: dict[str, int], tokens: dict[str, int]
    ) -> None:
        """A step's frame: see wire.py."""
        for number, cached_tokens in admitted.items():
            if (request := self._by_number.get(number)) is not None and request.notes is not None:
                request.notes.started(stats.at - stats.seconds, cached_tokens)
        for number, seconds in share_step(stats.seconds, tokens).items():
            if (request := self._by_number.get(number)) is not None and request.notes is not None:
                request.notes.spent(seconds)
        for number, *what in outputs:
            if (request := self._by_number.get(number)) is None:
                continue  # its caller has left, and the engine hadn't heard of it
            if len(what) == 1:
                self._fail(request, what[0])
                continue
            try:
                self._output(request, number, stats.num_running, *what)
            except Exception as error:  # such as a tokenizer that doesn't know the token
                logger.exception("an output of request %s could not be taken in", request.request_id)
                self._fail(request, in_words(error))

    def on_refused(self, number: str, why: str) -> None:
        """The engine process would not take a request in, which is a bug of ours."""
        if (request := self._by_number.get(number)) is not None:
            self._fail(request, why)

    def _submit_waiting(self) -> None:
        """Ask for what this engine process doesn't know yet; after deaths, with care."""
        now, held, failed = sort_out(request for request in self._open.values() if not request.numbers)
        self._suspect = now[0] if held else None
        for request in now:
            self._submit(request)
        for request in failed:
            ended = f"{request.deaths} engine processes in a row have ended on it"
            self._fail(request, f"{ended}; the last time {request.last_death}")

    def _submit(self, request: OpenRequest) -> None:
        """Ask for what the request still lacks."""
        if not request.ended and not any(request.outputs):
            self._add(request, request.prompt_ids, request.params, [], 0)
            return
        for one in resubmissions(request):
            self._add(request, one.prompt_ids, one.params, one.output_ids, one.index)
        if request.notes is not None:
            request.notes.trace.resumed += 1

    def _add(
        self, request: OpenRequest, prompt_ids: Sequence[int], params: SamplingParams, output_ids: list[int], index: int
    ) -> None:
        number = str(next(self._numbers))
        request.numbers.append(number)
        self._by_number[number] = request
        self._send("add", number, prompt_ids, vars(params), request.priority, output_ids, index)

    # Their outputs.

    def _output(
        self,
        request: OpenRequest,
        number: str,
        num_running: int,
        token_id: int,
        index: int,
        theirs: FinishReason | None,
        logprobs: list[Any] | None,
    ) -> None:
        """theirs: why the answer has ended, as far as an engine can tell that sees no text."""
        if index in request.ended:
            return  # its stop text was found, and the engine hadn't heard of it
        text, reason = request.texts[index].add(token_id)
        reason, self.progress = reason or theirs, True
        request.on_output(index, [token_id], reason is not None)
        if reason is not None and theirs is None:
            self._send("abort", number, index)
        output = RequestOutput(text, [token_id], reason, index, None if logprobs is None else [heard(logprobs)])
        request.queue.put_nowait(output)
        if request.notes is not None:
            request.notes.output(output, num_running)
        if len(request.ended) == request.params.n:
            self._close(request)
        elif request is self._suspect:
            self._submit_waiting()

    def _fail(self, request: OpenRequest, why: str) -> None:
        self._on_failure(request.request_id, why)
        self._end(request, GenerationError(why))

    def _leave(self, request: OpenRequest) -> None:
        """Nobody reads on."""
        if self._open.get(request.request_id) is request:
            self._end(request)

    def _end(self, request: OpenRequest, *last: RequestOutput | Exception) -> None:
        """End a request that the engine hasn't ended."""
        for item in last:
            request.queue.put_nowait(item)
        for number in request.numbers:
            self._send("abort", number, None)
        self._close(request)

    def _close(self, request: OpenRequest) -> None:
        """It has ended: forget it, and let others go on."""
        del self._open[request.request_id]
        for number in request.numbers:
            self._by_number.pop(number, None)
        if request.on_end is not None:
            request.on_end()
        if request is self._suspect:
            self._submit_waiting()


def heard(logprobs: list[Any]) -> TokenLogprobs:
    """What spoken() in engine_process.py made of one token's."""
    token_id, logprob, top = logprobs
    return TokenLogprobs(token_id, logprob, [(id, value) for id, value in top])
