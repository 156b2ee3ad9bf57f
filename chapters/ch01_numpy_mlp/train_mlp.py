# Yours to finish. Generated from shared/training/train_mlp.py (version 15f3b01c1bb4).
"""The training loop: shuffled minibatches, forward, loss, backward, update; and the history that plots are made of.

Nothing here knows more of a model than `forward`, `backward` and `params`, or of a loss than its number and gradient.
"""

from chapters import Todo
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from shared.measure.progress import progress_bar

Array = np.ndarray
LossFn = Callable[[Array, Array], tuple[float, Array]]  # (output, targets) -> (mean loss, d loss / d output)
Schedule = Callable[[int], float]  # step, counted from 1 -> learning rate


class Model(Protocol):
    """What the loop needs of a model; `MLP` is one."""

    params: list[Array]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """x: [n, ...]. Returns the output [n, ...], and a tape with what `backward` will need."""

    def backward(self, tape: Any, dout: Array) -> list[Array]:
        """dout: d loss / d output. Returns a gradient for each of `params`, in their order and shapes."""


class Optimizer(Protocol):
    """What the loop needs of an optimiser; `SGD` and `Adam` are two."""

    def step(self, grads: Sequence[Array], lr: float) -> None:
        """Move the parameters in place. grads: as the model's `backward` returns them."""


def train_epoch(
    model: Model,
    loss_fn: LossFn,
    optimizer: Optimizer,
    x: Array,
    y: Array,
    batch_size: int,
    rng: np.random.Generator,
    schedule: Schedule,
    steps_done: int = 0,
) -> list[float]:
    """One pass over the data in a fresh random order.  Returns the loss of every step, as a list of floats.

    x: [n, ...] and y: [n, ...]; row i of one belongs to row i of the other.  The order is one call of
    rng.permutation(n).
    The last batch holds what is left, 1 to batch_size rows: n = 10, batch_size = 4 makes batches of 4, 4 and 2.
    Steps are counted over the whole run and from 1: the first one here is step steps_done + 1 and its learning rate is
    schedule(steps_done + 1).  (A warm-up is 0 at step 0: starting there would compute a gradient and throw it away.)
    """
    # exercise 1.10: permute, then for each batch: forward, loss, backward, update
    raise Todo("1.10")
    # end


@dataclass
class History:
    """What a run leaves behind. `diverged`: it was stopped because the loss was no longer a finite number."""

    losses: list[float] = field(default_factory=list)  # one a step
    lrs: list[float] = field(default_factory=list)  # one a step
    test_accuracy: list[float] = field(default_factory=list)  # one an epoch
    diverged: bool = False


def fit(
    model: Model,
    loss_fn: LossFn,
    optimizer: Optimizer,
    data: Any,
    epochs: int,
    schedule: Schedule,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> History:
    """Train for some epochs and measure accuracy on the test rows after each.

    data: a `Digits` (x_train, y_train, x_test, y_test).  The same seed gives the same run.
    Raises ValueError for an empty run or rows that don't match. Stops early when the loss is infinite or not a number.
    """
    n = len(data.x_train)
    if epochs < 1 or batch_size < 1 or n == 0 or n != len(data.y_train):
        raise ValueError(
            f"need epochs and batch_size of at least 1 and as many labels as images; got epochs {epochs}, "
            f"batch_size {batch_size}, {n} images, {len(data.y_train)} labels"
        )
    rng = np.random.default_rng(seed)
    history = History()
    with progress_bar("epochs", epochs, enabled=progress) as advance:
        for _ in range(epochs):
            done = len(history.losses)
            losses = train_epoch(model, loss_fn, optimizer, data.x_train, data.y_train, batch_size, rng, schedule, done)
            history.losses += losses
            history.lrs += [schedule(done + i) for i in range(1, len(losses) + 1)]
            history.test_accuracy.append(accuracy(model, data.x_test, data.y_test))
            advance()
            if not all(map(math.isfinite, losses)):
                history.diverged = True
                break
    return history


def predict(model: Model, x: Array, batch_size: int = 4096) -> Array:
    """The likeliest class of each row.  x: [n, in] -> [n] integers."""
    parts = [model.forward(x[start : start + batch_size])[0].argmax(axis=1) for start in range(0, len(x), batch_size)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def accuracy(model: Model, x: Array, labels: Array) -> float:
    """The share of rows whose likeliest class is the label, from 0 to 1."""
    if len(x) == 0:
        raise ValueError("accuracy of no rows is undefined")
    return float(np.mean(predict(model, x) == labels))
