"""One request while it is served, and the outputs of its prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from shared.inference.outputs import RequestOutput
from shared.inference.sampling import SamplingParams
from shared.observability.trace import RequestTrace
from shared.serving.errors import ApiError
from shared.serving.guard.admission import Place
from shared.serving.guard.deadline import Deadline
from shared.serving.guard.keys import Key
from shared.serving.models.version import Version


@dataclass(eq=False)
class Call:
    """One request, from Service.begin to Service.end.

    caller: who takes turns with others; see Service. degraded: what was made less of, and to what; empty when nothing
    was. failure: why it was ended from outside. waiting: the tasks that wait for a place. charged: so many of the key's
    tokens a minute.
    """

    request_id: str
    key: Key
    caller: str
    version: Version
    deadline: Deadline
    timeout_s: float
    trace: RequestTrace
    degraded: dict[str, str] = field(default_factory=dict)
    failure: ApiError | None = None
    runs: "list[Run]" = field(default_factory=list)
    waiting: set[asyncio.Task[Any]] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    charged: int = 0
    done: bool = False

    def headers(self) -> dict[str, str]:
        """What the answer's head says: how many seconds it might take, and what was made less of."""
        headers = {"X-Timeout": f"{self.timeout_s:.3f}".rstrip("0").rstrip(".")}
        if self.degraded:
            headers["X-Degraded"] = ", ".join(f"{name}={value}" for name, value in self.degraded.items())
        return headers

    @property
    def begun(self) -> bool:
        """Whether the engine has computed anything of it."""
        return self.trace.started is not None

    @property
    def handed_over(self) -> bool:
        """Whether the engine has any of it."""
        return any(run.started for run in self.runs)

    def fail(self, failure: ApiError) -> None:
        """End it from outside: whoever waits for it or reads on gets `failure`."""
        self.failure = self.failure or failure
        for task in self.waiting:
            task.cancel()
        for run in self.runs:
            run.abort()

    def close(self) -> None:
        """It has ended: no timer may end it again, and its engine works on nothing of it."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        for run in self.runs:
            run.close()


class Run(AsyncIterator[RequestOutput]):
    """The outputs of one prompt. Its place is free again when the engine is done, however slowly they are read."""

    def __init__(self, call: Call) -> None:
        self.id = uuid4().hex  # in the engine: the caller's own id need not be unique
        self.place: Place | None = None
        self.started = self.ended = False
        self._call = call
        self._outputs: AsyncIterator[RequestOutput] | None = None

    def start(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Hand it to the engine. Raises what Engine.generate raises."""
        engine, trace = self._call.version.engine, self._call.trace
        self._outputs = engine.generate(prompt_ids, params, self.id, trace=trace, on_end=self.on_end)
        self.started = True
        trace.prompt_tokens += len(prompt_ids)

    def on_end(self) -> None:
        """The engine is done with it."""
        self.ended = True
        if self.place is not None:
            self.place.release()

    def abort(self) -> None:
        """Have the engine drop it, if it is there."""
        if self.started and not self.ended:
            self._call.version.engine.abort(self.id)

    def close(self) -> None:
        """Nobody reads on."""
        self.abort()
        self.on_end()

    async def __anext__(self) -> RequestOutput:
        if self._outputs is None:
            raise StopAsyncIteration
        output = await anext(self._outputs)
        if output.finish_reason == "abort" and self._call.failure is not None:
            raise self._call.failure
        return output

    async def aclose(self) -> None:
        """What an async generator has, for who reads to a point and stops."""
        self.close()
