"""Exercises 14.1 and 14.2: judged by small numbers, and by a bucket that drips one tick at a time."""

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from chapters.ch14_service import token_bucket
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch14_service.scenes import survives


def bucket(level: float = 2.0, rate: float = 2.0, burst: float = 10.0, at: float = 100.0) -> token_bucket.TokenBucket:
    """A bucket that had so many tokens at this time, without a call of take."""
    made = token_bucket.TokenBucket(rate, burst, at)
    made._level = level
    return made


def remaining(which: token_bucket.TokenBucket, now: float) -> float:
    with survives("how much is left can be asked at any time"):
        got = which.remaining(now)
    expect(got is not None, because=NO_RESULT)
    return got


# 14.1 remaining


@exercise("14.1")
def test_the_example():
    causes = {
        2.0: "nothing has come back: 2 were there at 100, and in the 1.5 s since then 2 a second came",
        3.0: "this is only what has come back, 1.5 s at 2 a second; 2 were there before",
        3.5: "a second brings `rate` tokens, here 2, and not one",
        2.75: "the rate is in tokens a second: multiply the seconds by it",
        2.05: "the rate is in tokens a second, and not a minute",
        10.0: "2 tokens and 1.5 s at 2 a second don't fill a bucket of 10",
        203.0: "only the time since the level was last written down counts, not all the time since the clock began",
        205.0: "only the time since the level was last written down counts, not all the time since the clock began",
    }
    got = remaining(bucket(), now=101.5)
    expect_equal(got, 5.0, because=causes.get(got, "2 were there, and 1.5 s brought 2 each: 2 + 1.5 * 2"))
    expect_equal(remaining(bucket(level=7.0), now=100.0), 7.0, because="no time has passed, so nothing has come back")


@exercise("14.1")
def test_never_above_the_burst():
    expect_equal(
        remaining(bucket(), now=200.0),
        10.0,
        because="a bucket of 10 holds 10, however long nobody came; without that, whoever was away for a night may "
        "send a night's requests at once in the morning",
    )
    expect_equal(
        remaining(bucket(burst=4.0), now=200.0), 4.0, because="the bound is the burst this bucket was made with"
    )
    expect_equal(remaining(bucket(burst=4.0), now=101.0), 4.0, because="2 and 2 fill a bucket of 4 to the brim")


@exercise("14.1")
def test_parts_of_tokens_count():
    got = remaining(bucket(level=0.0, rate=0.5, at=0.0), now=0.5)
    expect_equal(
        got,
        0.25,
        because="parts of a token count. Rounded away at each question, a bucket that is asked often never fills",
    )


@exercise("14.1")
def test_a_clock_that_goes_back():
    expect_equal(
        remaining(bucket(), now=97.0),
        2.0,
        because="the clock went back by 3 s. No time has passed, and nothing may be taken away for it",
    )


@exercise("14.1")
def test_asking_changes_nothing():
    which = bucket()
    first, second = remaining(which, now=101.5), remaining(which, now=101.5)
    expect_equal(first, 5.0, because="2 were there, and 1.5 s brought 2 each")
    expect_equal(
        second,
        5.0,
        because="asked twice at the same moment, it says two different things: the seconds since the last take were "
        "counted twice. A level that is written down needs the time it was written down at, and here neither is needed",
    )
    remaining(which, now=150.0)
    expect_equal(
        remaining(which, now=101.5),
        5.0,
        because="whoever asks what there will be at 150 s changes nothing: only take and give_back change the bucket",
    )


@exercise("14.1")
@settings(max_examples=40, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(
    level=st.integers(0, 40),
    rate=st.integers(1, 12),
    more=st.integers(1, 40),
    ticks=st.lists(st.integers(0, 9), max_size=6),
)
def test_like_a_bucket_that_drips(level, rate, more, ticks):
    """Fractions, an eighth of a second at a time."""
    burst = level + more
    which, at, drips = bucket(level / 4, rate / 4, burst / 4, at=0.0), 0, Fraction(level, 4)
    for tick in ticks:
        at += tick
        for _ in range(tick):
            drips = min(drips + Fraction(rate, 32), Fraction(burst, 4))
        expect_equal(
            remaining(which, now=at / 8),
            float(drips),
            because=f"rate {rate / 4}, burst {burst / 4}, {level / 4} at the start: dripping an eighth of a second at "
            f"a time, there is another amount after {at / 8} s",
        )


# 14.2 take


class Refilled(token_bucket.TokenBucket):
    """With a remaining of the test's own, so that only take is judged."""

    def remaining(self, now: float) -> float:
        return min(self.burst, self._level + self.rate * max(0.0, now - self._at))


def full(rate: float = 2.0, burst: float = 10.0, at: float = 100.0) -> Refilled:
    return Refilled(rate, burst, at)


def take(which: token_bucket.TokenBucket, n: float, now: float) -> float:
    with survives("taking works at any time, for any number"):
        got = which.take(n, now)
    expect(got is not None, because=f"{NO_RESULT}; 0.0 says that the tokens were taken")
    expect(
        isinstance(got, float | int) and not isinstance(got, bool),
        because=f"take returns seconds, and not {got!r}: 0.0 when the tokens were taken, or else how long to wait",
    )
    return got


@exercise("14.2")
def test_take_or_come_back():
    which = full()
    expect_equal(take(which, 10, 100.0), 0.0, because="the bucket is full at first, and its whole burst may be taken")
    expect_equal(
        which.remaining(100.0),
        0.0,
        because="take said 0.0, all ten were taken, and they are still there. Exactly what is there can be had: it's "
        "written down as taken",
    )
    got = take(which, 3, 100.5)
    causes = {
        0.0: "only one token is there after half a second, and three were asked for",
        1.5: "one of the three is there already; only what is missing has to come back",
        2.0: "two are missing, and they come at 2 a second: divide by the rate",
        4.0: "two are missing, and they come at 2 a second: divide by the rate",
        0.5: "this is how long it took for what is there; what is missing takes 2 / 2 s",
        -1.0: "seconds until the tokens can be had, a positive number: what is asked for less what is there",
    }
    expect_equal(got, 1.0, because=causes.get(got, "one is there, two are missing, at 2 a second: 1 s"))
    expect_equal(
        take(which, 3, 101.5),
        0.0,
        because="whoever comes back after the second it was told gets its three. Nothing was taken from it before, and "
        "nothing that has come back since may be lost",
    )
    left = which.remaining(101.5)
    stale = "self._level is what there was at the time of the take before: take off what there is now, remaining(now)"
    fresh = (
        "three were there and three were taken. The level is written down with its time: else what came back before "
    )
    expect_equal(left, 0.0, because=stale if left < 0 else fresh + "counts again")


@exercise("14.2")
def test_whoever_is_refused_takes_nothing():
    which = full()
    take(which, 10, 100.0)
    for _ in range(5):
        take(which, 4, 101.0)
    expect_equal(
        which.remaining(101.0),
        2.0,
        because="five were refused, and the bucket should still have its two: a refusal takes nothing, part or whole",
    )
    expect_equal(
        take(which, 2, 101.0), 0.0, because="another may have the two that are there, whoever was refused before"
    )


@exercise("14.2")
def test_what_was_taken_is_gone():
    which = full()
    expect_equal(take(which, 6, 100.0), 0.0, because="six of ten can be taken")
    expect_equal(which.remaining(100.0), 4.0, because="six of ten were taken, and four should be left")
    expect(take(which, 6, 100.0) == 1.0, because="six were taken; of another six, two are missing: 1 s")


@exercise("14.2")
def test_time_counts_once():
    which = full()
    take(which, 10, 100.0)
    take(which, 1, 102.0)  # 4 came back
    expect_equal(
        which.remaining(103.0),
        5.0,
        because="at 102 there were four, one was taken, and a second later there are 3 + 2. The level was written down "
        "at 102, so that is when time begins to count anew",
    )


@exercise("14.2")
def test_more_than_the_burst_can_never_be_had():
    which = full()
    got = take(which, 11, 100.0)
    expect_equal(
        got,
        math.inf,
        because="a bucket of 10 never holds 11: told to come back in half a second, a caller comes back for ever",
    )
    expect_equal(which.remaining(100.0), 10.0, because="and it takes nothing")
    expect_equal(take(which, 10, 100.0), 0.0, because="but exactly the burst can be had")


@exercise("14.2")
def test_parts_and_nothing():
    which = full(rate=0.5, burst=1.0)
    expect_equal(take(which, 0.25, 100.0), 0.0, because="parts of a token can be taken")
    expect_equal(
        take(which, 1, 100.0), 0.5, because="a quarter is missing, at half a token a second: half a second, not rounded"
    )
    expect_equal(take(which, 0.75, 100.0), 0.0, because="exactly what is there can be taken")
    expect_equal(take(which, 0, 100.0), 0.0, because="nothing can always be taken, from an empty bucket too")


@exercise("14.2")
def test_time_is_never_counted_twice():
    which = full()
    take(which, 10, 100.0)
    take(which, 0, 90.0)
    expect_equal(
        which.remaining(100.0),
        0.0,
        because="the clock went back by 10 s and on again, and the ten seconds have counted as if they had passed "
        "twice: the time that is written down may not go back",
    )


@exercise("14.2")
@settings(max_examples=60, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(
    rate=st.integers(1, 8),
    burst=st.integers(1, 12),
    asks=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 14)), max_size=12),
)
def test_the_storm(rate, burst, asks):
    """Against a bucket in fractions that knows when each token comes."""
    which, at, level = full(float(rate), float(burst), at=0.0), 0, Fraction(burst)
    for tick, n in asks:
        at += tick
        level = min(level + Fraction(rate * tick, 4), Fraction(burst))
        want = math.inf if n > burst else float(max(n - level, 0) / rate)
        expect(
            math.isclose(take(which, n, at / 4), want, abs_tol=1e-9),
            because=f"rate {rate}, burst {burst}, {float(level)} there at {at / 4} s: {n} should have given {want}",
        )
        level -= n if want == 0 else 0
