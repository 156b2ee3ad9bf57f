"""The oracle itself: against derivatives known in closed form."""

import numpy as np
import pytest

from shared.training.gradcheck import numerical_gradient, relative_error


def test_known_derivatives():
    x = np.array([[0.5, -1.0], [2.0, 0.0]])
    before = x.copy()
    assert numerical_gradient(lambda: float(np.sum(x**3)), x) == pytest.approx(3 * before**2, abs=1e-8)
    assert numerical_gradient(lambda: float(np.sin(x).sum()), x) == pytest.approx(np.cos(before), abs=1e-8)
    assert (x == before).all()


def test_float32_is_refused():
    with pytest.raises(TypeError, match="float32"):
        numerical_gradient(lambda: 0.0, np.zeros(2, dtype=np.float32))


def test_relative_error():
    a = np.array([1.0, -4.0])
    assert relative_error(a, a) == 0
    assert relative_error(a, np.array([1.0, -3.0])) == pytest.approx(0.25)
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
