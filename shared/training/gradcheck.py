"""The oracle for hand-derived gradients: nudge each number, and see what the loss does."""

from collections.abc import Callable

import numpy as np


def numerical_gradient(f: Callable[[], float], x: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """Central differences: (f(x + eps) - f(x - eps)) / (2 eps) for every element of x, which f must read.

    x: any shape, float64 (in float32 the difference drowns in rounding); changed during the call, restored after it.

    >>> x = np.array([3.0])
    >>> numerical_gradient(lambda: float(x[0] ** 2), x).round(6)
    array([6.])
    """
    if x.dtype != np.float64:
        raise TypeError(f"numerical_gradient needs float64; got {x.dtype}")
    grad = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        kept = x[index]
        x[index] = kept + eps
        above = f()
        x[index] = kept - eps
        below = f()
        x[index] = kept
        grad[index] = (above - below) / (2 * eps)
    return grad


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference between two gradients, over the largest gradient: 1e-7 is a match, 1e-2 a mistake."""
    return float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), np.max(np.abs(b)), 1e-12))
