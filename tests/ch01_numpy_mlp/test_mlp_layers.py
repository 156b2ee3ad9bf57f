"""Exercises 1.1 to 1.3: judged by hand-made numbers, finite differences in float64, and torch's autograd."""

import numpy as np
import torch
from torch.nn import functional as F

from chapters.ch01_numpy_mlp import mlp
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal, expect_parts
from shared.training.gradcheck import numerical_gradient
from tests.ch01_numpy_mlp.arrays import as_torch, expect_numpy, normal

SHAPES = [(1, 1, 1), (1, 3, 2), (5, 2, 7), (4, 6, 6)]  # batch, in, out


# 1.1 linear


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The reader's linear, with a word on the shapes when NumPy can't put them together."""
    with crash_means("the shapes don't fit: x is [batch, in], w is [out, in], and the result is [batch, out]. x comes "
                     "first, so that the batch stays in front, and w is turned over, so that in meets in: x @ w.T",
                     ValueError):
        return mlp.linear(x, w, b)


@exercise("1.1")
def test_every_row_gets_the_bias():
    got = linear(np.zeros((2, 2)), np.ones((2, 2)), np.array([10.0, 20.0]))
    expect_numpy(got)
    expect_close(got, [[10.0, 20.0], [10.0, 20.0]],
                 because="with x = 0 every row of the result is b; the bias may be missing, or added down a column, "
                         "where it should go along each row")


@exercise("1.1")
def test_a_row_of_w_makes_an_output():
    got = linear(np.array([[1.0, 0.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros(2))
    expect_close(got, [[1.0, 3.0]], because="w is [out, in]: each output takes a row of w, so the product is x @ w.T; "
                                            "you may have written x @ w, which takes columns, or w @ x.T, whose rows "
                                            "are the outputs")


@exercise("1.1")
def test_linear_equals_torch():
    for batch, n_in, n_out in SHAPES:
        x, w, b = normal(batch, n_in), normal(n_out, n_in), normal(n_out)
        want = F.linear(torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b))
        expect_close(linear(x, w, b), want, because="the result should be torch's F.linear(x, w, b)")


@exercise("1.1")
def test_linear_keeps_float32():
    got = linear(*(normal(*shape, dtype=np.float32) for shape in [(2, 3), (4, 3), (4,)]))
    expect_equal(str(got.dtype), "float32",
                 because="float32 in, float32 out: something turned the numbers into float64")


# 1.2 linear_backward


@exercise("1.2")
def test_three_gradients_in_their_order():
    for need_dx in (True, False):
        got = mlp.linear_backward(np.ones((2, 3)), np.ones((2, 4)), np.ones((3, 4)), need_dx=need_dx)
        expect_parts(got, ("dx", "dw", "db"),
                     because="the caller takes three results apart, dx, dw, db: three also with need_dx=False, dx being"
                             " None then")
        for name, gradient in zip(("dx", "dw", "db"), got, strict=True):
            expect_numpy(gradient, name)
        shapes = {name: None if g is None else np.shape(g) for name, g in zip(("dx", "dw", "db"), got, strict=True)}
        want = {"dx": (2, 4) if need_dx else None, "dw": (3, 4), "db": (3,)}
        mixed_up = shapes != want and sorted(map(str, shapes.values())) == sorted(map(str, want.values()))
        expect(not mixed_up, because=f"the results are dx, dw, db in this order, shaped like x, w, b: {want}; yours "
                                     f"come in another order: {shapes}")


@exercise("1.2")
def test_bias_gradient_is_a_sum_over_the_batch():
    _, _, db = mlp.linear_backward(np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 3)), np.ones((2, 3)))
    expect_close(db, [4.0, 6.0], because="db has one number for each output, a sum over the batch, which is axis 0; "
                                         "axis 1 sums over the outputs, and a mean divides by the batch once too often")


@exercise("1.2")
def test_weight_gradient_is_shaped_like_w():
    dout, x, w = normal(4, 3), normal(4, 2), normal(3, 2)
    _, dw, _ = mlp.linear_backward(dout, x, w)
    expect_equal(np.shape(dw), (3, 2), because="dw has the shape of w, [out, in], which is dout.T @ x; "
                                               "x.T @ dout is its transpose")


@exercise("1.2")
def test_batch_is_summed_not_averaged():
    _, dw, _ = mlp.linear_backward(np.ones((4, 1)), np.ones((4, 1)), np.ones((1, 1)))
    expect_close(dw, [[4.0]], because="the loss's mean over the batch is already inside dout (as 1/batch): "
                                      "here the four rows are only added up, not divided again")


@exercise("1.2")
def test_input_gradient_goes_back_through_w():
    w = np.array([[1.0, 2.0], [3.0, 4.0]])
    dx, _, _ = mlp.linear_backward(np.array([[1.0, 0.0]]), np.ones((1, 2)), w)
    expect_close(dx, [[1.0, 2.0]], because="output 0 was made with row 0 of w, so its gradient goes back along row 0: "
                                           "dout @ w; dout @ w.T is the forward direction")


@exercise("1.2")
def test_linear_gradients_match_finite_differences():
    x, w, b, dout = normal(3, 4), normal(2, 4), normal(2), normal(3, 2)
    got = mlp.linear_backward(dout, x, w)
    for name, array, gradient in zip(("dx", "dw", "db"), (x, w, b), got, strict=True):
        want = numerical_gradient(lambda: float(np.sum((x @ w.T + b) * dout)), array)
        expect_close(gradient, want, rtol=1e-6, atol=1e-7,
                     because=f"{name} differs from what nudging {name[1:]} by a millionth does to the loss")


@exercise("1.2")
def test_linear_backward_equals_autograd():
    for batch, n_in, n_out in SHAPES:
        x, w, b = as_torch(normal(batch, n_in)), as_torch(normal(n_out, n_in)), as_torch(normal(n_out))
        dout = normal(batch, n_out, seed=1)
        F.linear(x, w, b).backward(torch.from_numpy(dout))
        with crash_means("the shapes don't fit: dout is [batch, out], x is [batch, in], w is [out, in]. dx has the "
                         "shape of x and dw that of w, and each is a product of dout (or dout.T) with the other one",
                         ValueError):
            got = mlp.linear_backward(dout, x.detach().numpy(), w.detach().numpy())
        for name, gradient, tensor in zip(("dx", "dw", "db"), got, (x, w, b), strict=True):
            expect_close(gradient, tensor.grad, because=f"{name} is not torch's gradient for batch {batch}, "
                                                        f"{n_in} inputs, {n_out} outputs")


@exercise("1.2")
def test_input_gradient_only_on_request():
    dx, dw, db = mlp.linear_backward(np.ones((2, 3)), np.ones((2, 4)), np.ones((3, 4)), need_dx=False)
    expect(dx is None, because="with need_dx=False dx is None: computing it costs a third of the multiplications")
    expect_equal([np.shape(dw), np.shape(db)], [(3, 4), (3,)], because="need_dx=False leaves dw and db as they are")


# 1.3 relu_backward


@exercise("1.3")
def test_gradient_is_scaled_by_dout():
    with crash_means("x is an array, and 'if' (like max) asks a single yes or no of all of it: compare element by "
                     "element, x > 0 gives an array of yes and no", ValueError):
        got = mlp.relu_backward(np.array([0.25, 7.0]), np.array([2.0, 3.0]))
    expect_numpy(got)
    expect_close(got, [0.25, 7.0], because="the chain rule multiplies relu's own slope, 0 or 1, by dout; "
                                           "dout, or its size, is missing")


@exercise("1.3")
def test_mask_comes_from_the_input():
    got = mlp.relu_backward(np.array([-5.0, 5.0]), np.array([3.0, -1.0]))
    expect_close(got, [-5.0, 0.0], because="what passes is decided by x, what relu got, and not by the sign of dout; "
                                           "a negative gradient passes where x was positive")


@exercise("1.3")
def test_zero_blocks():
    got = mlp.relu_backward(np.array([1.0, 1.0]), np.array([0.0, -0.0]))
    expect_close(got, [0.0, 0.0],
                 because="at exactly 0 the gradient is 0, as in torch: the comparison is x > 0, not >=; padding and "
                         "dead pixels sit exactly there")


@exercise("1.3")
def test_relu_backward_leaves_its_inputs_alone():
    dout, x = np.array([[1.0, 2.0]]), np.array([[-1.0, 1.0]])
    mlp.relu_backward(dout, x)
    expect_equal([dout.tolist(), x.tolist()], [[[1.0, 2.0]], [[-1.0, 1.0]]],
                 because="dout or x was changed: the caller may still need it; return a new array")


@exercise("1.3")
def test_relu_backward_equals_autograd():
    x, dout = as_torch(normal(5, 7)), normal(5, 7, seed=1)
    F.relu(x).backward(torch.from_numpy(dout))
    expect_close(mlp.relu_backward(dout, x.detach().numpy()), x.grad,
                 because="the result should be torch's gradient of relu")
    got = mlp.relu_backward(np.ones(3, np.float32), np.ones(3, np.float32))
    expect_equal(str(got.dtype), "float32",
                 because="float32 in, float32 out: something turned the numbers into float64")
