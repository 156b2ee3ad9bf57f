"""Exercises 13.1 to 13.4: a counter, a histogram, a quantile out of buckets, and the text of it all."""

import math
from itertools import permutations

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chapters.ch13_observability import metrics as own
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal, no_result

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


# 13.3 histogram_quantile


def estimated(q: float, bounds: tuple[float, ...], cumulative: list[int]) -> float:
    with crash_means(
        "without values there is no quantile (NaN); the bucket without end has no upper bound to interpolate to, and "
        "the first has none below it: 0 stands for that",
        ZeroDivisionError,
        IndexError,
    ):
        counts = list(cumulative)
        got = own.histogram_quantile(q, bounds, counts)
        expect(counts == cumulative, because="the counts are the caller's: they are read, and stay as they are")
        return got


@exercise("13.3")
def test_half_way_up():
    bounds, cumulative = (1.0, 2.0, 4.0), [2, 2, 6, 6]
    expect_close(
        estimated(0.5, bounds, cumulative),
        2.5,
        because="rank 3 is the first of the four values between 2 and 4: a quarter of the way up from 2",
    )
    expect_close(estimated(1.0, bounds, cumulative), 4.0, because="the last of the values is at its bucket's upper end")


@exercise("13.3")
def test_a_rank_between_two_values():
    expect_close(
        estimated(0.75, (1.0, 2.0, 4.0), [2, 2, 6, 6]),
        3.25,
        because="rank 0.75 * 6 = 4.5 is not rounded: it lies two and a half of the four values up from 2",
    )


@exercise("13.3")
def test_the_first_bucket_begins_at_zero():
    expect_close(
        estimated(0.5, (1.0, 2.0), [8, 8, 8]),
        0.5,
        because="below the first bound is 0: half of the values in the first bucket are half of the way up from there",
    )


@exercise("13.3")
def test_a_rank_on_a_bound():
    expect_close(
        estimated(0.5, (1.0, 2.0, 4.0), [4, 4, 8, 8]),
        1.0,
        because="rank 4 is reached in the first bucket, where the cumulative count equals it; empty buckets behind it "
        "have nothing to do with it",
    )


@exercise("13.3")
def test_above_all_bounds():
    expect_close(
        estimated(0.99, (1.0, 2.0), [1, 2, 10]),
        2.0,
        because="of the bucket without end nobody knows how far up it goes; the highest bound is all that can be said",
    )


@exercise("13.3")
def test_no_values():
    got = estimated(0.5, (1.0, 2.0), [0, 0, 0])
    expect(got is not None and math.isnan(got), because=no_result("without any value there is no quantile: NaN, not 0"))


def documented(q: float, bounds: tuple[float, ...], cumulative: list[int]) -> float:
    """The same from Prometheus's documentation of histogram_quantile, bucket by bucket, in its words."""
    observations = float(cumulative[-1])
    wanted_rank = q * observations
    for number, upper in enumerate([*bounds, math.inf]):
        if cumulative[number] < wanted_rank:
            continue
        if upper == math.inf:
            return bounds[-1]
        start = 0.0 if number == 0 else bounds[number - 1]
        before = 0 if number == 0 else cumulative[number - 1]
        return start + (upper - start) * ((wanted_rank - before) / (cumulative[number] - before))
    raise AssertionError("the last bucket holds them all")


@exercise("13.3")
@pytest.mark.parametrize("seed", range(3))
def test_as_documented_and_near_the_truth(seed):
    values = np.sort(np.random.default_rng(seed).lognormal(-1.5, 1.2, 500))
    bounds = own.LATENCY_BOUNDS
    cumulative = [int((values <= bound).sum()) for bound in bounds] + [len(values)]
    for q in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        got = estimated(q, bounds, cumulative)
        expect_close(
            got, documented(q, bounds, cumulative), because=f"this is not what Prometheus would say for q = {q}"
        )
        true = float(np.quantile(values, q, method="inverted_cdf"))
        ratio = bounds[1] / bounds[0]
        expect(
            true / ratio * 0.999 <= got <= true * ratio * 1.001,
            because="the estimate lies in the bucket that holds the true quantile, so it is off by a bucket at most",
        )


# 13.4 sample_line


def parsed(line: str) -> tuple[str, dict[str, str], float]:
    """By prometheus-client's own parser."""
    with crash_means(f"Prometheus's text format can't be read from {line!r}"):
        (family,) = text_string_to_metric_families(line + "\n")
    (sample,) = family.samples
    return sample.name, sample.labels, sample.value


def written(labels: dict[str, str], value: float = 3) -> str:
    line = own.sample_line("requests", labels, value)
    expect(isinstance(line, str), because=no_result("the line is a text"))
    return line


@exercise("13.4")
def test_plain_lines():
    expect_equal(
        written({"route": "/v1", "status": "200"}),
        'requests{route="/v1",status="200"} 3',
        because='label="value" pairs, in their order, with commas between and no spaces, then a space and the number',
    )
    expect_equal(written({}, 2.5), "requests 2.5", because="without labels there are no braces")


@exercise("13.4")
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1e-9, 12345678.9])
def test_numbers(value):
    line = written({"le": "1"}, value)
    expect_equal(
        line.rpartition(" ")[2],
        own.number(value),
        because="`number` writes a value as both formats want it, with every digit and with +Inf for infinity",
    )


@exercise("13.4")
@pytest.mark.parametrize(
    ("text", "because"),
    [
        ('a "quoted" word', 'a quote in a value ends it; it is written \\"'),
        ("C:\\temp", "a backslash is written twice: alone it would begin an escape"),
        ("one\ntwo", "a line's end in a value ends the sample; it is written \\n, and what follows can forge a metric"),
        ("\\n", "a backslash before an n is no line's end: escape the backslashes first, and only once"),
        ('\\"', "escape the backslash first: in the other order, the backslash of an escaped quote is escaped again"),
        ("Größe, 大きさ {x=1}", "all other characters stand as they are"),
        ("tab\there", "all other characters stand as they are; Prometheus refuses any escape but these three"),
        ("back\rthere", "all other characters stand as they are; Prometheus refuses any escape but these three"),
        ("", "an empty value is a value: the pair stays"),
    ],
)
def test_escapes(text, because):
    line = written({"a": text, "b": "plain"})
    expect(
        "\n" not in line,
        because="a line's end in a value ends the sample; it is written \\n, and what follows can forge a metric",
    )
    wanted = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    escaped = "".join(wanted.get(character, character) for character in text)
    for order in permutations(wanted):
        other = text
        for character in order:
            other = other.replace(character, wanted[character])
        expect(
            other == escaped or f'a="{other}"' not in line,
            because="escape the backslash first: later, it escapes the backslashes that the other escapes have just "
            f"written. For {text!r} the line was {line}",
        )
    expect_equal(parsed(line), ("requests", {"a": text, "b": "plain"}, 3.0), because=because)
    expect_equal(line, f'requests{{a="{escaped}",b="plain"}} 3', because=because)
