"""The gate, against scipy's bootstrap, and its rate of false alarms counted over hundreds of equal models."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from shared.evaluation.gate import Interval, compare_cases, compare_documents, gate, paired_bootstrap, verdict
from shared.evaluation.perplexity import DocumentScore
from shared.evaluation.properties import Answer
from shared.evaluation.regression import Case, Result


def case_results(passed, text="x"):
    return [
        Result(Case(f"case-{i}", {"ends": True}, 4, prompt="x"), Answer(text), [] if ok else ["ends: cut off"])
        for i, ok in enumerate(passed)
    ]


def documents(bits, sizes):
    """Documents of so many bytes that cost so many bits."""
    return [
        DocumentScore("x" * n, torch.tensor([b * math.log(2)], dtype=torch.float64))
        for b, n in zip(bits, sizes, strict=True)
    ]


def test_equals_scipy():
    rng = np.random.default_rng(1)
    baseline, weights = rng.normal(100, 30, 60), rng.integers(50, 500, 60).astype(float)
    candidate = baseline + rng.normal(3, 10, 60)

    def ratio(change, weight, axis=-1):
        return change.sum(axis=axis) / weight.sum(axis=axis)

    want = stats.bootstrap(
        (candidate - baseline, weights), ratio, paired=True, vectorized=True, method="percentile",
        n_resamples=20_000, confidence_level=0.9, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    got = paired_bootstrap(baseline, candidate, weights, resamples=20_000, level=0.9)
    width = want.high - want.low
    assert got.low == pytest.approx(want.low, abs=0.03 * width)
    assert got.high == pytest.approx(want.high, abs=0.03 * width)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], []), "same units"),
        (([1.0], [1.0, 2.0]), "same units"),
        (([1.0, 2.0], [1.0, 2.0], [1.0]), "same units"),
        (([[1.0]], [[1.0]]), "same units"),
        (([1.0, 2.0], [1.0, 2.0], [1.0, 0.0]), "above 0"),
    ],
)
def test_bad_units(arguments, said):
    with pytest.raises(ValueError, match=said):
        paired_bootstrap(*arguments)


def false_alarms(n, trials=600):
    """How often one of two equal models with noisy losses on n documents is called worse, without a tolerance."""
    alarms = 0
    rng = np.random.default_rng(0)
    for _ in range(trials):
        sizes = rng.integers(200, 1000, n)
        hard = sizes * rng.normal(1.0, 0.3, n)
        before, after = (hard + sizes * rng.normal(0, 0.05, n) for _ in range(2))
        interval = paired_bootstrap(before, after, sizes, resamples=400, seed=int(rng.integers(2**31)))
        alarms += verdict(interval) == "worse"
    return alarms / trials


def test_false_alarms_on_documents_are_about_nominal():
    """Of a 95% interval 2.5% are on the bad side, for many documents; 64 are nearly many."""
    assert 0.01 <= false_alarms(64) <= 0.05


def test_few_documents_cry_wolf():
    """A known weakness of the percentile bootstrap: from few units it makes the interval too narrow."""
    assert 0.05 < false_alarms(5) < 0.15
    assert verdict(paired_bootstrap([1, 2, 3, 4, 5], [1.1, 2.2, 3.1, 4.3, 5.1])) == "worse"


def test_four_newly_failing_cases_of_sixty():
    """The chance that none of k cases is drawn in 60 draws of 60 is (1 - k/60)**60: 2.5% lies between k = 3 and 4."""
    assert (1 - 4 / 60) ** 60 < 0.025 < (1 - 3 / 60) ** 60
    for k, said in ((3, "even"), (4, "worse")):
        assert verdict(paired_bootstrap(np.zeros(60), np.repeat([1.0, 0.0], [k, 60 - k]))) == said


def test_false_alarms_on_cases_are_about_nominal():
    alarms, trials = 0, 600
    rng = np.random.default_rng(0)
    for _ in range(trials):
        chance = rng.beta(4, 1, 60)  # of passing, the same for both models
        before, after = (case_results(rng.random(60) < chance) for _ in range(2))
        interval = paired_bootstrap(
            [not r.passed for r in before], [not r.passed for r in after], resamples=400, seed=int(rng.integers(2**31))
        )
        alarms += verdict(interval) == "worse"
    assert 0.005 <= alarms / trials <= 0.05


def test_fires_for_a_model_that_is_worse():
    rng = np.random.default_rng(0)
    fired_documents = fired_cases = 0
    for _ in range(100):
        sizes = rng.integers(200, 1000, 40)
        before = sizes * rng.normal(1.0, 0.3, 40)
        after = before + sizes * rng.normal(0.04, 0.05, 40)
        fired_documents += compare_documents(documents(before, sizes), documents(after, sizes)).verdict == "worse"
        passed = rng.random(60) < 0.8
        fired_cases += (
            compare_cases(case_results(passed), case_results(passed & (rng.random(60) < 0.7))).verdict == "worse"
        )
    assert fired_documents >= 95
    assert fired_cases >= 95


def test_documents_are_the_unit_and_not_tokens():
    """One document of ten went wrong, in each of its thousand tokens. By tokens that would be beyond doubt."""
    before = documents([100.0] * 10, [100] * 10)
    after = documents([100.0] * 9 + [150.0], [100] * 10)
    row = compare_documents(before, after)
    assert row.interval.difference == pytest.approx(0.05)
    assert row.verdict == "even"


def test_numbers_of_a_comparison():
    row = compare_documents(documents([80.0, 120.0], [100, 100]), documents([90.0, 170.0], [100, 100]), tolerance=0.5)
    assert (row.n, row.baseline, row.candidate) == (2, pytest.approx(1.0), pytest.approx(1.3))
    assert row.interval.difference == pytest.approx(row.candidate - row.baseline)
    assert (row.interval.low, row.interval.high) == (pytest.approx(0.1), pytest.approx(0.5))
    assert row.verdict == "even"  # beyond noise, and within the tolerance
    cases = compare_cases(case_results([True, True, False, True]), case_results([True, False, True, False]))
    assert (cases.baseline, cases.candidate, cases.interval.difference) == (0.25, 0.5, 0.25)


def test_the_report():
    before, after = case_results([True, True, False], "old"), case_results([True, False, True], "new")
    report = gate(before, after)
    assert [(a.answer.text, b.answer.text, b.case.id) for a, b in report.newly_failing] == [("old", "new", "case-1")]
    assert [b.case.id for _, b in report.newly_passing] == ["case-2"]
    assert [c.name for c in report.comparisons] == ["cases that fail"]
    assert (report.worse, report.exit_status) == (False, 0)
    bad = gate(case_results([True] * 30), case_results([False] * 30))
    assert (bad.worse, bad.exit_status) == (True, 1)


def test_one_bad_measure_is_enough():
    sizes = [500] * 30
    cases = case_results([True] * 30)
    report = gate(cases, cases, documents([500.0] * 30, sizes), documents([600.0] * 30, sizes))
    assert [c.verdict for c in report.comparisons] == ["worse", "even"]
    assert report.exit_status == 1


def test_what_can_t_be_compared():
    one = case_results([True])
    with pytest.raises(ValueError, match="nothing to compare"):
        gate([], [])
    with pytest.raises(ValueError, match="the baseline has 1 cases and the candidate 2"):
        compare_cases(one, case_results([True, True]))
    with pytest.raises(ValueError, match="case 0 differs"):
        compare_cases(one, [Result(Case("other", {}, 4, prompt="x"), Answer("x"))])
    with pytest.raises(ValueError, match="document 0 differs"):
        compare_documents(documents([1.0], [3]), documents([1.0], [4]))
    with pytest.raises(ValueError, match="isn't a finite number"):
        compare_documents(documents([1.0], [3]), documents([float("nan")], [3]))


def test_an_interval_that_is_one_point():
    assert paired_bootstrap([1.0], [2.0]) == Interval(1.0, 1.0, 1.0)
