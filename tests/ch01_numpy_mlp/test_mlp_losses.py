"""Exercises 1.4 and 1.5: judged by hand-made numbers, finite differences in float64, and torch's autograd."""

import numpy as np
import torch
from torch.nn import functional as F

from chapters.ch01_numpy_mlp import mlp
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts
from shared.training.gradcheck import numerical_gradient
from tests.ch01_numpy_mlp.arrays import as_torch, expect_numpy, expect_one_number, normal

# 1.4 softmax_cross_entropy


def quiet_cross_entropy(logits: list, labels: list) -> tuple[float, np.ndarray]:
    with np.errstate(all="ignore"):
        return mlp.softmax_cross_entropy(np.array(logits, dtype=float), np.array(labels))


@exercise("1.4")
def test_a_fair_coin_costs_log_2():
    got = quiet_cross_entropy([[0.0, 0.0]], [1])
    expect_parts(got, ("loss", "dlogits"), because="return both, the loss and its gradient: (loss, dlogits)")
    expect_one_number(got[0], "the images of the batch")
    expect_numpy(got[1], "dlogits")
    expect(abs(got[0]) > 1e-9, because="two equal logits came out as certain, with a loss of 0: the sum of exp went "
                                       "down the columns, axis 0, and met one image only; a row's classes lie along "
                                       "axis 1")
    expect_close(got[0], np.log(2), because="two equal logits give the label probability 1/2, and -log(1/2) = 0.6931")


@exercise("1.4")
def test_the_maximum_is_the_rows():
    loss, _ = quiet_cross_entropy([[0.0, 2.0]], [1])
    expect(abs(loss - np.log(2)) > 1e-6,
           because="logits of 0 and 2 came out like two equal ones: the maximum was taken down the columns, axis 0, "
                   "which makes a single row all zeros; take each row's, axis 1")


@exercise("1.4")
def test_the_loss_is_a_mean_over_the_batch():
    loss, _ = quiet_cross_entropy([[0.0, 0.0]] * 4, [0, 1, 1, 0])
    expect(abs(loss - np.log(8)) > 1e-6, because="exp was summed over the whole batch, 8 numbers: each row has a sum "
                                                 "of its own, axis=1 with keepdims=True")
    expect_close(loss, np.log(2), because="four fair coins cost what one does, 0.6931: the loss is a mean over the "
                                          "batch; a sum makes it 4 times that")


@exercise("1.4")
def test_softmax_runs_over_classes():
    _, dlogits = quiet_cross_entropy([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0], [2.0, 0.0, 0.0]], [0, 1, 2])
    expect(np.ptp(np.sum(dlogits, axis=1)) < 1e-9,
           because="each image shares out a probability of 1 among its classes, whatever the other images are: "
                   "sum over the classes, axis 1, with keepdims=True; axis 0 is the batch")


@exercise("1.4")
def test_each_row_has_its_own_label():
    loss, dlogits = quiet_cross_entropy([[40.0, 0.0], [0.0, 40.0]], [0, 1])
    because = ("each row has one label, its own: [np.arange(batch), labels] picks one number from each row; "
               "[:, labels] takes every image's label in every row, and [labels] takes whole rows")
    expect_close(loss, 0.0, because=because)
    expect(dlogits[0, 1] > -0.1, because=because)


@exercise("1.4")
def test_gradient_is_softmax_minus_one_hot():
    _, dlogits = quiet_cross_entropy([[0.0, 0.0]], [1])
    expect_close(dlogits, [[0.5, -0.5]], because="the gradient is softmax minus one-hot: 1 is taken off at the label")


@exercise("1.4")
def test_large_logits_do_not_overflow():
    loss, dlogits = quiet_cross_entropy([[1000.0, 0.0]], [0])
    expect_close(loss, 0.0, because="exp(1000) is infinite: subtract each row's maximum before exp; "
                                    "a shift of the whole row changes neither loss nor gradient")
    expect_close(dlogits, [[0.0, 0.0]], because="exp(1000) is infinite: subtract each row's maximum before exp")


@exercise("1.4")
def test_every_row_has_its_own_maximum():
    loss, _ = quiet_cross_entropy([[1000.0, 1000.0], [0.0, 0.0]], [0, 0])
    expect_close(loss, np.log(2),
                 because="with one maximum for the whole batch the second row is exp(-1000) = 0 and its log is -inf: "
                         "take the maximum of each row (axis=1, keepdims=True)")


@exercise("1.4")
def test_a_hopeless_label_has_a_finite_loss():
    loss, _ = quiet_cross_entropy([[1000.0, 0.0]], [1])
    expect_close(loss, 1000.0, because="the label's probability is so small that it rounds to 0, and log(0) is -inf: "
                                       "take log(sum(exp(row))) - row[label], never the log of the softmax")


@exercise("1.4")
def test_loss_and_gradient_are_means_over_the_batch():
    one_loss, one_gradient = quiet_cross_entropy([[1.0, 2.0, 0.5]], [0])
    loss, dlogits = quiet_cross_entropy([[1.0, 2.0, 0.5]] * 4, [0] * 4)
    expect_close(loss, one_loss, because="four equal rows have the loss of one: it is a mean over the batch, not a sum")
    expect_close(dlogits, np.repeat(one_gradient, 4, axis=0) / 4,
                 because="the loss is a mean over the batch, so each row's gradient carries 1/batch; without it the "
                         "learning rate grows with the batch size")


@exercise("1.4")
def test_logits_are_left_alone():
    logits = np.array([[3.0, 1.0]])
    mlp.softmax_cross_entropy(logits, np.array([0]))
    expect_equal(logits, np.array([[3.0, 1.0]]),
                 because="logits was changed in place (by -= perhaps); the caller still wants to see what the model "
                         "said")


@exercise("1.4")
def test_cross_entropy_gradient_matches_finite_differences():
    logits, labels = normal(4, 5), np.array([0, 4, 2, 2])
    _, dlogits = mlp.softmax_cross_entropy(logits, labels)
    view, targets = torch.from_numpy(logits), torch.from_numpy(labels)  # view shares logits' memory
    want = numerical_gradient(lambda: F.cross_entropy(view, targets).item(), logits)
    expect_close(dlogits, want, rtol=1e-5, atol=1e-8, because="the gradient is (softmax - one_hot) / batch")


@exercise("1.4")
def test_cross_entropy_equals_torch():
    for scale in (1, 30):
        logits, labels = as_torch(scale * normal(6, 10)), torch.tensor([0, 9, 3, 3, 1, 7])
        want = F.cross_entropy(logits, labels)
        want.backward()
        loss, dlogits = mlp.softmax_cross_entropy(logits.detach().numpy(), labels.numpy())
        expect_close(loss, want, because="the loss should be torch's F.cross_entropy")
        expect_close(dlogits, logits.grad, because="the gradient should be that of torch's F.cross_entropy")
    _, dlogits = mlp.softmax_cross_entropy(normal(2, 3, dtype=np.float32), np.array([0, 1]))
    expect_equal(str(dlogits.dtype), "float32",
                 because="float32 in, float32 out: something turned the numbers into float64")


# 1.5 mse


@exercise("1.5")
def test_mse_of_one_number():
    got = mlp.mse(np.array([[3.0]]), np.array([[0.0]]))
    expect_parts(got, ("loss", "dpred"), because="return both, the loss and its gradient: (loss, dpred)")
    loss, dpred = got
    expect_one_number(loss, "all elements, without an axis")
    expect_numpy(dpred, "dpred")
    expect_close(loss, 9.0, because="3 squared is 9; some books halve the loss to lose the 2 in the gradient, this one "
                                    "(like torch) does not")
    expect_close(abs(dpred), [[6.0]], because="the derivative of d**2 is 2 d: the factor 2 is missing")
    expect_close(dpred, [[6.0]], because="pred is too high, so raising it raises the loss: the gradient is positive; "
                                         "you may have taken target - pred")


@exercise("1.5")
def test_mse_averages_over_all_elements():
    loss, dpred = mlp.mse(np.ones((2, 3)), np.zeros((2, 3)))
    expect_close(loss, 1.0, because="the mean runs over all 6 elements")
    expect_close(dpred, np.full((2, 3), 2 / 6),
                 because="the loss is a mean over all 6 elements, so the gradient is divided by 6 too; dividing by the"
                         " 2 rows makes it 3 times too large")


@exercise("1.5")
def test_mse_equals_torch():
    pred, target = as_torch(normal(4, 3)), normal(4, 3, seed=1)
    want = F.mse_loss(pred, torch.from_numpy(target))
    want.backward()
    loss, dpred = mlp.mse(pred.detach().numpy(), target)
    expect_close(loss, want, because="the loss should be torch's F.mse_loss")
    expect_close(dpred, pred.grad, because="the gradient should be that of torch's F.mse_loss")
