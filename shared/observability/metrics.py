"""A counter, a histogram, and the text in which Prometheus reads them, by hand. The server uses prometheus-client.

These here have no locks: they are for one thread.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

OTHER = "other"  # the value of every label in the series of those who came too late

# About four bounds for each factor of ten, from a millisecond to 100 s: TTFT on a GPU and a long answer on a CPU.
LATENCY_BOUNDS = tuple(round(0.001 * 10 ** (k / 4), 6) for k in range(21))
EXEMPLAR_CHARS = 128  # OpenMetrics 1.0: so long may the label names and values of an exemplar be, all together


class Counter:
    """A number that only grows, one for each combination of label values: a series.

    name: ends in _total. max_series: how many series may have labels of their own; one more holds the rest. Each one is
    memory here, and memory and disk in Prometheus, for ever. Raises ValueError for another name.
    """

    def __init__(self, name: str, text: str, label_names: Sequence[str] = (), max_series: int = 100) -> None:
        if not name.endswith("_total") or isinstance(label_names, str):
            raise ValueError(f"{name}: a counter's name ends in _total, and its label names are a sequence of texts")
        self.name, self.text, self.label_names, self.max_series = name, text, tuple(label_names), max_series
        # label values, in the order of label_names -> count. Without labels there is one series, from the start
        self.series: dict[tuple[str, ...], float] = {} if label_names else {(): 0.0}

    def inc(self, amount: float = 1.0, /, **labels: object) -> None:
        """Add to the series of these labels. A new one beyond max_series is counted in the series whose labels are all
        OTHER, which is one more than max_series.

        A label whose values callers choose (a path, an id, a user's name) makes a series of each. With a bound the
        counter still counts everything; it only no longer tells the latecomers apart. Raises ValueError for an amount
        that is negative or not finite, or labels that aren't this counter's.
        """
        if not 0 <= amount < math.inf:
            raise ValueError(f"{self.name}: a counter only grows, so it can't be changed by {amount!r}")
        if set(labels) != set(self.label_names):
            raise ValueError(f"{self.name}: the labels must be {self.label_names}, not {tuple(labels)}")
        values = tuple(str(labels[name]) for name in self.label_names)
        # exercise 13.1: add to the series of `values`; if it would be one too many, to the one of the others
        #   given: values, self.series, self.max_series, OTHER
        if values not in self.series and len(self.series) >= self.max_series:
            values = (OTHER,) * len(values)
        self.series[values] = self.series.get(values, 0.0) + amount
        # end


class Histogram:
    """How many values fell where. bounds: upper ends of the buckets, rising; a last bucket, up to infinity, is added.

    counts: values in each bucket alone. exemplars: the latest request in each bucket, as (request id, value).
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.name, self.text, self.bounds = name, text, tuple(map(float, bounds))
        rising = all(a < b for a, b in pairwise(self.bounds))
        if not self.bounds or not rising or not all(map(math.isfinite, self.bounds)):
            raise ValueError(f"{name}: bounds must be finite and rise from one to the next, not {bounds!r}")
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.exemplars: list[tuple[str, float] | None] = [None] * (len(self.bounds) + 1)

    def observe(self, value: float, request_id: str = "") -> None:
        """Count a value, in one bucket: the first whose bound is not below it. `le` means less or equal.

        With bounds (1, 2, 4): 0.5 and 1 are in the first bucket, 1.5 in the second, 4 in the third, and 5 in the last,
        which has no bound. The sum grows by the value. With a request id the value is the bucket's exemplar: somebody
        who sees a slow bucket finds a request to look at. Raises ValueError for a negative value, or one that isn't
        finite: a single NaN would make the sum NaN for ever.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"{self.name}: can't count {value!r}; a value must be finite and at least 0")
        # exercise 13.2: find the bucket (bisect_left), count, add to the sum, and keep an exemplar if there is an id
        #   given: self.bounds, self.counts, self.sum, self.exemplars
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if request_id:
            self.exemplars[bucket] = (request_id, value)
        # end

    def cumulative(self) -> list[int]:
        """How many values were not above each bound, and last how many there were: what Prometheus stores."""
        return list(accumulate(self.counts))


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """One histogram of what several servers saw: counts add up, which percentiles don't. Exemplars stay behind.
    Raises ValueError unless there is one at least, and all have the same bounds."""
    if not histograms:
        raise ValueError("there is no histogram to add up")
    first = histograms[0]
    if any(histogram.bounds != first.bounds for histogram in histograms):
        raise ValueError(f"{first.name}: histograms with different bounds can't be added")
    total = Histogram(first.name, first.text, first.bounds)
    total.counts = [sum(counts) for counts in zip(*(h.counts for h in histograms), strict=True)]
    total.sum = sum(histogram.sum for histogram in histograms)
    return total


def histogram_quantile(q: float, bounds: Sequence[float], cumulative: Sequence[int]) -> float:
    """The q-quantile of what is in the buckets, as Prometheus's function of this name estimates it.

    q: above 0, up to 1. bounds: positive, rising, without infinity. cumulative: one count more, as `cumulative` gives
    them. The quantile is the value of rank q * (all values). It lies in the first bucket whose cumulative count reaches
    that rank, and there values are taken to be spread evenly from the bound below (0 for the first bucket) to its own.
    In the last bucket, which has no upper end, the answer is the highest bound there is. Without values: NaN. Raises
    ValueError for another q, or another number of counts.

    >>> histogram_quantile(0.5, (1.0, 2.0, 4.0), [2, 2, 6, 6])  # rank 3: the first of 4 values between 2 and 4
    2.5
    """
    if not 0 < q <= 1:
        raise ValueError(f"q must be above 0 and at most 1, not {q!r}")
    if len(cumulative) != len(bounds) + 1:
        raise ValueError(f"{len(bounds)} bounds have {len(bounds) + 1} cumulative counts, not {len(cumulative)}")
    # exercise 13.3: no values; else the bucket of the rank; the bucket without end; else the part of the way up in it
    if cumulative[-1] == 0:
        return math.nan
    rank = q * cumulative[-1]
    bucket = bisect_left(cumulative, rank)
    if bucket == len(bounds):
        return bounds[-1]
    lower, below = (bounds[bucket - 1], cumulative[bucket - 1]) if bucket else (0.0, 0)
    return lower + (bounds[bucket] - lower) * (rank - below) / (cumulative[bucket] - below)
    # end


def sample_line(name: str, labels: Mapping[str, str], value: float) -> str:
    r"""One line of Prometheus's text format: name{label="value",other="value"} number

    Without labels there are no braces. In a label's value a backslash is written \\, a double quote \" and a line's end
    \n; anything else stands as it is. A value that isn't escaped can end the line and forge the next.

    >>> sample_line("requests_total", {"route": "/v1", "status": "200"}, 3)
    'requests_total{route="/v1",status="200"} 3'
    """
    # exercise 13.4: escape each value, the backslash first; join the labels; number(value) writes the number
    pairs = []
    for label, text in labels.items():
        escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{label}="{escaped}"')
    return f"{name}{{{','.join(pairs)}}} {number(value)}" if pairs else f"{name} {number(value)}"
    # end


def number(value: float) -> str:
    """As both text formats write numbers: +Inf, -Inf, NaN, and no digit lost."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return repr(value) if type(value) is int else repr(float(value))  # a NumPy number's own repr says np.float64(…)


def exposition(metrics: Sequence[Counter | Histogram], openmetrics: bool = False) -> str:
    """All metrics as text: Prometheus's format 0.0.4, or OpenMetrics 1.0, which has exemplars and an end.

    In OpenMetrics a counter is declared without the _total that its samples end in. An exemplar whose id is too long
    for OpenMetrics is left out: a reader would refuse the whole text for it.
    """
    lines = []
    for metric in metrics:
        kind = "counter" if isinstance(metric, Counter) else "histogram"
        name = metric.name.removesuffix("_total") if openmetrics else metric.name
        text = metric.text.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if isinstance(metric, Counter):
            for values, count in metric.series.items():
                lines.append(sample_line(metric.name, dict(zip(metric.label_names, values, strict=True)), count))
            continue
        bounds = (*metric.bounds, math.inf)
        for bound, count, exemplar in zip(bounds, metric.cumulative(), metric.exemplars, strict=True):
            line = sample_line(f"{name}_bucket", {"le": number(bound)}, count)
            if exemplar is not None and openmetrics and len("request_id" + exemplar[0]) <= EXEMPLAR_CHARS:
                line += " # " + sample_line("", {"request_id": exemplar[0]}, exemplar[1])
            lines.append(line)
        lines.append(sample_line(f"{name}_sum", {}, metric.sum))
        lines.append(sample_line(f"{name}_count", {}, metric.cumulative()[-1]))
    return "\n".join([*lines, "# EOF"] if openmetrics else lines) + "\n"
