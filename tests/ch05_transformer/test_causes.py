"""The judges name causes by numbers: no two causes of an exercise may have the same, nor the right answer's."""

from itertools import combinations

import pytest
import torch

from tests.ch05_transformer import test_attention, test_block, test_counting, test_rmsnorm, test_rope


@pytest.mark.parametrize(
    ("right", "causes"),
    [
        (test_rmsnorm.BY_HAND, test_rmsnorm.SIZES),
        (test_rmsnorm.WITH_EPS, test_rmsnorm.EPS),
        (test_rope.QUARTER_TURN, test_rope.TURNS),
        (test_attention.WEIGHTS, test_attention.SOFTMAXES),
        (test_block.GATED, test_block.GATES),
        (test_block.THROUGH, test_block.WAYS),
        (test_counting.BY_HAND, test_counting.COUNTS),
    ],
)
def test_causes_can_be_told_apart(right, causes):
    for (a, one), (b, other) in combinations({"the right answer": right, **causes}.items(), 2):
        one, other = (torch.tensor(numbers, dtype=torch.float64) for numbers in (one, other))
        assert not torch.allclose(one, other, rtol=2.5e-4), f"{a!r} and {b!r} both give {one.tolist()}"
