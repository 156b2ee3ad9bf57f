"""An engine whose steps take as long as they are told to, and a service over it: for hours of load in an instant."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shared.inference.async_outputs import Outputs
from shared.inference.outputs import EngineStopped, RequestOutput
from shared.inference.sampling import SamplingParams
from shared.inference.virtual_time import run_virtual
from shared.observability.telemetry import Telemetry
from shared.serving.engines.engine import EngineFailed, EngineLimits
from shared.serving.errors import ApiError
from shared.serving.guard.deadline import within
from shared.serving.guard.keys import Key
from shared.serving.guard.service import ANYONE, Service
from shared.serving.models.versions import Version, Versions

CONTEXT = 1000


class SimulatedEngine:
    """Continuous batching: a step takes step_s(how many run) seconds and gives each of them a token."""

    def __init__(self, max_num_seqs: int = 4, step_s: Callable[[int], float] = lambda running: 0.1) -> None:
        self.limits = EngineLimits(CONTEXT, max_num_seqs, 128, 100, 16, 1, 300, CONTEXT, "none", "cpu", "float32", "v1")
        self.step_s, self.state, self.error = step_s, "ready", ""
        self.on_step, self.on_event = (lambda stats: None), (lambda kind, text: None)
        self.running: dict[str, SimpleNamespace] = {}
        self.started: list[tuple[str, SamplingParams]] = []
        self.back = asyncio.Event()  # set while it is there
        self.back.set()
        self._steps: asyncio.Task | None = None

    def away(self) -> None:
        self.state = "restarting"
        self.back.clear()

    def returns(self, state: str = "ready") -> None:
        self.state = state
        self.back.set()

    async def until_ready(self, deadline) -> None:
        await within(deadline, self.back.wait(), asyncio.get_running_loop().time)
        if self.state == "failed":
            raise EngineFailed("it was given up")

    def check(self, prompt_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> SamplingParams:
        if len(prompt_ids) >= CONTEXT:
            raise ValueError("the prompt is too long")
        return params

    def generate(self, prompt_ids, params, request_id, priority=0, trace=None, on_end=lambda: None) -> Outputs:
        assert len(self.running) < self.limits.max_num_seqs, "given more than it can run"
        self.started.append((request_id, params))
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        self.running[request_id] = SimpleNamespace(left=params.max_tokens, queue=queue, trace=trace, on_end=on_end)
        if self._steps is None or self._steps.done():
            self._steps = asyncio.ensure_future(self._run())
        return Outputs(queue, params.n, lambda: self.abort(request_id), loop)

    async def _run(self) -> None:
        while self.running:
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(self.step_s(len(self.running)))
            await self.back.wait()
            for request_id, request in list(self.running.items()):
                if request.trace.started is None:
                    request.trace.started = max(began, request.trace.queued)
                request.left -= 1
                request.trace.output_tokens += 1
                if request.trace.first_token is None:
                    request.trace.first_token = asyncio.get_running_loop().time()
                self._put(request_id, RequestOutput("x", [120], None if request.left else "length"))

    def _put(self, request_id: str, output: RequestOutput | Exception) -> None:
        request = self.running[request_id]
        request.queue.put_nowait(output)
        if isinstance(output, Exception) or output.finish_reason is not None:
            del self.running[request_id]
            request.on_end()

    def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self._put(request_id, RequestOutput("", [], "abort"))

    async def stop(self) -> None:
        self.state = "stopped"
        for request_id in list(self.running):
            self._put(request_id, EngineStopped("the engine was stopped"))


def service_over(*engines: SimulatedEngine, **settings: Any) -> Service:
    """To be called on the virtual loop. The first engine's model is "big", the second's "small"."""
    clock, telemetry = asyncio.get_running_loop().time, Telemetry(clock=asyncio.get_running_loop().time)
    versions = Versions(lambda path, name: engines[0], telemetry=telemetry)
    for engine, model, name in zip(engines, ("big", "small"), ("v1", "smaller"), strict=False):
        versions.add(Version(name, model, Path(model), engine, state="ready"))
    return Service(versions, telemetry, clock=clock, **settings)


def request(key: Key = ANYONE, request_id: str = "id", address: str = "") -> Any:
    """What begin wants of a request."""
    state = SimpleNamespace(key=key, request_id=request_id, arrived=asyncio.get_running_loop().time())
    return SimpleNamespace(
        state=state,
        scope={"route": SimpleNamespace(path="/v1/chat/completions"), "client": (address, 1) if address else None},
    )


async def ask(
    service: Service,
    tokens: int,
    key: Key = ANYONE,
    timeout: float | None = None,
    model: str = "big",
    address: str = "",
) -> Any:
    """One request from begin to end, as a route would. Returns its call, with `status` and `text`."""
    try:
        call = service.begin(request(key, address=address), model, timeout)
    except ApiError as error:
        return SimpleNamespace(status=error.status, error=error, text="")
    call.status, call.error, call.text = 200, None, ""
    try:
        [params] = service.admit(call, [[1] * 5], [SamplingParams(max_tokens=tokens)])
        run = await service.outputs(call, [1] * 5, params)
        async for output in run:
            call.text += output.text
    except ApiError as error:
        call.status, call.error = error.status, error
    except asyncio.CancelledError:
        call.status = 499
        raise
    finally:
        service.end(call, call.status, call.error.code if call.error else "")
    return call


def virtual(test: Callable[..., Coroutine]) -> Callable[..., None]:
    """A test on the virtual clock."""

    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def tasks(*jobs) -> list[asyncio.Task]:
    return [asyncio.ensure_future(job) for job in jobs]


def nothing_left(service, *engines) -> None:
    """After all have been answered."""
    assert not service.open
    assert service.drain.num_open == 0
    assert not service.telemetry.open
    for admission in service.admissions.values():
        assert (admission.num_running, admission.num_waiting) == (0, 0)
    for version in service.versions.list():
        assert version.num_open == 0
    for engine in engines:
        assert not engine.running


def counted(service, name: str, **labels: str) -> float:
    return service.telemetry.metrics.registry.get_sample_value(name, labels) or 0.0
