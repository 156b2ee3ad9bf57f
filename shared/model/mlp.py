"""A multilayer perceptron in NumPy: the forward pass, the losses, and every gradient derived by hand.

Names: `x` goes into a function, `dout` is the loss's gradient with respect to what came out of it, and `dx`, `dw`, `db`
are the gradients with respect to what went in. A gradient always has the shape of the array it belongs to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def linear(x: Array, w: Array, b: Array) -> Array:
    """An affine map: every output is a weighted sum of the inputs, plus a bias.

    x: [batch, in]; w: [out, in], one row for each output (torch's layout); b: [out].  Returns [batch, out].

    >>> linear(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]), np.array([0.5, 0.0, -0.5]))
    array([[11.5, 17. , 22.5]])
    """
    # exercise 1.1: multiply x by w's rows, then add the bias to every row of the result
    return x @ w.T + b  # [batch, out]
    # end


def linear_backward(dout: Array, x: Array, w: Array, need_dx: bool = True) -> tuple[Any, Array, Array]:
    """Gradients of `linear`: how the loss changes with x, w and b, given how it changes with the output.

    dout: [batch, out]; x: [batch, in] and w: [out, in] as `linear` got them.
    Returns (dx [batch, in], dw [out, in], db [out]).  The loss's mean over the batch is already in dout: only sum here.
    With need_dx=False dx is None and not computed: below the first layer nobody asks for it.

    >>> dout, x, w = np.array([[1.0, 10.0]]), np.array([[2.0, 3.0]]), np.array([[4.0, 5.0], [6.0, 7.0]])
    >>> [gradient.tolist() for gradient in linear_backward(dout, x, w)]
    [[[64.0, 75.0]], [[2.0, 3.0], [20.0, 30.0]], [1.0, 10.0]]
    """
    # exercise 1.2: each gradient is dout times "the other factor"; sum over the batch where the batch must vanish
    dx = dout @ w if need_dx else None  # [batch, in]
    dw = dout.T @ x  # [out, in]; the product sums over the batch
    db = dout.sum(axis=0)  # [out]
    return dx, dw, db
    # end


def relu(x: Array) -> Array:
    """max(x, 0), element by element. Without it, any stack of linear layers is one linear layer."""
    return np.maximum(x, 0)


def relu_backward(dout: Array, x: Array) -> Array:
    """Gradient of `relu`: dout passes where relu's input was positive and stops elsewhere (at 0 too, as in torch).

    dout and x: the same shape; x is what relu got.  Returns a new array of that shape and dout's dtype.

    >>> relu_backward(np.array([5.0, 5.0, -5.0]), np.array([-1.0, 2.0, 3.0]))
    array([ 0.,  5., -5.])
    """
    # exercise 1.3: keep dout where x was above zero
    return dout * (x > 0)
    # end


def softmax_cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean of -log softmax(logits)[label] over the batch, and its gradient (softmax - one_hot(labels)) / batch.

    logits: [batch, classes], any finite size: 1000 and -1000 are as good as 1 and -1; labels: [batch] integers.
    Returns (loss, dlogits [batch, classes] in the dtype of logits).  Leaves logits as they were.

    >>> softmax_cross_entropy(np.array([[0.0, 0.0]]), np.array([1]))  # a fair coin costs log 2
    (0.6931471805599453, array([[ 0.5, -0.5]]))
    """
    # exercise 1.4: the loss as logsumexp(row) - row[label], and the gradient
    #   subtract each row's maximum first: it changes neither, and exp can then not overflow
    shifted = logits - logits.max(axis=1, keepdims=True)  # [batch, classes], at most 0
    exp = np.exp(shifted)
    total = exp.sum(axis=1, keepdims=True)  # [batch, 1]
    rows = np.arange(len(labels))
    loss = np.mean(np.log(total[:, 0]) - shifted[rows, labels])
    dlogits = exp / total
    dlogits[rows, labels] -= 1
    return float(loss), dlogits / len(labels)
    # end


def mse(pred: Array, target: Array) -> tuple[float, Array]:
    """Mean squared error over all elements (torch's F.mse_loss), and its gradient.

    pred and target: the same shape, so that no broadcasting can hide a mistake; ValueError otherwise.
    Returns (loss, dpred in pred's shape).

    >>> mse(np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]]))  # (1 + 4) / 2
    (2.5, array([[ 1., -2.]]))
    """
    if pred.shape != target.shape:
        raise ValueError(f"mse: pred has shape {pred.shape}, target {target.shape}; they must be equal")
    # exercise 1.5: the mean of the squared differences, and the derivative of exactly that
    diff = pred - target
    return float(np.mean(diff * diff)), diff * (2 / diff.size)
    # end


class MLP:
    """linear, relu, linear, relu, ..., linear.  `params` is the flat list [w1, b1, w2, b2, ...] an optimiser works on.

    sizes: width of the input, of each hidden layer, of the output: (784, 128, 10).  Weights start at
    normal(0, sqrt(2 / in)), which keeps the signal's size through ReLUs (He et al. 2015, section 2.2); biases at 0.
    """

    def __init__(self, sizes: Sequence[int], rng: np.random.Generator, dtype: type = np.float32):
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes needs an input and an output width, each at least 1; got {tuple(sizes)}")
        self.params: list[Array] = []
        for n_in, n_out in zip(sizes, sizes[1:], strict=False):
            w = rng.standard_normal((n_out, n_in)) * np.sqrt(2 / n_in)
            self.params += [w.astype(dtype), np.zeros(n_out, dtype)]

    def forward(self, x: Array) -> tuple[Array, list[tuple[Array, Array]]]:
        """x: [batch, in] -> (output [batch, out], tape).

        The tape holds, for each layer, its input and what came out of `linear` before relu: what backward will need.
        It belongs to this call; the model keeps nothing, so two batches can be in flight at once.
        """
        tape = []
        n_layers = len(self.params) // 2
        for i in range(n_layers):
            z = linear(x, self.params[2 * i], self.params[2 * i + 1])
            tape.append((x, z))
            x = relu(z) if i < n_layers - 1 else z  # the last layer's numbers are logits: no relu
        return x, tape

    def backward(self, tape: list[tuple[Array, Array]], dout: Array) -> list[Array]:
        """The chain rule, from the last layer to the first.

        tape: what forward returned; dout: [batch, out], the loss's gradient with respect to the output.
        Returns the gradients in the order of `params`: [dw1, db1, dw2, db2, ...].  The input's own gradient is not
        computed.
        """
        # exercise 1.6: walk the tape from its end; each layer turns dout into dw, db and the dout of the layer below
        #   undo forward's steps in reverse: relu (not after the last layer), then linear
        grads: list[Array] = []
        for i in reversed(range(len(tape))):
            x, z = tape[i]
            if i < len(tape) - 1:
                dout = relu_backward(dout, z)
            dout, dw, db = linear_backward(dout, x, self.params[2 * i], need_dx=i > 0)
            grads = [dw, db, *grads]
        return grads
        # end
