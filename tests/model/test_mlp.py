"""What the NumPy net refuses, and that its docstrings' examples are true."""

import doctest

import numpy as np
import pytest

from shared.model import mlp


def test_docstring_examples():
    result = doctest.testmod(mlp)
    assert result.attempted >= 5
    assert result.failed == 0


@pytest.mark.parametrize("sizes", [(), (3,), (3, 0, 2)])
def test_sizes_are_checked(sizes: tuple[int, ...]):
    with pytest.raises(ValueError, match="sizes"):
        mlp.MLP(sizes, np.random.default_rng(0))


def test_start_is_seeded_and_scaled():
    a, b = (mlp.MLP((1000, 500), np.random.default_rng(4)).params for _ in range(2))
    assert (a[0] == b[0]).all()
    assert a[0].dtype == np.float32
    assert a[0].std() == pytest.approx(np.sqrt(2 / 1000), rel=0.01)
    assert not a[1].any()


def test_mse_refuses_to_broadcast():
    with pytest.raises(ValueError, match=r"\(4, 1\).*\(4,\)"):
        mlp.mse(np.zeros((4, 1)), np.zeros(4))
