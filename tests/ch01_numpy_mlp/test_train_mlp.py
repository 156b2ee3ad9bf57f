"""Exercise 1.10: the loop is watched through a model, a loss and an optimiser that write down what they are given."""

import numpy as np
import torch

from chapters.ch01_numpy_mlp import train_mlp
from chapters.judge import exercise, expect, expect_close, expect_equal

N, BATCH = 10, 4  # batches of 4, 4 and 2


class Watched:
    """Model, loss and optimiser in one; `events` tells who was called, in order."""

    params: list = []

    def __init__(self) -> None:
        self.events: list[str] = []
        self.xs: list[np.ndarray] = []
        self.ys: list[np.ndarray] = []
        self.lrs: list[float] = []
        self.passed: list = []

    def forward(self, x):
        self.events.append("forward")
        self.xs.append(np.array(x))
        return x, f"tape {len(self.xs)}"

    def loss(self, out, y):
        self.events.append("loss")
        self.ys.append(np.array(y))
        return float(len(self.ys)), f"dout {len(self.ys)}"

    def backward(self, tape, dout):
        self.events.append("backward")
        self.passed.append((tape, dout))
        return [f"grads {len(self.xs)}"]

    def step(self, grads, lr):
        self.events.append("update")
        self.passed.append(grads)
        self.lrs.append(lr)


def watch(rng: np.random.Generator | None = None, steps_done: int = 0, n: int = N) -> tuple[Watched, list[float]]:
    """One epoch over rows 0..n-1, labelled 0..n-1, with a learning rate equal to the step's number."""
    seen = Watched()
    x, y = np.arange(n)[:, None], np.arange(n)
    rng = np.random.default_rng(0) if rng is None else rng
    return seen, train_mlp.train_epoch(seen, seen.loss, seen, x, y, BATCH, rng, float, steps_done)


@exercise("1.10")
def test_every_batch_is_followed_by_an_update():
    seen, _ = watch()
    updates = len(seen.lrs)
    expect(updates > 0, because="optimizer.step was never called: the gradients are computed and thrown away, and the "
                                "net stays as it was")
    expect_equal(updates, len(seen.xs), because="every batch has an update of its own: optimizer.step stands inside the"
                                                " loop, after backward")


@exercise("1.10")
def test_no_row_is_left_out():
    seen, _ = watch()
    expect_equal([len(x) for x in seen.xs], [4, 4, 2],
                 because="10 rows at batch size 4 make batches of 4, 4 and 2; was the last, smaller one dropped?")
    expect_equal(sorted(np.concatenate(seen.xs)[:, 0].tolist()), list(range(N)), because="an epoch sees every row once")


@exercise("1.10")
def test_labels_stay_with_their_images():
    seen, _ = watch()
    for x, y in zip(seen.xs, seen.ys, strict=True):
        expect_equal(x[:, 0].tolist(), y.tolist(),
                     because="row i of x must meet label i: take both with the same indices; the labels were left in "
                             "place or shuffled on their own")


@exercise("1.10")
def test_order_is_drawn_anew_from_rng():
    rng = np.random.default_rng(0)
    first, second = (np.concatenate(watch(rng)[0].xs)[:, 0].tolist() for _ in range(2))
    expect(first != list(range(N)),
           because="the rows come in their own order: data sorted by label then gives batches of one label; shuffle "
                   "with rng.permutation")
    expect(first != second,
           because="both epochs have the same order: draw a new one each time, from the rng that is passed in")
    again = np.random.default_rng(0)
    want = [again.permutation(N).tolist(), again.permutation(N).tolist()]
    expect_equal([first, second], want,
                 because="the order should be one call of rng.permutation(n) an epoch: with the global np.random, or "
                         "further draws, the same seed no longer gives the same run")


@exercise("1.10")
def test_steps_count_from_one():
    seen, _ = watch()
    expect_equal(seen.lrs, [1.0, 2.0, 3.0],
                 because="the first step has number 1 and takes schedule(1); from 0, warm-up would make the first "
                         "update with a learning rate of 0")


@exercise("1.10")
def test_steps_count_over_the_whole_run():
    seen, _ = watch(steps_done=3)
    expect_equal(seen.lrs, [4.0, 5.0, 6.0],
                 because="3 steps were done before this epoch, so this one has steps 4, 5 and 6, each with its own "
                         "schedule(step)")


@exercise("1.10")
def test_each_batch_is_a_full_step():
    seen, _ = watch()
    expect_equal(seen.events, ["forward", "loss", "backward", "update"] * 3,
                 because="each batch goes through forward, loss, backward and one update before the next begins")
    want = [item for i in (1, 2, 3) for item in ((f"tape {i}", f"dout {i}"), [f"grads {i}"])]
    expect_equal(seen.passed, want,
                 because="backward takes this batch's tape and the loss's gradient, the optimiser takes what backward "
                         "returned")


@exercise("1.10")
def test_every_steps_loss_is_returned():
    _, losses = watch()
    expect_equal(losses, [1.0, 2.0, 3.0],
                 because="the return value is the list of the steps' losses: one number a batch")


class LeastSquares:
    """y = x @ w, with its gradient by hand."""

    def __init__(self) -> None:
        self.params = [np.zeros(3)]

    def forward(self, x):
        return x @ self.params[0], x

    def backward(self, tape, dout):
        return [tape.T @ dout]


class PlainDescent:
    def __init__(self, params):
        self.params = params

    def step(self, grads, lr):
        for p, g in zip(self.params, grads, strict=True):
            p -= lr * g


@exercise("1.10")
def test_two_epochs_equal_a_torch_loop():
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((11, 3)), rng.standard_normal(11)
    model = LeastSquares()
    order = np.random.default_rng(1)
    for epoch in range(2):
        train_mlp.train_epoch(model, lambda out, y: (float(np.mean((out - y) ** 2)), 2 * (out - y) / len(y)),
                              PlainDescent(model.params), x, y, 4, order, lambda step: 0.1 / step, 3 * epoch)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    order, step = np.random.default_rng(1), 0
    for _ in range(2):
        for batch in torch.from_numpy(order.permutation(11)).split(4):
            step += 1
            loss = ((torch.from_numpy(x)[batch] @ w - torch.from_numpy(y)[batch]) ** 2).mean()
            (grad,) = torch.autograd.grad(loss, w)
            w.data -= 0.1 / step * grad
    expect_close(model.params[0], w, because="two epochs of least squares end elsewhere than the same loop in torch")
