"""Exercise 3.5: judged by how many pairs are caught when signatures are simulated."""

import numpy as np
import pytest

from chapters.ch03_dedup import lsh as mine
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_parts
from shared.data import lsh as reference
from tests.ch03_dedup.calling import call


def caught(similarity: float, bands: int, rows: int) -> float:
    """The part of pairs with a band in common, simulated: every number agrees with this probability."""
    agree = np.random.default_rng(0).random((20_000, bands, rows)) < similarity
    return float(agree.all(axis=2).any(axis=1).mean())


def choose_bands(threshold: float, num_perm: int, max_miss: float = 0.01, none: str = NO_RESULT) -> tuple[int, int]:
    got = call(mine.choose_bands, threshold, num_perm, max_miss, none=none)
    expect_parts(got, ("bands", "rows"), because="two numbers are wanted, the bands and the rows of each")
    return tuple(got)


@exercise("3.5")
def test_sixteen_bands_of_eight():
    bands, rows = choose_bands(0.85, 128)
    expect(bands * rows <= 128, because=f"{bands} bands of {rows} need {bands * rows} numbers, and a signature has 128")
    expect(
        caught(0.85, bands, rows) > 0.985,
        because=f"{bands} bands of {rows} miss {1 - caught(0.85, bands, rows):.0%} of the pairs at the threshold, and "
        "1% is allowed. The rule (1 / bands) ** (1 / rows) = threshold puts the middle of the S-curve there, "
        "where more than a third is missed",
    )
    expect_equal(
        (bands, rows),
        (16, 8),
        because="of all rows that miss at most 1% take the most; fewer rows miss even less, and make "
        "candidates of pairs that have little in common",
    )


@exercise("3.5")
def test_bands_for_other_thresholds():
    for threshold, num_perm, want in (
        (0.5, 128, (42, 3)),
        (0.7, 128, (32, 4)),
        (0.95, 256, (12, 21)),
        (0.8, 64, (12, 5)),
    ):
        got = choose_bands(threshold, num_perm)
        expect_equal(
            got,
            want,
            because=f"for a threshold of {threshold} and {num_perm} numbers; as many bands as fit "
            "(num_perm // rows), and the most rows that still catch 99%",
        )


@exercise("3.5")
def test_threshold_one_is_a_single_band():
    expect_equal(
        choose_bands(1.0, 128),
        (1, 128),
        because="texts with equal shingles agree in all numbers: one band of 128 misses none of them",
    )


@exercise("3.5")
def test_more_misses_allowed_more_rows():
    expect_equal(
        choose_bands(0.85, 128, max_miss=0.5),
        (8, 15),
        because="max_miss says how much may be missed; with half allowed, bands of 15 will do",
    )


@exercise("3.5")
def test_a_hopeless_threshold_gets_single_rows():
    expect_equal(
        choose_bands(
            0.01,
            128,
            none="nothing came back: when no number of rows catches enough, the loop ends without a return. What is "
            "left then is (num_perm, 1)",
        ),
        (128, 1),
        because="when no number of rows catches 99%, bands of one number catch the most",
    )


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan"), "0.8", True])
def test_threshold_is_checked(threshold):
    with pytest.raises(ValueError, match="threshold is a Jaccard similarity above 0 and up to 1"):
        reference.choose_bands(threshold, 128)


def test_the_s_curve_is_what_happens():
    for similarity, bands, rows in ((0.85, 16, 8), (0.7, 16, 8), (0.5, 42, 3)):
        assert abs(caught(similarity, bands, rows) - reference.candidate_probability(similarity, bands, rows)) < 0.02
