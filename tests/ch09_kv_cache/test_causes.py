"""The judges name causes by numbers: no two causes of an exercise may have the same, nor the right answer's."""

from itertools import combinations

import pytest
import torch

from tests.ch09_kv_cache import test_filters as filters
from tests.ch09_kv_cache import test_kv_budget as budget


@pytest.mark.parametrize(
    ("right", "causes"),
    [
        (filters.HALF, filters.TEMPERATURES),
        (filters.GREEDY, filters.ZEROS),
        (filters.TOP_2, filters.TOPS),
        (filters.NUCLEUS, filters.NUCLEI),
        ([4 / 7, 3 / 7, 0, 0], filters.SHARES),
        (filters.NUCLEUS, filters.MIN_PS),
        ([1.0, -2.0, 1.5, 3.0], filters.PENALTIES),
    ],
)
def test_causes_can_be_told_apart(right, causes):
    for (a, one), (b, other) in combinations({"the right answer": right, **causes}.items(), 2):
        one, other = (torch.tensor(numbers, dtype=torch.float64) for numbers in (one, other))
        assert not torch.allclose(one, other, rtol=2.5e-3, atol=1e-5, equal_nan=True), f"{a!r} and {b!r} look the same"


def test_no_cause_has_the_right_number():
    assert budget.ONE_TOKEN not in budget.COSTS
    assert 24 not in budget.FITS
