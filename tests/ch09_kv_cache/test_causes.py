"""The judges name causes by numbers: no two causes of an exercise may have the same, nor the right answer's."""

from itertools import combinations

import pytest
import torch

from tests.ch09_kv_cache import test_kv_budget as budget
from tests.ch09_kv_cache import test_probabilities as probabilities
from tests.ch09_kv_cache import test_repetition_penalty as repetition_penalty
from tests.ch09_kv_cache import test_top_k as top_k
from tests.ch09_kv_cache import test_top_p_min_p as top_p_min_p


@pytest.mark.parametrize(
    ("right", "causes"),
    [
        (probabilities.HALF, probabilities.TEMPERATURES),
        (probabilities.GREEDY, probabilities.ZEROS),
        (top_k.TOP_2, top_k.TOPS),
        (top_p_min_p.NUCLEUS, top_p_min_p.NUCLEI),
        ([4 / 7, 3 / 7, 0, 0], top_p_min_p.SHARES),
        (top_p_min_p.NUCLEUS, top_p_min_p.MIN_PS),
        ([1.0, -2.0, 1.5, 3.0], repetition_penalty.PENALTIES),
    ],
)
def test_causes_can_be_told_apart(right, causes):
    for (a, one), (b, other) in combinations({"the right answer": right, **causes}.items(), 2):
        one, other = (torch.tensor(numbers, dtype=torch.float64) for numbers in (one, other))
        assert not torch.allclose(one, other, rtol=2.5e-3, atol=1e-5, equal_nan=True), f"{a!r} and {b!r} look the same"


def test_no_cause_has_the_right_number():
    assert budget.ONE_TOKEN not in budget.COSTS
    assert 24 not in budget.FITS
