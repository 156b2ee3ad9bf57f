"""Exercise 6.6: judged by steps done by hand, and by what the optimiser is given to see."""

import torch
import torch.nn.functional as F

from chapters.ch06_training import gradients
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts
from tests.ch06_training.words import Words, batch, grads, no_error

FP32 = gradients.Precision()


class Spy(torch.optim.SGD):
    """Notes the gradients and the rate that it is asked to step with."""

    def step(self, closure=None):
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        self.rates = [group["lr"] for group in self.param_groups]
        self.steps = getattr(self, "steps", 0) + 1
        return super().step()


def length(tensors) -> torch.Tensor:
    return torch.stack([t.norm() for t in tensors]).norm()


@exercise("6.6")
def test_one_step_by_hand():
    model, twin = Words(), Words()
    inputs, labels = batch(rows=4)
    optimizer = Spy(model.parameters(), lr=9.0)
    parts = [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])]
    with no_error(KeyError, because='a group may have no "lr_scale" of its own: group.get("lr_scale", 1.0)'):
        both = gradients.train_step(model, optimizer, parts, lr=0.5, max_norm=1e6, precision=FP32)
    expect_parts(both, ("loss", "norm"), because="return the mean loss and the gradients' length before clipping")
    loss, norm = both
    expect_equal(
        getattr(optimizer, "steps", 0),
        1,
        because="two micro-batches are one step: the optimiser steps once, after both, not after each",
    )
    want = F.cross_entropy(twin(inputs).flatten(0, 1), labels.flatten())
    want.backward()
    expect_close(loss, want, rtol=1e-6, because="the first thing returned is the mean loss before the step")
    expect_close(norm, length(grads(twin)), rtol=1e-5, because="the second thing returned is the gradients' length "
                                                               "before clipping. "
                 "If it is 0, they were zeroed after accumulate instead of before")  # fmt: skip
    expect_equal(
        optimizer.rates, [0.5], because="the step must use the rate it is given: put lr into every param group"
    )
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        expect_close(a, b - 0.5 * b.grad, rtol=1e-6, because="the weights are not where one step of 0.5 times the "
                                                             "gradient "
                                                             "leads")  # fmt: skip


@exercise("6.6")
def test_the_divisor_is_handed_on():
    model, same = Words(), Words()
    part = [batch(rows=2, length=5)]
    usual, _ = gradients.train_step(model, Spy(model.parameters(), lr=0.1), part, 0.1, 1e6, FP32)
    halved, _ = gradients.train_step(same, Spy(same.parameters(), lr=0.1), part, 0.1, 1e6, FP32, divisor=20)
    expect_close(
        halved,
        usual / 2,
        because="with divisor=20 the 10 tokens' losses are divided by 20: hand the divisor on to accumulate, or with "
        "several processes each counts its own tokens only",
    )


@exercise("6.6")
def test_old_gradients_are_gone():
    model, twin = Words(), Words()
    for p in model.parameters():
        p.grad = torch.full_like(p, 100.0)
    part = [batch(rows=2)]
    optimizer = Spy(model.parameters(), lr=0.1)
    gradients.train_step(model, optimizer, part, lr=0.1, max_norm=1e6, precision=FP32)
    gradients.accumulate(twin, part, FP32)
    expect_close(
        length(optimizer.seen), length(grads(twin)), rtol=1e-5,
        because="gradients of the step before are still in: zero_grad comes first, before the micro-batches",
    )  # fmt: skip


@exercise("6.6")
def test_clipped_before_the_step():
    model = Words()
    optimizer = Spy(model.parameters(), lr=0.1)
    _, norm = gradients.train_step(model, optimizer, [batch(rows=2)], lr=0.1, max_norm=0.01, precision=FP32)
    expect_close(
        length(optimizer.seen), 0.01, rtol=1e-3,
        because="the optimiser must see clipped gradients; clipping after the step changes nothing",
    )  # fmt: skip
    expect(
        norm > 0.02, because="the length returned is the one before clipping: it is what tells that something is wrong"
    )


@exercise("6.6")
def test_unscaled_before_clipping():
    model, plain = Words(torch.float32), Words(torch.float32)
    precision = gradients.Precision()
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer, part = Spy(model.parameters(), lr=0.1), [batch(rows=2)]
    _, norm = gradients.train_step(model, optimizer, part, lr=0.1, max_norm=1e6, precision=precision)
    gradients.accumulate(plain, part, FP32)
    expect_close(
        norm, length(grads(plain)), rtol=1e-4,
        because="the length is 1024 times too large: with fp16 the gradients are scaled up, and must be unscaled "
        "before "
        "they are clipped, or every step is clipped to nearly nothing",
    )  # fmt: skip
    expect_close(length(optimizer.seen), length(grads(plain)), rtol=1e-4, because="the optimiser must see true "
                                                                                  "gradients, "
                 "unscaled exactly once")  # fmt: skip


@exercise("6.6")
def test_an_overflow_leaves_the_step_out():
    model = Words(torch.float32)
    precision = gradients.Precision()
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model.head.weight.register_hook(lambda grad: grad * float("inf"))
    optimizer = Spy(model.parameters(), lr=0.1)
    gradients.train_step(model, optimizer, [batch(rows=2)], lr=0.1, max_norm=1.0, precision=precision)
    expect(
        not hasattr(optimizer, "steps") and all(p.isfinite().all() for p in model.parameters()),
        because="the gradients overflowed, and the step was made all the same; the step must go through "
        "precision.scaler.step(optimizer), which looks",
    )
    expect_close(precision.scaler.get_scale(), 512.0, because="after an overflow precision.scaler.update() halves "
                                                              "the scale; "
                 "without it the next step overflows, too, and every one after that")  # fmt: skip


@exercise("6.6")
def test_groups_with_a_rate_of_their_own():
    model = Words()
    groups = [{"params": [model.embedding.weight], "lr_scale": 4.0}, {"params": list(model.head.parameters())}]
    optimizer = Spy(groups, lr=9.0)
    gradients.train_step(model, optimizer, [batch(rows=2)], lr=0.5, max_norm=1.0, precision=FP32)
    expect_equal(
        optimizer.rates, [2.0, 0.5], because='every group gets lr times its own "lr_scale", 1 where it has none'
    )
