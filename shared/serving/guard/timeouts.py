"""How long a request may take: what it says itself, within bounds, or what is usual here."""

from collections.abc import Callable

from shared.observability.telemetry import Telemetry
from shared.serving.errors import bad_value
from shared.serving.guard.deadline import default_timeout

MAX_TIMEOUT_S = 600.0
MEASURE_EVERY_S = 1.0  # how often the default is worked out anew


class Timeouts:
    """fixed: the operator's default; None: three times the measured P99. clock: in seconds."""

    def __init__(self, telemetry: Telemetry, fixed: float | None, clock: Callable[[], float]) -> None:
        self._telemetry, self._fixed, self._clock = telemetry, fixed, clock
        self._default, self._until = 0.0, float("-inf")

    def default(self) -> float:
        """How many seconds a request may take that doesn't say."""
        now = self._clock()
        if now >= self._until:
            telemetry = self._telemetry
            measured = default_timeout(telemetry.p99_s(), telemetry.num_measured)
            self._default, self._until = self._fixed or measured, now + MEASURE_EVERY_S
            telemetry.metrics.default_timeout.set(self._default)
        return self._default

    def of(self, asked: float | None) -> float:
        """How many seconds a request may take that says this. Raises ApiError 400."""
        if asked is not None and not 0 < asked <= MAX_TIMEOUT_S:
            raise bad_value("timeout", f"must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds, not {asked:g}")
        return asked or self.default()
