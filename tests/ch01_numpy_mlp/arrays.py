"""Random arrays that are the same in every run, and what holds for every array that comes back."""

import numpy as np
import torch

from chapters.judge import expect


def normal(*shape: int, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    """Standard normal numbers; shape and seed decide which."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def as_torch(a: np.ndarray) -> torch.Tensor:
    """A copy that autograd follows."""
    return torch.from_numpy(a.copy()).requires_grad_()


def expect_numpy(got: object, what: str = "the result") -> None:
    """Reject what isn't a NumPy array. None passes: a missing return is what the next expectation speaks of."""
    kind = f"{type(got).__module__.split('.')[0]}.{type(got).__name__}".removeprefix("builtins.")
    if kind.startswith("torch"):
        cure = "everything in this file is NumPy's; a tensor's .numpy() is one"
    elif isinstance(got, np.generic | float | int):
        cure = "a sum or a mean without an axis adds up everything and leaves a single number"
    else:
        cure = "np.array makes one"
    expect(got is None or isinstance(got, np.ndarray),
           because=f"a NumPy array is wanted, and {what} is a {kind}: {cure}")


def expect_one_number(loss: object, axes: str) -> None:
    """Reject a loss that is an array or a tensor."""
    expect(not hasattr(loss, "detach"), because="the loss is a torch.Tensor: everything in this file is NumPy's; "
                                                "float(loss) makes a plain number")
    expect(np.shape(loss) == (), because=f"the loss is one number, and this is an array of shape {np.shape(loss)}: its "
                                         f"mean goes over {axes}")
