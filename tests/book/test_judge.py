"""What the expectations say: the likely cause is kept, and nothing that looks right is called wrong."""

import pytest

from chapters import Todo
from chapters.judge import Rejected, expect_close, expect_equal, expect_raises


def said(block) -> str:
    with pytest.raises(Rejected) as caught:
        block()
    return str(caught.value)


@pytest.mark.parametrize("expect", [expect_equal, expect_close])
def test_none_may_be_a_missing_return_or_the_cause_named(expect):
    text = said(lambda: expect(None, 3, because="counts are negative"))
    assert "got None" in text
    assert "without a return" in text
    assert "counts are negative" in text


def test_two_spellings_of_a_character_are_told_apart():
    text = said(lambda: expect_equal("a\u0301", "\u00e1", because="composed"))
    assert r"expected '\xe1', got 'a\u0301'" in text
    text = said(lambda: expect_equal(["a\u0301"], ["\u00e1"], because="composed"))
    assert r"'\xe1' at [0], got 'a\u0301'" in text


@pytest.mark.parametrize("error", [Rejected("not finished after 30 s", "a loop"), Todo("3.1")])
def test_what_ends_a_test_passes_through(error):
    with pytest.raises(type(error)) as caught, expect_raises(ValueError, because="no matter"):
        raise error
    assert caught.value is error


def test_numbers_show_the_digits_that_differ():
    assert "expected 9.94694213, got 9.94694417" in said(
        lambda: expect_close(9.94694417, 9.94694213, because="float64 was narrowed", rtol=1e-9)
    )
    assert "expected 6, got 9 (1.5 times)" in said(lambda: expect_close(9.0, 6.0, because="squared"))
