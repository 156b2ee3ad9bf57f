"""Exercise 14.6: judged by numbers."""

import pytest

from chapters.ch14_service import deadline
from chapters.judge import NO_RESULT, exercise, expect, expect_equal
from tests.ch14_service.scenes import survives


def timeout(p99_s: float | None, n: int) -> float:
    with survives("a timeout is needed from the first request on, when nothing has been measured yet"):
        got = deadline.default_timeout(p99_s, n)
    expect(got is not None, because=NO_RESULT)
    return got


@exercise("14.6")
def test_three_times():
    got = timeout(50.0, 500)
    causes = {
        50.0: "one in a hundred takes longer than the 99th percentile: as a timeout it cuts all of those",
        100.0: "the book takes three times the percentile; with twice, the slow ones of a busy minute are cut",
        30.0: "the percentile, 50 s, tripled is 150; 30 is the least, and not the most",
        300.0: "500 requests were measured: that is enough to go by",
        600.0: "600 is the most, and three times 50 is below it: minimum and maximum are the wrong way round",
    }
    expect_equal(got, 150.0, because=causes.get(got, "three times the 99th percentile"))
    expect_equal(timeout(50.5, 500), 151.5, because="three times the 99th percentile, not rounded")


@exercise("14.6")
def test_the_two_ends():
    expect_equal(
        timeout(0.5, 500),
        30.0,
        because="never less than SHORTEST_S: after an hour of short questions, the first long one would be cut",
    )
    expect_equal(
        timeout(1000.0, 500),
        600.0,
        because="never more than LONGEST_S: when everything is slow, a timeout that grows with it protects nobody",
    )
    expect_equal(timeout(10.0, 500), 30.0, because="three times 10 is exactly the least")
    expect_equal(timeout(200.0, 500), 600.0, because="three times 200 is exactly the most")
    expect_equal(timeout(12.0, 500), 36.0, because="the bounds are for the timeout, and not for the percentile")
    expect_equal(
        timeout(0.0, 500), 30.0, because="a percentile of 0 s is a measurement like others, and not a missing one"
    )


@exercise("14.6")
def test_when_little_is_known():
    expect_equal(timeout(None, 0), 300.0, because="nothing was measured: UNKNOWN_S")
    expect_equal(
        timeout(20.0, 5),
        300.0,
        because="of five requests the 99th percentile is the slowest of five, by chance anything: below ENOUGH it's "
        "UNKNOWN_S",
    )
    expect_equal(timeout(20.0, 99), 300.0, because="99 are fewer than ENOUGH")
    expect_equal(timeout(20.0, 100), 60.0, because="100 are enough: fewer than ENOUGH aren't")
    expect_equal(
        timeout(0.5, 5), 300.0, because="too few were measured, so it's UNKNOWN_S, however fast those five were"
    )
    expect_equal(
        timeout(200.0, 5), 300.0, because="too few were measured, so it's UNKNOWN_S, however slow those five were"
    )
    expect_equal(timeout(None, 1000), 300.0, because="without a percentile there is nothing to multiply")


@exercise("14.6")
def test_the_bounds_are_settings(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"ENOUGH": 10, "SHORTEST_S": 1.0, "LONGEST_S": 9.0, "UNKNOWN_S": 4.0}.items():
        monkeypatch.setattr(deadline, name, value)
    got = [timeout(None, 0), timeout(1.0, 9), timeout(0.1, 10), timeout(2.0, 10), timeout(5.0, 10)]
    expect_equal(
        got,
        [4.0, 4.0, 1.0, 6.0, 9.0],
        because="the module's constants were changed (ENOUGH 10, SHORTEST_S 1, LONGEST_S 9, UNKNOWN_S 4): "
        "use their names",
    )


@exercise("14.6")
def test_what_is_unknown_has_no_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadline, "UNKNOWN_S", 1000.0)
    expect_equal(
        [timeout(None, 0), timeout(20.0, 5)],
        [1000.0, 1000.0],
        because="UNKNOWN_S was set to 1000: it's used as it is; the two ends are for what was measured",
    )
