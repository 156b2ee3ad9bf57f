# Yours to finish. Generated from shared/training/optim.py (version 69912c2a2e1e).
"""Optimisers over plain lists of NumPy arrays, and the learning-rate schedule.

An optimiser holds the model's own arrays and changes them in place: the model sees every update because nothing is
copied. The learning rate comes with each step, so a schedule needs no hook.
"""

from chapters import Todo
import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def _check_params(params: Sequence[Array]) -> list[Array]:
    """Refuse what an in-place update would break on, with the index of the culprit."""
    params = list(params)
    for i, p in enumerate(params):
        if not isinstance(p, np.ndarray) or not np.issubdtype(p.dtype, np.floating):
            raise TypeError(f"params[{i}] must be a NumPy array of floats; got {getattr(p, 'dtype', type(p).__name__)}")
    return params


class SGD:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013; torch's convention).

    params: the arrays to update, in place; momentum: in [0, 1), 0 is plain SGD.
    """

    def __init__(self, params: Sequence[Array], momentum: float = 0.0):
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1); got {momentum}")
        self.params = _check_params(params)
        self.momentum = momentum
        self.velocity = [np.zeros_like(p) for p in self.params]

    def step(self, grads: Sequence[Array], lr: float) -> None:
        """velocity = momentum * velocity + grad;  param -= lr * velocity.  grads: as params; left as they were.

        By hand, with momentum 0.5, lr 0.1, a parameter at 1.0 and a gradient of 2.0 both times:
        velocity 2.0, parameter 0.8; then velocity 3.0, parameter 0.5.
        """
        # exercise 1.7: update each velocity and each parameter in place (*=, +=, -=)
        raise Todo("1.7")
        # end


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1): a step per parameter, scaled by that parameter's own recent gradients.

    params: the arrays to update, in place; betas: decay of the two running means, each in [0, 1); eps: above 0.
    """

    def __init__(self, params: Sequence[Array], betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        if not all(0 <= beta < 1 for beta in betas) or eps <= 0:
            raise ValueError(f"betas must be in [0, 1) and eps above 0; got betas {betas}, eps {eps}")
        self.params = _check_params(params)
        self.beta1, self.beta2 = betas
        self.eps = eps
        self.t = 0  # steps taken
        self.m = [np.zeros_like(p) for p in self.params]  # running mean of the gradient
        self.v = [np.zeros_like(p) for p in self.params]  # running mean of its square

    def step(self, grads: Sequence[Array], lr: float) -> None:
        """One update.  grads: as params; left as they were.

        m = beta1 * m + (1 - beta1) * grad;  v = beta2 * v + (1 - beta2) * grad**2
        m_hat = m / (1 - beta1**t);  v_hat = v / (1 - beta2**t)      t is 1 on the first step
        param -= lr * m_hat / (sqrt(v_hat) + eps)

        By hand, first step, gradient 2.0: m = 0.2, v = 0.004, m_hat = 2.0, v_hat = 4.0: the step is lr * 2 / 2 = lr,
        whatever the gradient's size.
        """
        # exercise 1.8: count the step, update both running means in place, correct their bias, move the parameters
        #   m and v keep their uncorrected values: the correction is only for this step's use
        raise Todo("1.8")
        # end


def lr_at_step(step: int, max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> float:
    """Learning rate: a straight line up, then half a cosine down (Loshchilov & Hutter 2017, section 3, no restarts).

    step < warmup_steps:  max_lr * step / warmup_steps      (0 at step 0)
    up to total_steps:    from max_lr down to min_lr along (1 + cos) / 2
    from total_steps on:  min_lr
    ValueError when a step count is negative, warmup_steps > total_steps, or min_lr > max_lr.

    >>> [lr_at_step(s, max_lr=3.0, min_lr=1.0, warmup_steps=2, total_steps=6) for s in (0, 1, 2, 4, 6, 9)]
    [0.0, 1.5, 3.0, 2.0, 1.0, 1.0]
    """
    if step < 0 or not 0 <= warmup_steps <= total_steps:
        raise ValueError(f"need step >= 0 and 0 <= warmup_steps <= total_steps; got step {step}, "
                         f"warmup_steps {warmup_steps}, total_steps {total_steps}")
    if not 0 <= min_lr <= max_lr:
        raise ValueError(f"need 0 <= min_lr <= max_lr; got min_lr {min_lr}, max_lr {max_lr}")
    # exercise 1.9: the three cases above, in that order
    raise Todo("1.9")
    # end
