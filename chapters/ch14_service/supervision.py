# Yours to finish. Generated from shared/serving/engines/supervision.py (version cfaa07383a2c).
"""When an engine process is replaced, how soon, and when it's given up. Decisions alone; the clock is the caller's."""

from chapters import Todo
from dataclasses import dataclass


@dataclass
class RestartPolicy:
    """How long to wait before an engine that has exited is started again.

    first_s: the wait after a second exit in a row; each further one waits twice as long, up to longest_s. max_exits: so
    many in a row, and it's given up. settled_s: an engine that has been ready for so long was sound, whatever ends it,
    and exits are counted anew. All times are seconds on one clock. Raises ValueError that names the setting.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    max_exits: int = 5
    settled_s: float = 3.0

    def __post_init__(self) -> None:
        if type(self.max_exits) is not int or not 1 <= self.max_exits <= 1000:
            raise ValueError(f"max_exits must be a whole number from 1 to 1000, not {self.max_exits!r}")
        for name in ("first_s", "longest_s", "settled_s"):
            if not getattr(self, name) >= 0:  # NaN isn't, either
                raise ValueError(f"{name} must be a number of seconds from 0 on, not {getattr(self, name)!r}")
        self.num_exits = 0  # in a row
        self._ready_at: float | None = None  # of the engine that runs now

    def on_ready(self, now: float) -> None:
        """The engine has loaded, and takes requests."""
        self._ready_at = now

    def on_exit(self, now: float) -> float | None:
        """The engine has exited. Returns the seconds after which to start another, or None: give up.

        The first exit in a row waits for nothing, the second for first_s, the third for twice that, and so on; the
        max_exits-th gives up.

        >>> policy = RestartPolicy(first_s=0.5, longest_s=3.0, max_exits=6)
        >>> [policy.on_exit(now) for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
        [0.0, 0.5, 1.0, 2.0, 3.0, None]
        """
        # exercise 14.9: was it settled? then the count begins anew. One more; too many; none, or first_s doubled
        #   the engine that has exited isn't ready any more: self._ready_at is the next one's
        raise Todo("14.9")
        # end


class Watch:
    """Tells an engine that hangs from one that is busy, whose answers to pings may come late, and whose steps end.

    ping_s: how often it is pinged. hung_after_s: a ping may be unanswered for so long, if no step ends meanwhile.
    """

    def __init__(self, ping_s: float, hung_after_s: float, now: float) -> None:
        self.ping_s, self.hung_after_s = ping_s, hung_after_s
        self._sent_at: float | None = None  # the first ping since the engine was last heard of
        self._pinged_at = now
        self._looked_at = now

    def ping_due(self, now: float) -> bool:
        """Whether ping_s seconds have passed since the last ping was sent."""
        return now - self._pinged_at >= self.ping_s

    def on_sent(self, now: float) -> None:
        """A ping was sent."""
        self._pinged_at = now
        if self._sent_at is None:
            self._sent_at = now

    def on_pong(self, now: float) -> None:
        """A ping was answered: no question is open any more."""
        self._sent_at = None

    def on_step(self, now: float) -> None:
        """A step has ended: the engine is busy, and the question can wait. The time for an answer begins anew."""
        if self._sent_at is not None:
            self._sent_at = now

    def is_hung(self, now: float) -> bool:
        """Whether a ping has been open for longer than hung_after_s. To be asked every ping_s or so.

        Whoever wasn't asked for longer than hung_after_s was asleep itself (a suspended machine, a blocked event loop):
        the answer may lie there unread. Then the engine is given its time anew.
        """
        # exercise 14.10: how long since the last look? Whoever slept lets the open ping count from now. Then judge
        raise Todo("14.10")
        # end
