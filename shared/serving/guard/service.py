"""A request between its route and the engine: is it let in, when is its turn, how long may it take, what did it use.

A route calls `begin`, then `admit` once for all of its prompts, awaits `outputs` for each of them, and calls `end`
whatever happened. `outputs` returns only once the prompt has its place in the engine, so that a refusal still has a
status of its own.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from starlette.requests import Request

from shared.inference.sampling import SamplingParams
from shared.observability.request_id import request_id_from
from shared.observability.telemetry import Telemetry
from shared.serving.concurrency import in_thread
from shared.serving.engines.engine import EngineFailed
from shared.serving.errors import busy, shutting_down
from shared.serving.guard.admission import Admission, Busy
from shared.serving.guard.call import Call, Run
from shared.serving.guard.deadline import Deadline
from shared.serving.guard.degradation import SHORT_TOKENS, SMALLER, overloaded, shortened, smaller_than
from shared.serving.guard.drain import Drain
from shared.serving.guard.health import Health
from shared.serving.guard.keys import Key, KeyRing
from shared.serving.guard.limits import KeyLimits
from shared.serving.guard.refusals import engine_failed, full, hopeless, no_turn, too_late, unless_failed
from shared.serving.guard.timeouts import Timeouts
from shared.serving.models.version import Version
from shared.serving.models.versions import Versions
from shared.serving.settings import Settings

T = TypeVar("T")

LAST_WORDS_S = 1.0  # for the answers that are cut off at the end to say so
ENCODING_S = 0.01  # about how long encoding a prompt takes, before the first is measured
REFUSED = (429, 503)  # not the request's fault, and nothing broke: it may come back later
ANYONE = Key("anyone", "")  # who calls a server without keys


class Service:
    """What all requests share. keys: none lets everybody in. clock: as of asyncio's loop, in seconds.

    Where there are keys, they take turns; where there are none, the addresses that requests come from do.
    """

    def __init__(
        self,
        versions: Versions,
        telemetry: Telemetry | None = None,
        settings: Settings | None = None,
        keys: KeyRing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.versions, self.settings, self.keys = versions, settings or Settings(), keys or KeyRing()
        self.telemetry = telemetry or Telemetry()
        self.telemetry.queue_depth = lambda: self.num_waiting
        self.telemetry.queue_capacity = lambda: self.settings.queue_length
        self.telemetry.processes = self._processes
        self.clock = clock
        self.drain = Drain()
        self._degrade = self.settings.degrade
        self.health = Health(versions, self.drain, clock, with_smaller=self._degrade not in ("off", "shorter"))
        self.open: set[Call] = set()
        self.admissions: WeakKeyDictionary[Version, Admission] = WeakKeyDictionary()
        self.limits = {
            k.name: KeyLimits(k, clock()) for k in self.keys.keys if k.requests_per_minute or k.tokens_per_minute
        }
        places = self.settings.max_num_seqs + self.settings.queue_length
        self.encoding = Admission(1, places, places + 1, clock, ENCODING_S)
        self.timeouts = Timeouts(self.telemetry, self.settings.timeout, clock)
        self._stop_watching: Callable[[], None] = lambda: None

    @property
    def num_waiting(self) -> int:
        """How many prompts wait for a place in an engine, over all versions."""
        return sum(admission.num_waiting for admission in self.admissions.values())

    def status(self) -> dict[str, Any]:
        """For the readiness check."""
        state = "ready" if self.health.ready else "shutting down" if self.drain.draining else "not ready"
        running = sum(admission.num_running for admission in self.admissions.values())
        counts = {"running": running, "waiting": self.num_waiting}
        return {"status": state, "default_timeout_s": round(self.timeouts.default(), 3), **counts}

    def begin(self, request: Request, model: str, timeout: float | None = None, degrade: bool = True) -> Call:
        """Let a request in. Raises ApiError: 503 while the server ends or loads and when its engine has failed, 404 for
        a model there isn't.

        degrade: whether a smaller model may take it, where the operator allows that; not when it names a version.
        """
        if self.drain.draining:
            raise shutting_down()
        seconds = self.timeouts.of(timeout)
        state, now = request.state, self.clock()
        request_id = getattr(state, "request_id", None) or request_id_from(None)
        version, degraded = self._pick(model, request_id, degrade)
        if version.engine.state == "failed":
            raise engine_failed()
        arrived = getattr(state, "arrived", now)
        route = getattr(request.scope.get("route"), "path", "other")
        trace = self.telemetry.begin(request_id, route, arrived)
        deadline = Deadline.after(seconds, arrived)
        key, address = getattr(state, "key", ANYONE), request.scope.get("client")
        caller = address[0] if key is ANYONE and address else key.name
        call = Call(request_id, key, caller, version, deadline, seconds, trace, degraded)
        trace.model, trace.version, trace.key = version.model, version.name, call.key.name
        call.timer = asyncio.get_running_loop().call_later(deadline.remaining(now), self._expire, call)
        self.drain.enter()
        version.enter()
        self.open.add(call)
        state.call = call
        return call

    def admit(
        self, call: Call, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], any_length: bool = False
    ) -> list[SamplingParams]:
        """Charge the key for all prompts of a request, and return their parameters as they will be honoured.

        any_length: the request doesn't say how long an answer may be, so it may be as long as the key's limit allows.
        Raises ValueError for a prompt that can't be served, and ApiError 429 when the key has used up its tokens.
        """
        engine, limits = call.version.engine, self.limits.get(call.key.name)
        params = [engine.check(ids, one) for ids, one in zip(prompts, params, strict=True)]
        if self._degrade == "shorter" and overloaded(self.admission_of(call.version)):
            shorter = [shortened(one) for one in params]
            if shorter != params:
                params, call.degraded["max_tokens"] = shorter, str(SHORT_TOKENS)
        call.trace.n, num_prompt = sum(one.n for one in params), sum(map(len, prompts))
        if limits is not None:
            params = limits.shortened(params, num_prompt) if any_length else params
            tokens = num_prompt + sum(one.n * one.max_tokens for one in params)
            if (refusal := limits.take_tokens(tokens, self.clock())) is not None:
                raise refusal
            call.charged = tokens
        return params

    async def outputs(self, call: Call, prompt_ids: Sequence[int], params: SamplingParams) -> Run:
        """The outputs of one prompt that was admitted, once it has its place in the engine.

        Raises ApiError: 429 when too many wait, 503 when its turn doesn't come before its deadline, or the engine
        doesn't come back. Reading raises 504 when the deadline passes, and 503 at the server's end.
        """
        admission, run = self.admission_of(call.version), Run(call)

        async def start() -> None:
            if (refusal := hopeless(admission, call.deadline.remaining(self.clock()))) is not None:
                raise refusal
            if call.trace.queued is None:  # of several prompts the first counts, as it does for what comes after
                call.trace.queued = self.clock()
            run.place = await admission.acquire(call.caller, call.deadline, params.n, call.key.max_waiting)
            await call.version.engine.until_ready(call.deadline)
            run.start(prompt_ids, params)

        call.runs.append(run)
        try:
            await unless_failed(call, start())
            return run
        except BaseException:
            run.close()
            call.runs.remove(run)
            raise

    async def encode(self, call: Call, work: Callable[[], T]) -> T:
        """The result of slow work on a request's text, done in a thread: one piece at a time, and keys take turns.

        Raises what `outputs` does, and what the work raises.
        """
        admission = self.admission_of(call.version)
        if (refusal := full(admission, call)) is not None:
            raise busy(refusal, refusal.retry_after_s)  # it would be for nothing

        async def done() -> T:
            try:
                place = await self.encoding.acquire(call.caller, call.deadline)
            except Busy:  # after their texts, all of them have their answers to wait for
                waiting = self.encoding.num_waiting
                raise Busy(f"{waiting} requests wait already", admission.retry_after(waiting)) from None
            task = asyncio.ensure_future(in_thread(work))
            # Work that has begun can't be stopped: a caller who leaves must not let the next piece begin beside it.
            task.add_done_callback(lambda _: place.release())
            return await asyncio.shield(task)

        return await unless_failed(call, done())

    def end(self, call: Call, status: int, error: str = "") -> None:
        """Close the books on a request; a second time nothing happens. error: the code of what ended it."""
        if call.done:
            return
        call.close()
        limits = self.limits.get(call.key.name)
        if limits is not None:
            limits.give_back(call.charged - call.trace.prompt_tokens - call.trace.output_tokens)
        if status in REFUSED:
            self.telemetry.refused(error)
        call.trace.status, call.trace.error = status, "timeout" if error == "deadline_passed" else error
        call.trace.degraded = "model" if "model" in call.degraded else "shorter" if call.degraded else ""
        self.telemetry.finish(call.trace)
        call.version.leave(call.trace.output_tokens)
        self.open.discard(call)
        self.drain.leave()

    def admission_of(self, version: Version) -> Admission:
        """The queue for a version's engine: as many requests run as it can compute at a time."""
        if version not in self.admissions:
            limits = version.engine.limits
            running = limits.max_num_seqs if limits is not None else self.settings.max_num_seqs
            waiting = self.settings.queue_length
            self.admissions[version] = Admission(running, waiting, waiting + 1, self.clock)  # of one caller: all of it
        return self.admissions[version]

    async def start(self) -> None:
        """Load the model, and a smaller one where settings.degrade names it. Returns when the first is ready.

        Raises EngineFailed when it won't be."""
        assert self.settings.model is not None
        self._stop_watching = self.telemetry.watch_gc()
        version = self.versions.load(self.settings.model, name="v1")
        self.health.model = version.model
        assert version.settled is not None
        await version.settled
        if version.state != "ready":
            raise version.failure if isinstance(version.failure, EngineFailed) else EngineFailed(version.error)
        if self._degrade not in ("off", "shorter"):
            self.versions.load(Path(self._degrade), name=SMALLER)

    async def stop(self, grace_s: float) -> None:
        """Let nobody in any more, give those who are in grace_s seconds, end the rest, and stop the engines."""
        if not await self.drain.wait(grace_s):
            for call in list(self.open):
                call.fail(shutting_down())
            end = self.clock() + LAST_WORDS_S
            while self.open and self.clock() < end:
                await asyncio.sleep(0.01)
        await self.versions.stop()
        self._stop_watching()

    def hurry(self) -> None:
        """Have `stop` wait no longer. It may be called before `stop`."""
        self.drain.hurry()

    def _processes(self) -> dict[str, int]:
        """Those whose memory is to be watched."""
        engines = {f"engine-{version.name}": getattr(version.engine, "pid", None) for version in self.versions.list()}
        return {"api": os.getpid(), **{name: pid for name, pid in engines.items() if pid is not None}}

    def _pick(self, model: str, request_id: str, degrade: bool) -> tuple[Version, dict[str, str]]:
        """Who answers, and what is less for it: a smaller model, where there is one and it takes as long a prompt."""
        version = self.versions.pick(model, request_id)
        degrade = degrade and self._degrade not in ("off", "shorter") and model == version.model
        if not degrade or not (version.engine.state == "failed" or overloaded(self.admission_of(version))):
            return version, {}
        other = smaller_than(version, self.versions)
        return (version, {}) if other is None else (other, {"model": other.model})

    def _expire(self, call: Call) -> None:
        """Its deadline has come."""
        there = call.version.engine.state != "restarting"
        call.fail(too_late(call) if call.begun and there else no_turn(call))
