"""Random arrays that are the same in every run."""

import numpy as np
import torch


def normal(*shape: int, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    """Standard normal numbers; shape and seed decide which."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def as_torch(a: np.ndarray) -> torch.Tensor:
    """A copy that autograd follows."""
    return torch.from_numpy(a.copy()).requires_grad_()
