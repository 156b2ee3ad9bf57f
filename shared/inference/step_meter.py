"""What can be told of an engine's steps and its requests while they run: times, counts and blocks, never texts."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import Outputs, RequestOutput
from shared.observability.gc_pauses import GcPauses
from shared.observability.trace import RequestTrace, StepStats

COUNT_EVERY_S = 0.2


@dataclass(frozen=True)
class MeteredStep:
    """admitted: the requests that this step took in, or back in, with how many tokens the prefix cache spared each.
    tokens: how many were computed for each request."""

    outputs: Outputs
    stats: StepStats
    admitted: dict[str, int]
    tokens: dict[str, int]


class StepMeter:
    """Steps an engine and takes notes. Its totals begin with it.

    gc_pauses: the garbage collections of the engine's process, where that is its own; they're told with the steps.
    """

    def __init__(
        self, engine: LLMEngine, clock: Callable[[], float] = time.monotonic, gc_pauses: GcPauses | None = None
    ) -> None:
        self.engine, self._clock, self._gc_pauses = engine, clock, gc_pauses
        self._preemptions = self._generated_tokens = self._cached = 0
        self._count_again = -math.inf

    def step(self) -> MeteredStep:
        """Run one step of the engine. Raises what the step raises, and has counted nothing then."""
        engine, began = self.engine, self._clock()
        outputs = engine.step()
        ended = self._clock()
        step, blocks, tokens = engine.last_step, engine.blocks, dict[str, int]()
        for sequence, n in step.scheduled:
            tokens[sequence.request_id] = tokens.get(sequence.request_id, 0) + n
        self._preemptions += len(step.preempted)
        self._generated_tokens += sum(isinstance(output, RequestOutput) for _, output in outputs)
        stats = StepStats(
            at=ended,
            seconds=ended - began,
            num_running=len(step.scheduled),
            num_waiting=engine.scheduler.num_waiting,
            batch_tokens=sum(tokens.values()),
            num_free_blocks=blocks.num_free,
            num_cached_blocks=self._num_cached(ended),
            preemptions=self._preemptions,
            hit_tokens=blocks.hit_tokens,
            asked_tokens=blocks.asked_tokens,
            generated_tokens=self._generated_tokens,
            num_blocks=blocks.num_blocks,
            kv_waste=self._kv_waste(),
            gc_pauses=self._gc_pauses.drain() if self._gc_pauses is not None else (),
        )
        return MeteredStep(outputs, stats, {s.request_id: s.cached_tokens for s in step.admitted}, tokens)

    def _kv_waste(self) -> float | None:
        """The share of the slots in the running sequences' blocks that hold no token."""
        running, block_size = self.engine.scheduler.running, self.engine.pool.block_size
        slots = sum(len(sequence.block_table) for sequence in running) * block_size
        return 1 - sum(sequence.num_computed_tokens for sequence in running) / slots if slots else None

    def _num_cached(self, now: float) -> int:
        """Free blocks that the prefix cache can find. There may be very many, so not every step counts them."""
        if now >= self._count_again:
            self._cached, self._count_again = self.engine.blocks.num_free_cached, now + COUNT_EVERY_S
        return self._cached


class RequestNotes:
    """Fills in what a request's trace has of its time in the engine.

    n_prompt: the prompt's tokens. block_size: of the engine's pool.
    """

    def __init__(self, trace: RequestTrace, n_prompt: int, block_size: int) -> None:
        self.trace, self._n_prompt, self._block_size = trace, n_prompt, block_size
        self._tokens: dict[int, int] = {}  # of each answer

    def started(self, at: float, cached_tokens: int) -> None:
        """A step that began `at` has some of it. Later ones, after a preemption, change nothing."""
        if self.trace.started is None:
            self.trace.started, self.trace.cached_tokens = at, cached_tokens

    def spent(self, seconds: float) -> None:
        """Its share of a step's time."""
        self.trace.machine_s = (self.trace.machine_s or 0.0) + seconds

    def output(self, output: RequestOutput, num_running: int) -> None:
        """num_running: how many answers were in the step that made it."""
        trace = self.trace
        if output.token_ids and trace.first_token is None:
            trace.first_token = time.monotonic()
        trace.output_tokens += len(output.token_ids)
        if trace.debug:
            trace.batch_sizes.append(num_running)
        made = self._tokens[output.index] = self._tokens.get(output.index, 0) + len(output.token_ids)
        shared = self._n_prompt // self._block_size  # the prompt's full blocks, which all answers share
        own = -(-(self._n_prompt + made - 1) // self._block_size) - shared  # the last token is never computed
        trace.max_blocks = max(trace.max_blocks, shared + max(own, 0))
