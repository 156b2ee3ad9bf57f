"""A Telemetry on a clock that stands still."""

import pytest

from shared.observability.telemetry import Telemetry
from tests.observability.scenes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def telemetry(clock) -> Telemetry:
    return Telemetry(debug=True, cost=3.6, clock=clock)
