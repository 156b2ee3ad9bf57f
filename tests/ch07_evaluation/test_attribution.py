"""Exercise 7.8: judged by evidence whose causes can be read off the specification."""

from chapters.ch07_evaluation import attribution
from chapters.judge import exercise, expect_equal

LIMITS = attribution.Limits(tokens_per_unit=2.0, bits_per_byte=3.0)


def causes(**evidence) -> list[str]:
    return attribution.causes(attribution.Evidence(**evidence), LIMITS)


@exercise("7.8")
def test_experiments_prove():
    for name, cause in (("longer", "length"), ("shorter", "length"), ("plain", "tokenizer"), ("otherwise", "decoding")):
        expect_equal(
            causes(**{name: True}),
            [cause],
            because=f"the case passes in the experiment `{name}`, and that proves {cause}",
        )


@exercise("7.8")
def test_looks_prove_nothing():
    expect_equal(
        causes(cut=True, longer=False),
        ["unexplained"],
        because="the answer was cut off, and a longer one fails as well: the cut isn't the cause",
    )
    expect_equal(
        causes(loop=0.9, otherwise=False),
        ["unexplained"],
        because="the answer turns in circles under every decoding, so the decoding isn't the cause",
    )


@exercise("7.8")
def test_tried_and_failed():
    expect_equal(
        causes(longer=False, shorter=False, plain=False, otherwise=False),
        ["unexplained"],
        because="every experiment was tried and the case failed in each; that they were tried proves nothing, and what "
        "nothing explains isn't `data` by default",
    )


@exercise("7.8")
def test_measured_quantities():
    expect_equal(causes(bits_per_byte=4.0), ["data"], because="more surprise than passing cases have points to data")
    expect_equal(
        causes(tokens_per_unit=3.0),
        ["tokenizer"],
        because="words in more pieces than those of passing cases point to the tokenizer",
    )
    expect_equal(
        causes(tokens_per_unit=3.0, bits_per_byte=4.0),
        ["tokenizer", "data"],
        because="both quantities are above their limits, and both are named",
    )
    expect_equal(
        causes(tokens_per_unit=1.5, bits_per_byte=2.5),
        ["unexplained"],
        because="both quantities are as in cases that pass: below their limits they prove nothing",
    )
    expect_equal(
        causes(tokens_per_unit=2.0, bits_per_byte=3.0),
        ["unexplained"],
        because="both quantities are at their limits, and cases that pass go as far: only above them they count (> and "
        "not >=)",
    )


@exercise("7.8")
def test_measured_after_experiments_that_failed():
    expect_equal(
        causes(longer=False, plain=False, otherwise=False, tokens_per_unit=3.0, bits_per_byte=4.0),
        ["tokenizer", "data"],
        because="experiments were made, and none of them mended the case: then what was measured counts, just as where "
        "none was made",
    )


@exercise("7.8")
def test_experiments_come_first():
    expect_equal(
        causes(otherwise=True, bits_per_byte=4.0, tokens_per_unit=3.0),
        ["decoding"],
        because="an experiment has mended the case; a quantity that is high as well is a coincidence",
    )


@exercise("7.8")
def test_several_causes():
    expect_equal(
        causes(longer=True, shorter=True, plain=True, otherwise=True),
        ["length", "tokenizer", "decoding"],
        because="more than one thing can mend a case; each cause is named, once, and in the order of the list",
    )
    expect_equal(causes(shorter=True, otherwise=True), ["length", "decoding"], because="both experiments mended it")
