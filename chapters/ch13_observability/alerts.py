# Yours to finish. Generated from shared/observability/alerts.py (version 5069ffe1629a).
"""When a condition becomes an alert, as in a Prometheus rule with `for`."""

from chapters import Todo
from typing import Literal

AlertState = Literal["inactive", "pending", "firing"]


class Alert:
    """One rule. for_s: how long its condition must hold without a break before anybody is woken, 0 or more seconds."""

    def __init__(self, for_s: float) -> None:
        if not for_s >= 0:
            raise ValueError(f"for_s must be at least 0 seconds, not {for_s!r}")
        self.for_s = for_s
        self.state: AlertState = "inactive"
        self.since: float | None = None  # when the condition began to hold; None while it doesn't

    def update(self, holds: bool, now: float) -> AlertState:
        """Tell it whether the condition holds now; returns the new state, and keeps it in `state`.

        "pending" from the first evaluation at which the condition holds, "firing" from the one at which it has held for
        for_s seconds (at once for 0), "inactive" as soon as it doesn't hold. A break starts the time anew.

        for_s 60; holds at 0, 30, 60 and 90 s, and no longer at 120 s: pending, pending, firing, firing, inactive.
        """
        # exercise 13.12: keep in self.since when the condition began to hold, and derive the state from it
        raise Todo("13.12")
        # end


def burn_rate(bad: float, total: float, objective: float) -> float:
    """How many times faster than allowed the errors come. objective: the share that must succeed, such as 0.999.

    At 1 the allowance for a month lasts a month; at 14.4 a fiftieth of it is gone within an hour (Google's SRE
    workbook, chapter 5). 0 without requests. Raises ValueError for an objective that isn't between 0 and 1.

    >>> burn_rate(bad=2, total=100, objective=0.99)
    2.0
    """
    if not 0 < objective < 1:
        raise ValueError(f"objective must be between 0 and 1, such as 0.999, not {objective!r}")
    return bad / total / (1 - objective) if total else 0.0
