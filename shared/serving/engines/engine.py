"""What the server needs of whatever computes the answers, and the simplest thing that has it: a thread in this process.

Everything here belongs to one event loop: the callers', on which `on_step` and `on_event` are called too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.block_manager import BlockManager
from shared.inference.engine_settings import honoured
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import EngineStopped, RequestOutput
from shared.inference.paged_kv_cache import bytes_per_block
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import Scheduler
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.guard.deadline import Deadline

EngineState = Literal["loading", "ready", "restarting", "failed", "stopped"]
OnStep = Callable[[StepStats], None]
OnEnd = Callable[[], None]
OnEvent = Callable[[str, str], None]


class EngineFailed(RuntimeError):
    """There is no engine, and it isn't worth waiting for one: it could not be loaded, or it was given up.

    setting: an option that can't be had on this computer is to blame, and the message begins with its name.
    """

    def __init__(self, message: str, setting: bool = False) -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(frozen=True)
class EngineLimits:
    """What an engine has room for, and what it runs on. device: "cpu" or "cuda"; dtype: of its keys and values."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    bytes_per_block: int
    vocab_size: int
    context: int  # the model's own, which max_model_len may be below for want of memory
    attention: str
    device: str
    dtype: str
    version: str


class Engine(Protocol):
    """One model, computing the answers of many requests.

    state: "loading" until it is first ready; "restarting" while it is away and will come back; "failed" when nobody
    should wait for that, though one that was ready before may be tried again. error: why it failed.
    limits: None until it was first loaded. on_step: called after each step. on_event: (kind, text), for an operator;
    the kinds are engine_ready, engine_died, engine_hung, engine_restarted, engine_failed and request_failed.
    """

    error: str
    limits: EngineLimits | None
    on_step: OnStep
    on_event: OnEvent

    @property
    def state(self) -> EngineState:
        """Where it is between loading and stopped; see above."""

    async def start(self) -> None:
        """Returns when it is ready. Raises EngineFailed with the reason."""

    async def stop(self) -> None:
        """End every open request with EngineStopped, and free what it holds. A second time nothing happens."""

    async def until_ready(self, deadline: Deadline) -> None:
        """Wait until it is ready; at once when it is. Raises DeadlinePassed, EngineFailed and EngineStopped."""

    def check(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        """The parameters as they can be honoured (max_tokens ends with the context). Raises ValueError for a request
        that can't be served now or ever."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        trace: RequestTrace | None = None,
        on_end: OnEnd | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Take a request in, at once, and return its outputs. Leaving the iteration early aborts the request, and so
        does dropping the outputs unread.

        With params.n > 1 outputs of all answers come as they are made; `index` says whose they are. While the engine is
        away the outputs only pause. trace: gets started, first_token, output_tokens, cached_tokens, max_blocks, resumed
        and batch_sizes. on_end: called once, on the event loop, when the engine is done with the request, however it
        ended and whether or not anybody reads the outputs; not when this raises. Raises what `check` raises, ValueError
        for an id in use, and EngineFailed or EngineStopped. The iteration raises GenerationError when the request
        fails, EngineStopped when the engine is stopped.
        """

    def abort(self, request_id: str) -> None:
        """End a request: its outputs end at once, with finish_reason "abort". Unknown ids are ignored."""

    async def block_map(self) -> bytes:
        """One byte for each block: how many hold it (254 and more as 254), 255 if it is free and what is in it can be
        found by the prefix cache, 0 if it is free and empty. Empty while the engine is away."""


def check_alive(engine: Engine, setting: bool = False) -> None:
    """Raise EngineFailed or EngineStopped where nothing can be asked of an engine any more. setting: see EngineFailed.
    One that is away and will come back is alive."""
    if engine.state == "failed":
        raise EngineFailed(engine.error, setting)
    if engine.state == "stopped":
        raise EngineStopped("the engine was stopped")


def limits_of(engine: LLMEngine, version: str = "") -> EngineLimits:
    """What a loaded engine has room for, as the server tells it on. version: the name it is loaded under."""
    config, pool, scheduler = engine.model.config, engine.pool, engine.scheduler
    return EngineLimits(
        max_model_len=engine.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        bytes_per_block=bytes_per_block(config, pool.block_size, pool.keys.dtype),
        vocab_size=config.vocab_size,
        context=config.max_position_embeddings,
        attention=engine.runner.backend.name,
        device=pool.keys.device.type,
        dtype=str(pool.keys.dtype).removeprefix("torch."),
        version=version,
    )


def check_against(
    limits: EngineLimits, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0
) -> SamplingParams:
    """Engine.check, where all that is at hand of an engine is what it has room for."""
    return honoured(prompt_ids, params, priority, limits.vocab_size, scheduler_of(limits))


@lru_cache(maxsize=32)
def scheduler_of(limits: EngineLimits) -> Scheduler:
    """A scheduler of these limits that schedules nothing: it knows what could never fit."""
    blocks = BlockManager(limits.num_blocks, limits.block_size)
    return Scheduler(blocks, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len, max_waiting=0)


class ThreadEngine:
    """An Engine in a thread of this process: nothing to start and nothing to watch over, and nothing survives it.

    The tests use it, and replicas that something else restarts.
    """

    def __init__(self, engine: AsyncLLMEngine, version: str = "") -> None:
        self.engine = engine
        self.limits: EngineLimits | None = limits_of(engine.engine, version)
        self.error = ""
        self.on_step: OnStep = lambda stats: None
        self.on_event: OnEvent = lambda kind, text: None
        self._state: EngineState = "loading"
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def state(self) -> EngineState:
        """See Engine. The thread may have died since: it is looked at when asked."""
        if self._state == "ready" and not self.engine.running:
            self._state, self.error = "failed", self.engine.stopped
            self.on_event("engine_failed", self.error)
        return self._state

    async def start(self) -> None:
        """See Engine. The model is loaded already."""
        self._loop = asyncio.get_running_loop()
        self.engine.on_step = self._told
        self.engine.start()
        self._state = "ready"
        self.on_event("engine_ready", "")

    def _told(self, stats: StepStats) -> None:
        """Called by the engine's thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self.on_step(stats))

    async def stop(self) -> None:
        """See Engine."""
        self._state = "stopped"
        await self.engine.stop()

    async def until_ready(self, deadline: Deadline) -> None:
        """There is nothing to wait for: what was started is ready."""
        check_alive(self)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        """See Engine."""
        return self.engine.engine.check(prompt_ids, params, priority)

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        trace: RequestTrace | None = None,
        on_end: OnEnd | None = None,
        output_ids: Sequence[int] = (),
        index: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """output_ids, index: to go on with an answer, as in LLMEngine.add_request; for who recovers from outside."""
        if self.state == "failed":
            raise EngineFailed(self.error)
        return self.engine.generate(prompt_ids, params, request_id, priority, trace, on_end, output_ids, index)

    def abort(self, request_id: str) -> None:
        """See Engine."""
        self.engine.abort(request_id)

    async def block_map(self) -> bytes:
        """See Engine."""
        return self.engine.engine.block_map()
