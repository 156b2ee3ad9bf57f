"""Exercises 0.5 to 0.7: percentiles against NumPy, latencies and totals against numbers worked out by hand."""

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from chapters.ch00_baseline import summary
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_raises


@exercise("0.5")
def test_by_hand():
    because = "10 20 30 40: the 50th percentile lies at index 3 * 0.5 = 1.5, halfway from 20 to 30"
    expect_close(summary.percentile([10, 20, 30, 40], 50), 25.0, because=because)


@exercise("0.5")
def test_order_does_not_matter():
    because = "percentiles are about sorted values; these came unsorted"
    expect_close(summary.percentile([40, 10, 30, 20], 50), 25.0, because=because)


@exercise("0.5")
def test_ends():
    values = [5.0, 1.0, 3.0]
    because = "the last index is n - 1: the 100th percentile is the largest value"
    try:
        got = summary.percentile(values, 100)
    except IndexError as error:
        got = error
    expect_equal(got, 5.0, because=because)
    expect_equal(summary.percentile(values, 0), 1.0, because="the 0th percentile is the smallest value")


@exercise("0.5")
def test_between_two_values():
    because = "the 90th of 0 and 10 lies at index 0.9, nine tenths of the way from 0 to 10; interpolate"
    expect_close(summary.percentile([0.0, 10.0], 90), 9.0, because=because)


@exercise("0.5")
def test_single_value():
    for p in (0, 50, 99, 100):
        expect_equal(summary.percentile([7.5], p), 7.5, because="with one value, every percentile is that value")


@exercise("0.5")
def test_callers_values_are_left_alone():
    values = [3.0, 1.0, 2.0]
    summary.percentile(values, 50)
    because = "the caller's list was sorted in place, and no longer fits the requests it belongs to: use sorted(values)"
    expect_equal(values, [3.0, 1.0, 2.0], because=because)


@exercise("0.5")
def test_as_numpy_does():
    numbers = st.floats(-1e6, 1e6)

    @settings(max_examples=100, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink))
    @given(st.lists(numbers, min_size=1, max_size=40), st.floats(0, 100))
    def same(values: list[float], p: float) -> None:
        because = f"numpy.percentile({values}, {p}) with linear interpolation says otherwise"
        expect_close(summary.percentile(values, p), float(np.percentile(values, p)), because=because, atol=1e-6)

    same()


@exercise("0.5")
def test_refused():
    with expect_raises(ValueError, because="there is no percentile of no values"):
        summary.percentile([], 50)
    with expect_raises(ValueError, because="p runs from 0 to 100"):
        summary.percentile([1.0], 101)
    expect_close(summary.percentile([1.0, 2.0], 50), 1.5, because="halfway between 1 and 2")


@exercise("0.6")
def test_latency_by_hand():
    ttft, tpot, e2e = summary.request_latency(1.0, [3.0, 3.5, 4.0])
    expect_close(ttft, 2.0, because="due at 1, first token at 3: TTFT counts from the request's arrival")
    expect_close(e2e, 3.0, because="due at 1, last token at 4: E2E counts from the arrival, waiting included")
    expect_close(
        tpot, 0.5, because="three tokens have two gaps of half a second between them; the wait for the first is TTFT"
    )


@exercise("0.6")
def test_uneven_gaps():
    got = summary.request_latency(0.0, [10.0, 11.0, 11.5, 14.0, 18.0])
    expect_close(got.ttft, 10.0, because="the first token came 10 s after the arrival")
    expect_close(got.tpot, 2.0, because="8 s from the first token to the last, in 4 steps")
    expect_close(got.e2e, 18.0, because="the last token came 18 s after the arrival")


@exercise("0.6")
def test_single_token():
    try:
        got = summary.request_latency(2.0, [5.0])
    except ZeroDivisionError as error:
        got = error
    because = (
        "one token has no token after it: TPOT is None there, neither 0 (which would flatter) nor a division by zero"
    )
    expect(got is not None and got.tpot is None, because=because)
    expect_equal((got.ttft, got.e2e), (3.0, 3.0), because="with one token, TTFT and E2E are the same")


@exercise("0.6")
def test_result_is_a_latency():
    got = summary.request_latency(1.0, [3.0, 3.5, 4.0])
    expect(isinstance(got, summary.Latency), because="return Latency(ttft=…, tpot=…, e2e=…)")


def answered(index: int, prompt_tokens: int, arrived: float, times: list[float]) -> summary.RequestRecord:
    return summary.RequestRecord(index, prompt_tokens, arrived, times)


def steps(first: float, last: float, n: int) -> list[float]:
    return [first + (last - first) * i / (n - 1) for i in range(n)]


QUEUE = [answered(0, 7, 0.0, steps(0.1, 1.0, 10)), answered(1, 3, 0.0, steps(1.1, 2.0, 10))]  # one after the other


@exercise("0.7")
def test_sums():
    got = summary.run_totals(QUEUE)
    expect_equal(got["requests"], 2, because="two requests were answered")
    expect_equal(got["prompt_tokens"], 10, because="prompts of 7 and 3 tokens")
    expect_equal(got["output_tokens"], 20, because="each of the two answers has ten tokens, one per time stamp")


@exercise("0.7")
def test_wall_time():
    because = "from the first arrival, at 0 s, to the last token of all, at 2 s, is 2 s, however many requests overlap"
    expect_close(summary.run_totals(QUEUE)["wall_s"], 2.0, because=because)


@exercise("0.7")
def test_rates():
    got = summary.run_totals(QUEUE)
    because = (
        "20 tokens in 2 s of wall time are 10 tokens/s; rates of single requests neither add up nor average to that"
    )
    expect_close(got["output_tok_s"], 10.0, because=because)
    expect_close(got["total_tok_s"], 15.0, because="30 tokens, prompts included, in 2 s")


@exercise("0.7")
def test_overlap():
    """Two answered side by side: each alone makes 10 tokens in 2 s, together they make 20 in 2 s."""
    got = summary.run_totals([answered(0, 1, 0.0, steps(0.2, 2.0, 10)), answered(1, 1, 0.0, steps(0.2, 2.0, 10))])
    because = (
        "both ran in the same 2 s: the wall time is 2 s, not the sum of what each took, and 20 tokens are 10 tokens/s"
    )
    expect_close((got["wall_s"], got["output_tok_s"]), (2.0, 10.0), because=because)


@exercise("0.7")
def test_late_start():
    got = summary.run_totals([answered(0, 1, 5.0, [6.0, 7.0]), answered(1, 1, 6.0, [8.0, 9.0])])
    because = "nobody asked for anything before 5 s: the wall time starts with the first arrival, and ends at 9 s"
    expect_close(got["wall_s"], 4.0, because=because)
    expect_close(got["output_tok_s"], 1.0, because="4 tokens in 4 s")


@exercise("0.7")
def test_failed_requests_do_not_count():
    failed = summary.RequestRecord(2, 100, -5.0, [0.5, 9.0], error="HTTP 500")
    refused = summary.RequestRecord(3, 100, 0.0, error="HTTP 429")
    try:
        got = summary.run_totals([*QUEUE, failed, refused])
    except (IndexError, ValueError) as error:
        got = dict.fromkeys(("requests", "prompt_tokens", "output_tokens", "wall_s"), error)
    because = "a request with an error was not answered: its tokens and its time must not flatter (or slow) the others"
    want = {"requests": 2, "prompt_tokens": 10, "output_tokens": 20, "wall_s": 2.0}
    expect_equal({name: got.get(name) for name in want}, want, because=because)


@exercise("0.7")
def test_nothing_answered():
    names = ("requests", "prompt_tokens", "output_tokens", "wall_s", "output_tok_s", "total_tok_s")
    for records in ([], [summary.RequestRecord(0, 5, 0.0, error="HTTP 429")]):
        try:
            got = summary.run_totals(records)
        except (ValueError, ZeroDivisionError, IndexError) as error:
            got = dict.fromkeys(names, error)
        because = "when nothing was answered, every number is 0: no max() of nothing, no division by zero"
        expect_equal([got.get(name) for name in names], [0, 0, 0, 0, 0, 0], because=because)


@exercise("0.7")
def test_order_of_records():
    got = summary.run_totals([answered(0, 1, 1.0, [8.0, 9.0]), answered(1, 1, 0.0, [2.0, 3.0])])
    because = "neither the first record arrived first, nor did the last finish last: look at all of them"
    expect_close(got["wall_s"], 9.0, because=because)
