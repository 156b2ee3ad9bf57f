"""What the server needs of whatever keeps the replicas of an engine: Ray (ray_replicas.py), or a test."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.inference.outputs import RequestOutput
from shared.observability.trace import StepStats
from shared.serving.engines.engine import EngineLimits
from shared.serving.engines.resume import Resubmission


class ReplicaLost(RuntimeError):
    """The replica that computed an answer is gone; another can go on with it."""


@dataclass(frozen=True)
class Piece:
    """A replica's output. started_s, cached_tokens: with the first one, how long ago the first step with some of the
    request began, and how many of its tokens the prefix cache had."""

    output: RequestOutput
    started_s: float | None = None
    cached_tokens: int = 0


class Replicas(Protocol):
    """Copies of one engine."""

    async def start(self) -> EngineLimits:
        """Returns the limits of each when all are ready. Raises EngineFailed."""

    async def stop(self) -> None:
        """End them all."""

    def ask(self, request: Resubmission) -> AsyncGenerator[Piece, None]:
        """One answer, from one of them; waits while there is none. Closing it aborts the request. Raises ReplicaLost,
        and GenerationError when the request itself fails."""

    async def steps(self) -> Mapping[str, Sequence[StepStats]]:
        """Each living replica's name, and the steps it has made since it was last asked."""

    async def block_maps(self) -> Sequence[bytes]:
        """Each living replica's blocks, as Engine.block_map has them."""
