"""The steps of several replicas, told as those of one engine: sums over those that live, and totals that never fall."""

from collections.abc import Iterable
from dataclasses import replace

from shared.observability.trace import StepStats

TOTALS = ("preemptions", "hit_tokens", "asked_tokens", "generated_tokens")
NOW = ("num_running", "num_waiting", "num_free_blocks", "num_cached_blocks", "num_blocks")


class ReplicaSteps:
    """names: of the replicas there are at the beginning."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._latest: dict[str, StepStats | None] = dict.fromkeys(names)
        self._gone = dict.fromkeys(TOTALS, 0)  # what lost replicas had counted

    @property
    def names(self) -> set[str]:
        """The replicas that live."""
        return set(self._latest)

    @property
    def num_running(self) -> int:
        """How many requests ran in the replicas' latest steps."""
        return sum(stats.num_running for stats in self._latest.values() if stats is not None)

    def arrive(self, name: str) -> None:
        """A replica is there, and has made no step yet."""
        self._latest[name] = None

    def leave(self, name: str) -> None:
        """A replica is gone; what it has counted stays counted."""
        if (last := self._latest.pop(name)) is not None:
            for total in TOTALS:
                self._gone[total] += getattr(last, total)

    def add(self, name: str, stats: StepStats, at: float) -> StepStats:
        """A replica's step as the whole set's, at a time on this process's clock: another machine's is its own."""
        self._latest[name] = stats
        latest = [one for one in self._latest.values() if one is not None]
        sums = {field: sum(getattr(one, field) for one in latest) for field in (*TOTALS, *NOW)}
        return replace(stats, at=at, **(sums | {field: sums[field] + self._gone[field] for field in TOTALS}))
