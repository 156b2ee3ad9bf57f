"""Exercise 1.6: judged by finite differences in float64 and torch's autograd."""

import numpy as np
import torch
from torch.nn import functional as F

from chapters.ch01_numpy_mlp import mlp
from chapters.judge import exercise, expect_close, expect_equal
from shared.training.gradcheck import numerical_gradient
from tests.ch01_numpy_mlp.arrays import as_torch, normal

# 1.6 MLP.backward


def gradients_of(sizes: tuple[int, ...], batch: int = 6) -> tuple[list[np.ndarray], list[torch.Tensor], mlp.MLP]:
    """The reader's gradients of a random net for a random dout, torch's gradients, and the net."""
    model = mlp.MLP(sizes, np.random.default_rng(1), dtype=np.float64)
    for i, p in enumerate(model.params):
        p[...] = normal(*p.shape, seed=i)  # biases other than 0 too
    x, dout = normal(batch, sizes[0]), normal(batch, sizes[-1], seed=7)
    params = [as_torch(p) for p in model.params]
    out = torch.from_numpy(x)
    for i in range(0, len(params), 2):
        out = F.linear(out, params[i], params[i + 1])
        out = F.relu(out) if i < len(params) - 2 else out
    out.backward(torch.from_numpy(dout))
    _, tape = model.forward(x)
    return model.backward(tape, dout), [p.grad for p in params], model


@exercise("1.6")
def test_gradients_come_in_the_order_of_params():
    got, _, model = gradients_of((3, 4, 5, 2))
    expect_equal(
        [np.shape(g) for g in got],
        [p.shape for p in model.params],
        because="the list must match params: [dw1, db1, dw2, db2, ...]. Backward meets the last layer first, "
        "so each pair goes in front of the list",
    )


@exercise("1.6")
def test_one_layer_has_no_relu():
    got, want, _ = gradients_of((3, 2))
    expect_close(
        got[0],
        want[0],
        because="a net of one layer is just linear: relu stands between layers, and there is none behind the "
        "last; its backward must not be applied to the logits",
    )


@exercise("1.6")
def test_relu_blocks_on_the_way_back():
    got, want, _ = gradients_of((3, 3, 3))
    expect_close(
        got[2],
        want[2],
        because="the last layer's dw is wrong: backward begins at that layer, with the dout it was given; nothing "
        "stands between the logits and linear_backward",
    )
    expect_close(
        got[0],
        want[0],
        because="the gradient that leaves the last layer must pass relu_backward with that relu's own input, "
        "the z in the tape of the layer below, before it meets that layer's linear; it may be "
        "skipped, or masked with the wrong array",
    )


@exercise("1.6")
def test_deep_net_equals_autograd():
    for sizes in [(3, 2), (4, 5, 3), (2, 6, 6, 6, 3)]:
        got, want, _ = gradients_of(sizes)
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            kind = "dw" if i % 2 == 0 else "db"
            expect_close(g, w, because=f"{kind}{i // 2 + 1} of a net with widths {sizes} is not autograd's")


@exercise("1.6")
def test_net_gradients_match_finite_differences():
    model = mlp.MLP((3, 4, 2), np.random.default_rng(3), dtype=np.float64)
    x, dout = normal(5, 3), normal(5, 2, seed=2)
    w1, b1, w2, b2 = model.params
    _, tape = model.forward(x)
    got = model.backward(tape, dout)

    def loss() -> float:
        return float(np.sum((np.maximum(x @ w1.T + b1, 0) @ w2.T + b2) * dout))

    for name, p, g in zip(("dw1", "db1", "dw2", "db2"), model.params, got, strict=True):
        expect_close(
            g,
            numerical_gradient(loss, p),
            rtol=1e-5,
            atol=1e-7,
            because=f"{name} differs from what nudging the parameter by a millionth does to the loss",
        )


@exercise("1.6")
def test_the_tape_can_be_read_twice():
    model = mlp.MLP((3, 4, 2), np.random.default_rng(0), dtype=np.float64)
    _, tape = model.forward(normal(5, 3))
    length = len(tape)
    model.backward(tape, normal(5, 2, seed=2))
    expect_equal(
        len(tape), length, because="the tape is the caller's: read it from its end, reversed(tape), without popping"
    )
