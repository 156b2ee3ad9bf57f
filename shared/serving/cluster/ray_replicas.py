"""Replicas as Ray Serve keeps them: it places them, watches over them, starts a lost one anew and lets one that is to
go finish its work. Ours is what a replica does, and which of them gets which request.

Ray must be installed to import this; cluster.py says so where it isn't. Ray's processes send one another pickles, so
its ports are for a network whose machines all belong to you.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from shared.inference.async_engine import AsyncLLMEngine
from shared.inference.outputs import GenerationError
from shared.observability.trace import RequestTrace, StepStats
from shared.serving.cluster.prefix_router import PrefixRouter
from shared.serving.cluster.replicas import Piece, ReplicaLost
from shared.serving.concurrency import in_thread
from shared.serving.engines.engine import EngineFailed, EngineLimits, ThreadEngine
from shared.serving.engines.load_engine import EngineOptions, load_engine
from shared.serving.engines.resume import Resubmission

HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 2.0, 5.0  # one that doesn't answer three times in a row is replaced
ASKED_TIMEOUT_S = 5.0
STEPS_KEPT = 1000  # of those made since they were last asked for
MAX_ONGOING = 10_000  # at one replica: the service has a bound, and what is open must fit when only one is left


class Replica:
    """One copy of the engine, in a process that Ray starts. Ray calls the methods without an underscore."""

    async def __init__(self, path: str, options: EngineOptions, version: str) -> None:  # type: ignore[misc]  # Ray awaits it
        from shared.data.fallback_tokenizer import load_tokenizer

        engine = load_engine(Path(path), options, version, load_tokenizer(Path(path)))
        self._engine = ThreadEngine(AsyncLLMEngine.over(engine), version)
        self._engine.on_step = self._note
        self._steps: list[StepStats] = []
        await self._engine.start()

    def check_health(self) -> None:
        """Raises when the replica is to be replaced."""
        if self._engine.state == "failed":
            raise RuntimeError(self._engine.error)

    async def limits(self) -> EngineLimits | None:
        """What this copy has room for."""
        return self._engine.limits

    async def steps(self) -> tuple[str, list[StepStats]]:
        """This replica's name, and the steps since the last call."""
        made, self._steps = self._steps, []
        return serve.get_replica_context().replica_tag, made

    async def block_map(self) -> bytes:
        """See Engine.block_map."""
        return await self._engine.block_map()

    async def answer(self, token_ids: list[int], request: Resubmission) -> AsyncIterator[Piece | GenerationError]:
        """One answer. token_ids: the prompt and what there is of the answer, for Router to look at."""
        trace = RequestTrace(request.request_id, "")
        outputs = self._engine.generate(
            request.prompt_ids,
            request.params,
            request.request_id,
            request.priority,
            trace,
            output_ids=request.output_ids,
        )
        first = True
        try:
            async for output in outputs:
                if first and trace.started is not None:
                    yield Piece(output, time.monotonic() - trace.started, trace.cached_tokens)
                else:
                    yield Piece(output)
                first = False
        except GenerationError as error:
            yield error
        finally:
            self._engine.abort(request.request_id)

    def _note(self, stats: StepStats) -> None:
        self._steps = [*self._steps[1 - STEPS_KEPT :], stats]


class Router(RequestRouter):  # type: ignore[misc]
    """Ray Serve's hook for choosing a replica, run in the server's process. PrefixRouter chooses."""

    def initialize_state(self) -> None:
        """Ray calls this where others have __init__."""
        self._prefixes = PrefixRouter([])
        self._loads: dict[str, int] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: the chosen one, and behind it all, in case that one has gone meanwhile."""
        there = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        for name in set(self._prefixes.replicas) - there.keys():
            self._prefixes.remove(name)
            self._loads.pop(name, None)
        for name in there.keys() - set(self._prefixes.replicas):
            self._prefixes.add(name)
        if not there or pending_request is None or not pending_request.args:
            return [candidate_replicas]
        chosen = self._prefixes.pick(pending_request.args[0], self._loads)
        return [[there[chosen]], candidate_replicas]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has one request more to do."""
        self._loads[replica_id.unique_id] = self._loads.get(replica_id.unique_id, 0) + 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has one less; one that is gone is forgotten already."""
        if self._loads.get(replica_id.unique_id):
            self._loads[replica_id.unique_id] -= 1


class RayReplicas:
    """`num_replicas` replicas of one version, as a Ray Serve application of its own: a new version's start beside them,
    and take over when the server gives it the requests. resources: Ray's, such as {"num_cpus": 1}, for each replica.
    drain_s: how long replicas that are to go may finish their work."""

    def __init__(
        self, path: Path, version: str, options: EngineOptions, num_replicas: int, resources: dict[str, float],
        drain_s: float = 30.0,
    ) -> None:  # fmt: skip
        self._name = f"engine-{version}"
        self._app = serve.deployment(
            Replica,
            name="Replica",
            num_replicas=num_replicas,
            ray_actor_options=resources,
            max_ongoing_requests=MAX_ONGOING,
            request_router_config=RequestRouterConfig(request_router_class=f"{__name__}:Router"),
            health_check_period_s=HEALTH_EVERY_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_timeout_s=drain_s,
            max_constructor_retry_count=num_replicas,  # what can't be loaded once can't be loaded
            logging_config={"log_level": "WARNING", "enable_access_log": False},  # every look at the steps is a call
        ).bind(str(path.resolve()), options, version)
        self._handle: DeploymentHandle[Replica] | None = None

    async def start(self) -> EngineLimits:
        """See Replicas. Ray places the replicas, and starts each in a process of its own."""
        try:
            handle = await in_thread(lambda: serve.run(self._app, name=self._name, route_prefix=None))
            limits = await handle.limits.remote()
        except (RayError, RayServeException, RuntimeError) as error:
            raise EngineFailed(f"the replicas can't be started: {await in_thread(self._why) or error}") from error
        assert isinstance(limits, EngineLimits)
        self._handle = handle
        return limits

    def _why(self) -> str:
        """What the last replica that couldn't be started died of: the last line of Ray's report of it."""
        app = serve.status().applications.get(self._name)
        lines = [line.strip() for deployment in (app.deployments.values() if app else ())
                 for line in deployment.message.splitlines() if line.strip()]  # fmt: skip
        return lines[-1] if lines else ""

    async def stop(self) -> None:
        """See Replicas. Returns when they have finished their work."""
        await in_thread(lambda: serve.delete(self._name))  # returns when they have finished their work

    async def ask(self, request: Resubmission) -> AsyncGenerator[Piece, None]:
        """See Replicas. Ray asks Router which of them gets it."""
        assert self._handle is not None
        stream = self._handle.options(stream=True).answer.remote([*request.prompt_ids, *request.output_ids], request)
        try:
            async for piece in stream:
                if isinstance(piece, GenerationError):
                    raise piece
                yield piece
        except (RayError, RayServeException) as error:
            raise ReplicaLost(f"{type(error).__name__}: {error}") from error
        finally:
            stream.cancel()  # at its end this does nothing

    async def steps(self) -> Mapping[str, Sequence[StepStats]]:
        """See Replicas; one that doesn't answer in ASKED_TIMEOUT_S seconds is left out."""
        return dict(await self._all("steps"))

    async def block_maps(self) -> Sequence[bytes]:
        """See Replicas; one that doesn't answer in time is left out."""
        return await self._all("block_map")

    async def _all(self, method: str) -> list[Any]:
        """What all replicas return, but for those that are gone."""
        assert self._handle is not None
        asked = self._handle.broadcast(method)
        results = await asked.results_async(timeout_s=ASKED_TIMEOUT_S, return_exceptions=True)
        return [result for result in results if not isinstance(result, BaseException)]
