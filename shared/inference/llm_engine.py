"""The engine: requests in, steps, pieces of answers out. It waits for nobody and starts no thread."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from shared import in_words
from shared.inference.answer_text import AnswerText, EngineTokenizer, silent_ids
from shared.inference.attention import make_backend
from shared.inference.block_manager import BlockManager
from shared.inference.cuda_graphs import make_runner
from shared.inference.engine_settings import blocks_that_fit, check_resumed, check_settings, honoured
from shared.inference.offline import answer_all
from shared.inference.outputs import GenerationError, Outputs, QueueFull, RequestOutput
from shared.inference.paged_kv_cache import KVPool
from shared.inference.sampler import Sampled
from shared.inference.sampling import SamplingParams, for_each
from shared.inference.scheduler import Scheduler
from shared.inference.sequence import Sequence, SequenceStatus
from shared.inference.step import Step
from shared.inference.step_results import Results, compute

logger = logging.getLogger(__name__)


class LLMEngine:
    """Continuous batching over one model.

    model: anything with `.config` and Transformer's forward. tokenizer: for text and stop texts; without one answers
    are tokens alone. max_model_len: the most tokens of prompt and answer together; when not given, the model's context
    or what the pool holds. num_blocks or kv_bytes: the pool's size. attention: a backend's name. version: names the
    model for the prefix cache. eos_ids: end tokens, when they aren't the tokenizer's.
    Methods may be called from any thread; step from one at a time. While `generate` runs, the engine is its own.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: EngineTokenizer | None = None,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 256,
        max_model_len: int | None = None,
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_bytes: int | None = None,
        attention: str = "auto",
        prefix_caching: bool = True,
        max_waiting: int = 1024,
        ageing_s: float = 10.0,
        version: str = "",
        eos_ids: Iterable[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config, context = model.config, model.config.max_position_embeddings
        check_settings(
            context, max_model_len, num_blocks, kv_bytes, max_num_seqs=max_num_seqs, block_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens, max_waiting=max_waiting,
        )  # fmt: skip
        weight = next((w for w in model.parameters() if w.is_floating_point()), torch.empty(0))
        dtype, device = weight.dtype, weight.device
        if num_blocks is None:
            most = max_num_seqs * -(-(max_model_len or context) // block_size)  # more could never be used at once
            num_blocks = blocks_that_fit(config, block_size, dtype, device, kv_bytes, most)
        self.max_model_len = max_model_len or min(context, num_blocks * block_size)
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        self.eos_ids = frozenset(eos_ids) or (tokenizer.eos_ids if tokenizer else frozenset())
        self._silent = silent_ids(tokenizer, self.eos_ids)
        self.pool = KVPool(config, num_blocks, block_size, dtype, device)  # first: of what's too large, it says so
        self.blocks = BlockManager(num_blocks, block_size, version, prefix_caching)
        backend = make_backend(attention, config, block_size, dtype, device)
        self.runner = make_runner(model, self.pool, backend, self.max_model_len)
        self.scheduler = Scheduler(
            self.blocks, max_num_seqs, max_num_batched_tokens, self.max_model_len, max_waiting, ageing_s
        )
        self.last_step = Step()  # what the latest call of `step` scheduled, for those who watch
        self._requests: dict[str, list[Sequence]] = {}  # the unfinished ones, and all their answers
        self._lock = threading.RLock()
        self._in_flight = False  # the model computes: nothing may be taken from what it was given
        self._aborted: list[tuple[str, int | None]] = []  # while it did
        self._generating = False

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do: requests run or wait."""
        return bool(self._requests)

    def check(self, prompt_ids: SequenceOf[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        """The parameters as they can be honoured: max_tokens ends with the context, or the pool. Raises ValueError, and
        says why, for what can't be served now or ever."""
        if isinstance(params, SamplingParams) and params.stop and self.tokenizer is None:
            raise ValueError("stop: this engine has no tokenizer and sees no text; stop texts need one")
        return honoured(prompt_ids, params, priority, self.model.config.vocab_size, self.scheduler)

    def add_request(
        self, request_id: str, prompt_ids: SequenceOf[int], params: SamplingParams, priority: int = 0,
        output_ids: SequenceOf[int] = (), index: int = 0,
    ) -> None:  # fmt: skip
        """Queue a request; its first tokens are computed in a later step. priority: lower is sooner.

        The k-th of params.n answers draws with seed + k. output_ids: tokens of its one answer that were sampled before,
        by another engine: it goes on behind them as if it had sampled them. index: the first answer's. Raises
        ValueError for a prompt that can't be served, a priority that is none, an id in use, or an answer that has ended
        already; QueueFull; and RuntimeError while `generate` runs, which would lose the outputs.
        """
        params = self.check(prompt_ids, params, priority)
        if output_ids:
            check_resumed(output_ids, params, self.model.config.vocab_size)
        with self._sound(), self._lock:
            if self._generating:
                raise RuntimeError("generate is answering other prompts; add requests when it has ended")
            self._add(request_id, prompt_ids, params, priority, output_ids, index)

    def _add(
        self, request_id: str, prompt_ids: SequenceOf[int], params: SamplingParams, priority: int = 0,
        output_ids: SequenceOf[int] = (), index: int = 0,
    ) -> None:  # fmt: skip
        now, answers = self.clock(), []
        for k in range(params.n):
            own = replace(params, seed=params.seed + k)
            answer = Sequence(request_id, list(prompt_ids), own, index + k, now, priority)
            answer.token_ids += output_ids
            answer.text = AnswerText(self.tokenizer, own, self.eos_ids, self._silent, output_ids)
            answers.append(answer)
        answers[0].siblings = answers[1:]
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use")
        self.scheduler.add(answers[0])
        self._requests[request_id] = answers

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one of its answers; nothing more is heard of it. If a step is under way, after that.
        Unknown ids are ignored."""
        with self._sound(), self._lock:
            if not self._in_flight:
                self._end(request_id, index)
            elif request_id in self._requests:  # else a later one of that name would be ended
                self._aborted.append((request_id, index))

    def block_map(self) -> bytes:
        """One byte for each block: see BlockManager.as_bytes."""
        with self._lock:
            return self.blocks.as_bytes()

    @torch.inference_mode()
    def step(self) -> Outputs:
        """Compute one step. Returns what is new: (request id, output), or a GenerationError for a request that failed,
        which is the last that is heard of it. Empty when there was nothing to do, or only pieces of prompts."""
        with self._sound():
            with self._lock:
                if self._in_flight:
                    raise RuntimeError("a step is under way already: the engine takes one at a time")
                step = self.last_step = self.scheduler.schedule()
                if not step.scheduled:
                    return []
                self._in_flight = True
            try:
                results = compute(step, self.runner)
            finally:
                with self._lock:
                    self._in_flight = False
                    for request_id, index in self._aborted:
                        self._end(request_id, index)
                    self._aborted.clear()
            with self._lock:
                return self._apply(step, results)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """After Ctrl-C, wherever it comes, nobody knows what has been written and what was entered. So all requests are
        dropped, nothing is cached any more, and the engine is as new."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            with self._lock:
                for sequence in (answer for answers in self._requests.values() for answer in answers):
                    sequence.status = SequenceStatus.ABORTED  # for a step of another thread, if there is one
                self._requests, self._aborted, self._in_flight, self._generating = {}, [], False, False
                self.scheduler = self.scheduler.anew()
                self.blocks = self.scheduler.blocks
            raise

    def _apply(self, step: Step, results: Results) -> Outputs:
        """Enter the results, and make outputs of them. Failures come first: nothing of theirs may be published."""
        outputs: Outputs = []
        for sequence, result in results.items():
            if isinstance(result, Exception) and sequence.request_id in self._requests:
                outputs.append(self._fail(sequence.request_id, result))
        sampled = {sequence: result for sequence, result in results.items() if not isinstance(result, Exception)}
        self.scheduler.update(step, {sequence: result.token_id for sequence, result in sampled.items()})
        for sequence, result in sampled.items():
            if sequence.status is SequenceStatus.RUNNING:  # siblings without a place wait, others have been aborted
                try:
                    outputs.append((sequence.request_id, self._output(sequence, result)))
                except Exception as error:  # a tokenizer that doesn't know the token
                    outputs.append(self._fail(sequence.request_id, error))
        return outputs

    def _fail(self, request_id: str, error: Exception) -> tuple[str, GenerationError]:
        """End a request with all its answers, and say why. Only what was computed soundly was published."""
        logger.error("request %s failed", request_id, exc_info=error)
        self._end(request_id)
        return request_id, GenerationError(in_words(error))

    def _output(self, sequence: Sequence, sampled: Sampled) -> RequestOutput:
        """The new token as the caller sees it; ends the answer when it was the last."""
        assert sequence.text is not None
        text, reason = sequence.text.add(sampled.token_id)
        if reason is not None:
            self._end(sequence.request_id, sequence.index, SequenceStatus.FINISHED)
        logprobs = None if sampled.logprobs is None else [sampled.logprobs]
        return RequestOutput(text, [sampled.token_id], reason, sequence.index, logprobs)

    def _end(self, request_id: str, index: int | None = None, status: SequenceStatus = SequenceStatus.ABORTED) -> None:
        """index: of the answer that ends; None for all."""
        answers = self._requests.get(request_id, [])
        for sequence in [answer for answer in answers if index in (None, answer.index)]:
            self.scheduler.finish(sequence, status)
            answers.remove(sequence)
        if not answers:
            self._requests.pop(request_id, None)

    def generate(
        self,
        prompts: SequenceOf[SequenceOf[int]],
        params: SamplingParams | SequenceOf[SamplingParams],
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer all prompts, and return the answers in their order, each in one piece; with n > 1, n for each prompt.

        params: for all, or one for each. Raises what add_request raises, before anything is computed, and
        GenerationError, with the prompt's number, when one fails.
        """
        each = [self.check(prompt, one) for prompt, one in zip(prompts, for_each(params, len(prompts)), strict=True)]
        with self._alone():
            return answer_all(self, prompts, each, self._added, progress)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While the block lasts, only `_added` adds requests. Afterwards there are none, however it ended."""
        with self._sound():
            with self._lock:
                if self._requests or self._generating:
                    raise RuntimeError("the engine has other requests, whose outputs would be lost; finish them first")
                self._generating = True
            try:
                yield
            finally:
                with self._lock:
                    for request_id in list(self._requests):
                        self._end(request_id)
                    self._generating = False

    def _added(self, request_id: str, prompt_ids: SequenceOf[int], params: SamplingParams) -> bool:
        """False when there is no place for it now."""
        try:
            with self._lock:
                self._add(request_id, prompt_ids, params)
        except QueueFull:
            return False
        return True
