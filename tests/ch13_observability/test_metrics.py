"""Exercises 13.1 and 13.2, a counter and a histogram: judged by counts made by hand and by NumPy."""

import numpy as np

from chapters.ch13_observability import metrics as own
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal

# 13.1 Counter.inc


def counted(max_series: int, *events: tuple[float, dict]) -> own.Counter:
    counter = own.Counter("requests_total", "Requests", ("route", "status"), max_series=max_series)
    for amount, labels in events:
        with crash_means("a series that isn't there yet has counted 0 so far", KeyError):
            counter.inc(amount, **labels)
    return counter


@exercise("13.1")
def test_a_series_for_each_combination():
    counter = counted(
        10,
        (1.0, {"route": "/v1", "status": 200}),
        (1.0, {"route": "/v1", "status": 429}),
        (2.5, {"status": 200, "route": "/v1"}),
    )
    expect(
        ("/v1", "200") in counter.series,
        because="the key of a series is the tuple of its label values, in the order of label_names: `values` is that",
    )
    expect_equal(
        counter.series[("/v1", "200")],
        3.5,
        because="the same labels are the same series: add the amount to what it has",
    )
    expect_equal(
        counter.series, {("/v1", "200"): 3.5, ("/v1", "429"): 1.0}, because="each combination counts for itself"
    )


@exercise("13.1")
def test_too_many_go_into_one():
    events = [(1.0, {"route": f"/{k}", "status": 404}) for k in range(50)]
    counter = counted(3, *events)
    expect(
        len(counter.series) <= 4,
        because="whoever may choose a label's value can fill the memory: at most max_series series of their own, "
        f"and one for the others; after 50 paths there are {len(counter.series)}",
    )
    expect_equal(
        sum(counter.series.values()), 50.0, because="every request is counted; only which it was may be forgotten"
    )
    expect(
        ("other", "other") in counter.series,
        because="the others' series has the value OTHER in each of its labels, as many as the counter has",
    )
    expect_equal(
        counter.series,
        {("/0", "404"): 1.0, ("/1", "404"): 1.0, ("/2", "404"): 1.0, ("other", "other"): 47.0},
        because="the first max_series combinations have series of their own, exactly, and whatever is new after them "
        "goes to the others",
    )


@exercise("13.1")
def test_a_known_series_counts_on_when_full():
    events = [(1.0, {"route": f"/{k}", "status": 200}) for k in (0, 1, 2, 3, 0, 1, 4, 0)]
    counter = counted(2, *events)
    expect_equal(
        counter.series,
        {("/0", "200"): 3.0, ("/1", "200"): 2.0, ("other", "other"): 3.0},
        because="a series that is there already counts on, however many there are: only a new one can be too many",
    )


# 13.2 Histogram.observe


def observed(*values: float, bounds: tuple[float, ...] = (1.0, 2.0, 4.0), ids: tuple[str, ...] = ()) -> own.Histogram:
    histogram = own.Histogram("seconds", "Seconds", bounds)
    for position, value in enumerate(values):
        with crash_means("a value above all bounds belongs into the last bucket, which has none", IndexError):
            histogram.observe(value, *ids[position : position + 1])
    return histogram


@exercise("13.2")
def test_one_bucket_for_each_value():
    histogram = observed(0.5, 1.5, 3.0, 5.0, 0.25)
    expect_equal(
        histogram.counts,
        [2, 1, 1, 1],
        because="a value is counted once, in the bucket it falls into; `cumulative` adds them up when somebody asks",
    )


@exercise("13.2")
def test_a_bound_belongs_to_its_bucket():
    expect_equal(
        observed(1.0, 2.0, 4.0).counts,
        [1, 1, 1, 0],
        because="le means less or equal: a value on a bound is in that bound's bucket, and bisect_left finds it",
    )


@exercise("13.2")
def test_the_sum_is_of_values():
    expect_close(
        observed(0.5, 1.5, 6.03125).sum,
        8.03125,
        because="the sum grows by the value itself, so that sum / count is the mean",
    )


@exercise("13.2")
def test_exemplars():
    histogram = observed(0.5, 3.0, 3.5, 0.75, 9.0, 2.5, ids=("a", "b", "c", "", "d", "e"))
    expect_equal(
        histogram.exemplars[2],
        ("e", 2.5),
        because="the latest request of the bucket is its exemplar, as (id, value): neither the first nor the slowest",
    )
    expect_equal(
        histogram.exemplars,
        [("a", 0.5), None, ("e", 2.5), ("d", 9.0)],
        because="each bucket keeps the latest request with an id, as (id, value); one without an id changes nothing",
    )


@exercise("13.2")
def test_against_numpy():
    values = np.random.default_rng(3).lognormal(-1.0, 1.5, 2000)
    bounds = own.LATENCY_BOUNDS
    histogram = observed(*map(float, values), bounds=bounds)
    want = [int((values <= bound).sum()) for bound in bounds] + [len(values)]
    expect_equal(
        histogram.cumulative(), want, because="each cumulative count is the number of values not above its bound"
    )
