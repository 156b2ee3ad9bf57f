"""One engine made of several replicas, anywhere: to the server it's an Engine like the others.

Each answer is computed by one replica. When that one is lost, another goes on behind the tokens that have arrived: the
draws depend on seed and position alone, so the text is the same. Who starts replicas and notices that they are gone is
behind the `Replicas` protocol, see replicas.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from shared.inference.async_outputs import OutputQueue, Outputs
from shared.inference.outputs import EngineStopped, GenerationError, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.inference.step_meter import RequestNotes
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.cluster.replica_steps import ReplicaSteps
from shared.serving.cluster.replicas import ReplicaLost, Replicas
from shared.serving.engines.engine import (
    EngineFailed,
    EngineLimits,
    EngineState,
    OnEnd,
    OnEvent,
    OnStep,
    check_against,
    check_alive,
)
from shared.serving.engines.resume import SUSPICIOUS, Open, resubmissions, sort_out
from shared.serving.guard.deadline import Deadline, within

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 0.5


@dataclass(eq=False)
class _Request:
    """A caller's request. answers: those that haven't ended, by their index."""

    id: str
    answers: dict[int, Open]
    notes: RequestNotes | None
    on_end: OnEnd | None
    queue: OutputQueue = field(default_factory=asyncio.Queue)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class ReplicaSetEngine:
    """An Engine over `num_replicas` replicas."""

    def __init__(self, replicas: Replicas, num_replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas, self._num_replicas, self._clock = replicas, num_replicas, clock
        self.state: EngineState = "loading"
        self.error = ""
        self.limits: EngineLimits | None = None
        self.on_step: OnStep = lambda stats: None
        self.on_event: OnEvent = lambda kind, text: None
        self._each: EngineLimits | None = None  # what one replica has room for
        self._requests: dict[str, _Request] = {}
        self._lost: dict[Open, asyncio.Future[None]] = {}  # answers that wait for their turn at another replica
        self._suspect: Open | None = None  # they wait until it is cleared; see sort_out
        self._ready = asyncio.Event()
        self._steps = ReplicaSteps()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See Engine. The limits are those of all replicas together, but one request's length is one replica's."""
        try:
            each = self._each = await self._replicas.start()
        except EngineFailed as error:
            self.state, self.error = "failed", str(error)
            raise
        n = self._num_replicas
        self.limits = replace(each, max_num_seqs=n * each.max_num_seqs, num_blocks=n * each.num_blocks)
        self._steps = ReplicaSteps(await self._replicas.steps())
        self._set_ready(True)
        self.on_event("engine_ready", f"{len(self._steps.names)} replicas")
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """See Engine."""
        if self.state == "stopped":
            return
        self.state = "stopped"
        self._ready.set()
        for request in list(self._requests.values()):
            self._end(request, [EngineStopped("the engine was stopped")])
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._replicas.stop()

    async def until_ready(self, deadline: Deadline) -> None:
        """See Engine. Ready is, with any replica left."""
        await within(deadline, self._ready.wait(), self._clock)
        check_alive(self)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        """See Engine. One replica must hold the request."""
        if self._each is None:
            raise EngineStopped("the engine is not running")
        return check_against(self._each, prompt_ids, params, priority)

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        trace: RequestTrace | None = None,
        on_end: OnEnd | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """See Engine. Each of n answers may be computed by another replica."""
        check_alive(self)
        params = self.check(prompt_ids, params, priority)
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use")
        assert self._each is not None
        notes = None if trace is None else RequestNotes(trace, len(prompt_ids), self._each.block_size)
        one = [replace(params, n=1, seed=params.seed + k) for k in range(params.n)]
        answers = {k: Open(f"{request_id}/{k}", prompt_ids, own, priority) for k, own in enumerate(one)}
        request = self._requests[request_id] = _Request(request_id, answers, notes, on_end)
        request.tasks = [asyncio.create_task(self._answer(request, k, answer)) for k, answer in answers.items()]
        return Outputs(request.queue, params.n, partial(self._leave, request), asyncio.get_running_loop())

    def abort(self, request_id: str) -> None:
        """See Engine."""
        if (request := self._requests.get(request_id)) is not None:
            self._end(request, [RequestOutput("", [], "abort", index) for index in request.answers])

    async def block_map(self) -> bytes:
        """See Engine: the replicas' maps, one behind the other."""
        return b"".join(await self._replicas.block_maps())

    async def _answer(self, request: _Request, index: int, answer: Open) -> None:
        """Get one answer, from as many replicas as it takes."""
        try:
            while index in request.answers:
                try:
                    await self._from_one_replica(request, index, answer)
                except ReplicaLost as lost:
                    answer.on_death()
                    await self._turn(answer, lost)
                    logger.warning("request %s goes on in another replica: %s", request.id, lost)
                    if request.notes is not None:
                        request.notes.trace.resumed += 1
        except Exception as error:
            logger.exception("request %s failed", request.id)
            self.on_event("request_failed", f"{type(error).__name__}: {error}")
            known = isinstance(error, GenerationError | EngineStopped)
            self._end(request, [error if known else GenerationError(f"{type(error).__name__}: {error}")])
        finally:
            self._clear(answer)

    async def _turn(self, answer: Open, lost: ReplicaLost) -> None:
        """Wait until an answer that has lost its replica may go to another: see sort_out. What comes new doesn't wait,
        for there are other replicas. Raises GenerationError for one that may be what kills them."""
        _, _, failed = sort_out([answer])
        if failed:
            raise GenerationError(f"{answer.deaths} replicas in a row were lost with it: {lost}") from lost
        turn = self._lost[answer] = asyncio.get_running_loop().create_future()
        try:
            self._clear(answer)
            self._go_on()
            await turn
        finally:
            self._lost.pop(answer, None)

    def _go_on(self) -> None:
        """Give those their turn who may go on now."""
        if self._suspect is not None:
            return
        now, _, _ = sort_out(answer for answer, turn in self._lost.items() if not turn.done())
        for answer in now:
            self._lost[answer].set_result(None)
            if answer.deaths >= SUSPICIOUS:  # then it's the only one
                self._suspect = answer

    def _clear(self, answer: Open) -> None:
        """It is under suspicion no more, or has ended."""
        if self._suspect is answer:
            self._suspect = None
            self._go_on()

    async def _from_one_replica(self, request: _Request, index: int, answer: Open) -> None:
        """Pass on what a replica makes of an answer, to its end. Raises ReplicaLost when the end doesn't come."""
        (wanted,) = resubmissions(answer)
        # An id of its own: a replica that was taken for lost and isn't may still have the one before.
        wanted = replace(wanted, request_id=f"{answer.request_id}#{len(answer.outputs[0])}.{answer.deaths}")
        async with aclosing(self._replicas.ask(wanted)) as pieces:
            async for piece in pieces:
                if index not in request.answers:
                    return  # it was ended meanwhile
                output = replace(piece.output, index=index)
                if request.notes is not None and piece.started_s is not None:
                    request.notes.started(self._clock() - piece.started_s, piece.cached_tokens)
                if request.notes is not None:
                    request.notes.output(output, self._steps.num_running)
                answer.on_output(0, output.token_ids, output.finish_reason is not None)
                self._clear(answer)
                if output.finish_reason is None:
                    request.queue.put_nowait(output)
                    continue
                del request.answers[index]
                if request.answers:
                    request.queue.put_nowait(output)
                else:
                    self._end(request, [output])
                return
        raise ReplicaLost("its stream ended early")

    def _leave(self, request: _Request) -> None:
        """Nobody reads on."""
        if self._requests.get(request.id) is request:
            self._end(request, [])

    def _end(self, request: _Request, last: Sequence[RequestOutput | Exception]) -> None:
        """The request is over; its place is free before its caller is told."""
        request.answers.clear()
        del self._requests[request.id]
        for task in request.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if request.on_end is not None:
            request.on_end()
        for output in last:
            request.queue.put_nowait(output)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                self._look_at(await self._replicas.steps())
            except Exception as error:  # whoever knows of the replicas is away: they needn't be
                logger.warning("the replicas can't be looked at: %s: %s", type(error).__name__, error)

    def _look_at(self, steps: Mapping[str, Sequence[StepStats]]) -> None:
        """Tell what has changed since the last look."""
        for name in self._steps.names - steps.keys():
            self._steps.leave(name)
            left = f"{len(steps)} of {self._num_replicas} replicas are left"
            self.on_event("replica_lost" if steps else "engine_died", f"{name} is gone; {left}")
        for name in steps.keys() - self._steps.names:
            self._steps.arrive(name)
            self.on_event("engine_restarted", f"{name} is there; {len(steps)} of {self._num_replicas} replicas are")
        self._set_ready(bool(steps))
        for name, made in steps.items():
            for stats in made:
                self.on_step(self._steps.add(name, stats, self._clock()))

    def _set_ready(self, ready: bool) -> None:
        if self.state not in ("stopped", "failed"):
            self.state = "ready" if ready else "restarting"
            (self._ready.set if ready else self._ready.clear)()
