"""What those are told who watch from outside: whether to send requests here, or to start the program anew."""

from collections.abc import Callable

from shared.serving.guard.degradation import smaller_than
from shared.serving.guard.drain import Drain
from shared.serving.models.versions import Versions

AWAY_S = 15.0  # so long an engine may be away and the server still be called ready: requests wait for it


class Health:
    """model: the server's own, which most requests name; the first one that serves, where it isn't said. with_smaller:
    a smaller model stands in for one whose engine has failed."""

    def __init__(
        self, versions: Versions, drain: Drain, clock: Callable[[], float], with_smaller: bool = False
    ) -> None:
        self.model: str | None = None
        self._versions, self._drain, self._clock, self._with_smaller = versions, drain, clock, with_smaller
        self._away_since: float | None = None

    @property
    def ready(self) -> bool:
        """Whether a request for the server's own model would be let in now, and may hope for an answer.

        While its engine is being replaced, requests are let in and wait for it: a crash that nobody is to notice. When
        that takes longer than AWAY_S, whoever asks this should send them elsewhere.
        """
        if self._drain.draining:
            return False
        states, now = self._states(), self._clock()
        if "ready" in states or "restarting" not in states:
            self._away_since = None
            return "ready" in states
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since <= AWAY_S

    @property
    def failed(self) -> bool:
        """Whether the engine for the server's own model was given up: a new start of the program may help."""
        return self._states() == {"failed"}

    def _states(self) -> set[str]:
        """Of the engines that a request for the server's own model may get."""
        versions = self._versions
        serving = [version for version in versions.list() if version.name in versions.shares(version.model)]
        own = self.model or (serving[0].model if serving else None)
        serving = [version for version in serving if version.model == own]
        states: set[str] = {version.engine.state for version in serving}
        smaller = smaller_than(serving[0], versions) if self._with_smaller and states == {"failed"} else None
        return states if smaller is None else {smaller.engine.state}
