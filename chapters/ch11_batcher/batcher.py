# Yours to finish. Generated from shared/inference/batcher.py (version 5e451c5b7624).
"""The batcher: callers arrive one by one, the model runs batches, and each gets the answer to its own question.

One task, the collector, decides who runs and when. Callers only put their request into the queue and wait for the
future that comes with it.
"""

from chapters import Todo
import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from shared.inference.batch_queue import BatchPolicy, BatchQueue, is_number
from shared.inference.generate import check_prompt
from shared.inference.outputs import EngineStopped, GenerationError
from shared.inference.sampling import SamplingParams
from shared.inference.static_batch import answers, check_params
from shared.model.transformer import Transformer

# Prompts and their params in, an answer for each, in the same order, out.
RunBatch = Callable[[list[list[int]], list[SamplingParams]], Awaitable[Sequence[list[int]]]]


class DeadlineExceeded(RuntimeError):
    """The request's deadline passed while it waited for its batch; nothing was computed for it."""


@dataclass(eq=False)
class Request:
    """One caller's question, when it came, and the promise of an answer."""

    prompt_ids: list[int]
    params: SamplingParams
    arrived: float
    answer: asyncio.Future[list[int]] = field(repr=False)

    @property
    def length(self) -> int:
        """Tokens of prompt and answer together, at most: what the queue's buckets go by."""
        return len(self.prompt_ids) + self.params.max_tokens


class Batcher:
    """Collects requests into batches and runs one batch at a time. To be used as `async with Batcher(…) as batcher`.

    run_batch: an async function that must not compute on the event loop (see `in_thread`). check: raises ValueError
    for a request that can't be served: one bad prompt must be refused before it takes a whole batch down with it.
    """

    def __init__(
        self,
        run_batch: RunBatch,
        policy: BatchPolicy | None = None,
        check: Callable[[Sequence[int], SamplingParams], None] | None = None,
    ) -> None:
        self.queue: BatchQueue[Request] = BatchQueue(policy or BatchPolicy())
        self._run_batch = run_batch
        self._check = check
        self._joined = asyncio.Event()  # set when somebody has joined the queue
        self._collector: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Batcher":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Start collecting. Raises RuntimeError when started already."""
        if self._collector is not None and not self._collector.done():
            raise RuntimeError("the batcher has been started already")
        self._collector = asyncio.create_task(self._serve(), name="collector")

    async def stop(self) -> None:
        """End everybody's waiting with EngineStopped. A batch that is running is cancelled (see `in_thread`)."""
        if self._collector is not None:
            self._collector.cancel()
            await asyncio.gather(self._collector, return_exceptions=True)
            self._collector = None

    async def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, timeout_s: float | None = None
    ) -> list[int]:
        """Wait for a batch and return this prompt's answer, its token ids.

        timeout_s: how long it may wait in the queue; longer than the policy's window, or nobody could be in time. Once
        its batch has begun, the answer comes, late or not. A caller who is cancelled while waiting leaves the queue.
        Raises QueueFull at once; DeadlineExceeded; EngineStopped; GenerationError when the batch failed; ValueError
        for a request that can't be served.
        """
        self._admit(prompt_ids, params, timeout_s)
        loop = asyncio.get_running_loop()
        request = Request(list(prompt_ids), params, loop.time(), loop.create_future())
        # exercise 11.7: join the queue and wake the collector; set the deadline's alarm; wait for the answer
        #   however the waiting ends, switch the alarm off and leave no place taken in the queue
        #   given: self.queue.add and .discard, self._joined, self._give_up(request, timeout_s), loop.call_later
        raise Todo("11.7")
        # end

    def _admit(self, prompt_ids: Sequence[int], params: SamplingParams, timeout_s: float | None) -> None:
        if self._collector is None or self._collector.done():
            raise EngineStopped("the batcher is not running")
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params must be SamplingParams, not {params!r}")
        if self._check is not None:
            self._check(prompt_ids, params)
        window = self.queue.policy.max_wait_s
        if timeout_s is not None and not (is_number(timeout_s) and timeout_s > window):
            raise ValueError(f"timeout_s must be longer than the window of {window} s, not {timeout_s!r}")

    def _give_up(self, request: Request, timeout_s: float) -> None:
        """The alarm: tell the caller, if the request is still waiting for its batch."""
        if self.queue.discard(request) and not request.answer.done():
            request.answer.set_exception(DeadlineExceeded(f"no batch had room for it within {timeout_s:g} s"))

    async def _serve(self) -> None:
        """The collector: one batch after another, for ever."""
        loop, batch, why = asyncio.get_running_loop(), [], "the batcher was stopped"
        try:
            while True:
                batch = await self.collect()
                started = loop.time()
                await self.deliver(batch)
                self.queue.finished(loop.time() - started)
        except BaseException as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # nobody stopped it
                why = f"the batcher's collector died of {type(error).__name__}: {error}"
            raise
        finally:  # nobody may wait for a collector that is gone
            for request in [*batch, *self.queue.clear()]:
                if not request.answer.done():
                    request.answer.set_exception(EngineStopped(why))

    async def collect(self) -> list[Request]:
        """Wait until a batch is due, whoever may join the queue meanwhile, and take it out of the queue."""
        loop = asyncio.get_running_loop()
        # exercise 11.8: until the queue has a batch that is due by now, sleep until it is, or until somebody joins
        #   given: self.queue.due_at() and .take(), loop.time(), self._joined (an asyncio.Event, set by submit)
        raise Todo("11.8")
        # end

    async def deliver(self, batch: list[Request]) -> None:
        """Run a batch and give each request the answer to its own question; where it fails, tell everybody so.

        Each is told by a GenerationError of its own. Too few or too many answers are a failure, too: nobody knows whose
        is missing. Nothing is raised here, for the collector must go on.
        """
        # exercise 11.9: run, pair requests and answers in order, and fulfil the promises of those who still wait
        #   given: self._run_batch(prompts, params), to be awaited; future.done(), .set_result(), .set_exception()
        raise Todo("11.9")
        # end


def in_thread(model: Transformer, eos_ids: Collection[int] = frozenset()) -> RunBatch:
    """Static batches of a model, computed in a thread: the event loop stays free to take requests meanwhile.

    A thread can't be cancelled. It asks before each step whether somebody still waits for its batch, and ends if not.
    """

    async def run(prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
        left = threading.Event()
        try:
            return await asyncio.to_thread(answers, model, prompts, params, eos_ids, left.is_set)
        finally:
            left.set()

    return run


def model_batcher(
    model: Transformer, policy: BatchPolicy | None = None, eos_ids: Collection[int] = frozenset()
) -> Batcher:
    """A batcher over static batches of `model`, which refuses prompts that the model can't take."""

    def check(prompt_ids: Sequence[int], params: SamplingParams) -> None:
        check_prompt(prompt_ids, model.config.vocab_size, model.config.max_position_embeddings)
        check_params(params)

    return Batcher(in_thread(model, eos_ids), policy, check)
