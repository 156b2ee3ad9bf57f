"""The gate: is a candidate worse than the baseline, or is it noise?

Both answer the same cases and score the same documents, so each case is its own control: what counts is the difference
in each of them. How far that difference could be luck of the draw is found by drawing again (the bootstrap, Efron
1979; for models compared on the same test set: Koehn 2004, "Statistical Significance Tests for Machine Translation
Evaluation"). With few units the interval comes out too narrow, and equal models are called worse more often than its
level says; chapter 7's notebook measures how often.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shared.evaluation.perplexity import DocumentScore, corpus_score
from shared.evaluation.regression import Result

RESAMPLES = 4000
LEVEL = 0.95
MIN_DOCUMENTS = 20  # of fewer, equal models are called worse too often: the bootstrap draws from what it has
TOLERANCE = 0.02  # bits per byte: some 6% of the perplexity per token, when a token has 4 bytes

Verdict = Literal["worse", "better", "even"]


class Interval(NamedTuple):
    """A difference, candidate minus baseline, and the range it plausibly has; above 0 the candidate is worse."""

    difference: float
    low: float
    high: float


def paired_bootstrap(
    baseline: ArrayLike,
    candidate: ArrayLike,
    weights: ArrayLike | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """The difference of two models on the same n units (cases, documents), and the interval it lies in.

    baseline, candidate: [n], what unit i cost each of them: 1 for a failed case, the bits of a document. weights: [n],
    what a unit counts, such as its bytes; 1 each by default. The difference is sum(candidate - baseline) /
    sum(weights): with bytes, in bits per byte. Drawn again `resamples` times: n units out of the n, with replacement,
    the same ones for both models. The interval holds the middle `level` of what comes out; the same seed, the same
    interval. Raises ValueError for lengths that differ, no units, or weights that aren't positive.

    >>> paired_bootstrap([0, 0, 1, 1], [1, 1, 2, 2])  # one more on every unit: whichever are drawn, the difference is 1
    Interval(difference=1.0, low=1.0, high=1.0)
    """
    baseline, candidate = np.asarray(baseline, float), np.asarray(candidate, float)
    weights = np.ones_like(baseline) if weights is None else np.asarray(weights, float)
    if baseline.ndim != 1 or not baseline.shape == candidate.shape == weights.shape or not len(baseline):
        shapes = f"{baseline.shape}, {candidate.shape} and {weights.shape}"
        raise ValueError(f"baseline, candidate and weights must have a number for each of the same units, not {shapes}")
    if not (weights > 0).all():
        raise ValueError(f"weights must all be above 0, not {weights.min()}")
    # exercise 7.6: draw n of the n units with replacement, again and again, and take the same ones for both models
    rng = np.random.default_rng(seed)
    change = candidate - baseline  # [n]
    picks = rng.integers(len(change), size=(resamples, len(change)))  # [resamples, n]
    differences = change[picks].sum(axis=1) / weights[picks].sum(axis=1)  # [resamples]
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(change.sum() / weights.sum()), float(low), float(high))
    # end


def verdict(interval: Interval, tolerance: float = 0.0) -> Verdict:
    """ "worse" or "better" when the difference is beyond noise and matters; "even" in all other cases.

    Beyond noise: the interval lies on one side of 0. It matters: the difference itself is more than `tolerance`, in
    the direction it points to. Costs are compared, so a difference above 0 is the bad one.

    >>> verdict(Interval(0.03, 0.01, 0.05), tolerance=0.02), verdict(Interval(0.03, -0.01, 0.07), tolerance=0.02)
    ('worse', 'even')
    """
    # exercise 7.7: two questions for "worse", the same two the other way round for "better"
    if interval.low > 0 and interval.difference > tolerance:
        return "worse"
    if interval.high < 0 and interval.difference < -tolerance:
        return "better"
    return "even"
    # end


@dataclass(frozen=True)
class Comparison:
    """One measure of both models. `interval` is of the candidate's minus the baseline's, on the same scale."""

    name: str
    unit: str
    n: int
    baseline: float
    candidate: float
    interval: Interval
    tolerance: float

    @property
    def verdict(self) -> Verdict:
        """The module's `verdict` of this measure's interval and tolerance; it doesn't ask whether n is large enough."""
        return verdict(self.interval, self.tolerance)

    @property
    def too_few(self) -> bool:
        """Fewer documents than a verdict can rest on."""
        return self.unit != "share" and self.n < MIN_DOCUMENTS


@dataclass(frozen=True)
class Report:
    """What the gate found: the measures, and the cases whose result changed, as (baseline's, candidate's)."""

    comparisons: list[Comparison]
    newly_failing: list[tuple[Result, Result]] = field(default_factory=list)
    newly_passing: list[tuple[Result, Result]] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        """Whether any measure calls the candidate worse. One on too few documents doesn't count."""
        return any(row.verdict == "worse" and not row.too_few for row in self.comparisons)

    @property
    def exit_status(self) -> int:
        """1: the candidate is worse, beyond noise. 0: it isn't."""
        return int(self.worse)


def compare_cases(baseline: Sequence[Result], candidate: Sequence[Result], seed: int = 0) -> Comparison:
    """The share of the cases that fail. Raises ValueError unless both are of the same cases in the same order."""
    _same([r.case.id for r in baseline], [r.case.id for r in candidate], "case")
    before, after = ([float(not r.passed) for r in results] for results in (baseline, candidate))
    interval = paired_bootstrap(before, after, seed=seed)
    return Comparison("cases that fail", "share", len(before), _mean(before), _mean(after), interval, 0.0)


def compare_documents(
    baseline: Sequence[DocumentScore], candidate: Sequence[DocumentScore], tolerance: float = TOLERANCE, seed: int = 0
) -> Comparison:
    """Bits per byte, whatever the tokenizers. Raises ValueError unless both scored the same texts in the same order."""
    _same([d.text for d in baseline], [d.text for d in candidate], "document")
    if not math.isfinite(sum(d.bits for d in [*baseline, *candidate])):
        raise ValueError("a document's loss isn't a finite number: the weights or the logits hold NaN or infinity")
    weights = [d.n_bytes for d in baseline]
    interval = paired_bootstrap([d.bits for d in baseline], [d.bits for d in candidate], weights, seed=seed)
    before, after = corpus_score(baseline).bits_per_byte, corpus_score(candidate).bits_per_byte
    return Comparison("documents", "bits per byte", len(weights), before, after, interval, tolerance)


def gate(
    baseline_cases: Sequence[Result],
    candidate_cases: Sequence[Result],
    baseline_documents: Sequence[DocumentScore] = (),
    candidate_documents: Sequence[DocumentScore] = (),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Report:
    """Compare a candidate with the baseline on cases, on documents, or on both."""
    comparisons = []
    if baseline_documents or candidate_documents:
        comparisons.append(compare_documents(baseline_documents, candidate_documents, tolerance, seed))
    if baseline_cases or candidate_cases:
        comparisons.append(compare_cases(baseline_cases, candidate_cases, seed))
    if not comparisons:
        raise ValueError("there is nothing to compare: no cases and no documents")
    pairs = list(zip(baseline_cases, candidate_cases, strict=True))
    return Report(
        comparisons,
        newly_failing=[(a, b) for a, b in pairs if a.passed and not b.passed],
        newly_passing=[(a, b) for a, b in pairs if b.passed and not a.passed],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _same(first: Sequence[Any], second: Sequence[Any], what: str) -> None:
    if len(first) != len(second):
        raise ValueError(
            f"the baseline has {len(first)} {what}s and the candidate {len(second)}; they must be the same"
        )
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if a != b:
            raise ValueError(f"{what} {i} differs between the two: {a!r:.80} and {b!r:.80}; they must be the same")
    if not first:
        raise ValueError(f"there is no {what} to compare")
