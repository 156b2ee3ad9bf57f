"""A rate limit: so many a minute on average, and some of them at once."""

import math


class TokenBucket:
    """Holds at most `burst` tokens, which come back at `rate` a second; it starts full, and each use takes some.

    What a token stands for is the caller's business: a request, or a token of text. The clock is the caller's too:
    `now` is in seconds, on one clock for all calls. Raises ValueError for a rate or a burst that isn't above 0, and for
    a number of tokens below 0.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        if not (0 < rate < math.inf and 0 < burst < math.inf):
            raise ValueError(f"rate and burst must be numbers above 0, not {rate!r} and {burst!r}")
        self.rate, self.burst = rate, burst
        self._level, self._at = float(burst), now  # so many tokens there were, at this time

    def remaining(self, now: float) -> float:
        """How many tokens there are now: those of the last time, and what has come back since; never above the burst.

        The bucket itself stays as it is. A clock that has gone back a little brings nothing and takes nothing.

        >>> bucket = TokenBucket(rate=2.0, burst=10.0, now=100.0)
        >>> bucket.take(8, now=100.0), bucket.remaining(now=101.5), bucket.remaining(now=200.0)
        (0.0, 5.0, 10.0)
        """
        # exercise 14.1: self._level were there at self._at; add the rate for the seconds since, up to the burst
        since = max(0.0, now - self._at)
        return min(self.burst, self._level + self.rate * since)
        # end

    def take(self, n: float, now: float) -> float:
        """Take n tokens, all or none. Returns 0.0 when they were taken, or else after how many seconds to come back.

        Nothing is reserved for whoever is sent away. More than the burst can never be had: math.inf. The seconds are
        rounded as all floats are: whoever comes back after exactly so long may find a billionth of a token missing, so
        tell callers a little more (the server's header has whole seconds, rounded up).

        >>> bucket = TokenBucket(rate=2.0, burst=10.0, now=100.0)
        >>> bucket.take(10, now=100.0), bucket.take(3, now=100.5), bucket.take(3, now=101.5), bucket.take(11, now=999.0)
        (0.0, 1.0, 0.0, inf)
        """
        self._check(n)
        # exercise 14.2: see what there is; enough: write down the new level and its time; or how long the rest takes
        if n > self.burst:
            return math.inf
        level = self.remaining(now)
        if n > level:
            return (n - level) / self.rate
        self._level, self._at = level - n, max(now, self._at)
        return 0.0
        # end

    def give_back(self, n: float) -> None:
        """Put back what was taken and not used, up to the burst: an answer was shorter than it might have been."""
        self._check(n)
        self._level = min(self.burst, self._level + n)

    def _check(self, n: float) -> None:
        if not n >= 0:  # NaN isn't, either
            raise ValueError(f"the number of tokens must be from 0 on, not {n!r}")
