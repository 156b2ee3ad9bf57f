"""Exercises 6.4 and 6.5: judged by torch's clip_grad_norm_, by one large batch, and by numbers worked out by hand."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from chapters.ch06_training import gradients
from chapters.judge import exercise, expect, expect_close, expect_equal
from tests.ch06_training.words import Words, batch, grads, no_error

FP32 = gradients.Precision()


def parameters(*values):
    params = [nn.Parameter(torch.zeros(len(v) if v else 2, dtype=torch.float64)) for v in values]
    for p, v in zip(params, values, strict=True):
        p.grad = torch.tensor(v, dtype=torch.float64) if v else None
    return params


# 6.4 clip_global_norm


@exercise("6.4")
def test_clip_by_hand():
    params = parameters([3.0, 0.0], [4.0])
    norm = gradients.clip_global_norm(params, max_norm=1.0)
    expect_close(norm, 5.0, because="the length of [3, 0] and [4] together is 5, before clipping. 7 is the sum of "
                                    "the lengths, 1 the length afterwards",
                 rtol=1e-5)  # fmt: skip
    expect_close(
        params[0].grad,
        torch.tensor([0.6, 0.0]),
        rtol=1e-5,
        because="all gradients are multiplied by the same 1 / 5: 3 becomes 0.6. If it is 1, each was clipped by its "
        "own "
        "length, which turns the step in another direction; if it is 3, nothing was changed in place",
    )
    expect_close(
        params[1].grad, torch.tensor([0.8]), rtol=1e-5, because="4 becomes 0.8, by the same factor as the other"
    )


@exercise("6.4")
def test_short_gradients_stay():
    params = parameters([0.3, 0.0], [0.4])
    norm = gradients.clip_global_norm(params, max_norm=1.0)
    expect_close(norm, 0.5, rtol=1e-5, because="the length is returned whether or not anything is clipped")
    expect_close(
        params[0].grad,
        torch.tensor([0.3, 0.0]),
        because="a length below max_norm is left alone: a factor above 1 would make small gradients long, and the step "
        "the same size however good the model is",
    )


@exercise("6.4")
def test_equal_to_torch():
    for scale in (0.01, 1.0, 1e4):
        generator = torch.Generator().manual_seed(1)
        mine = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (7,), (2, 2, 2))]
        torchs = [nn.Parameter(torch.zeros_like(p)) for p in mine]
        for a, b in zip(mine, torchs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator) * scale
            b.grad = a.grad.clone()
        norm = gradients.clip_global_norm(mine, max_norm=0.7)
        want = nn.utils.clip_grad_norm_(torchs, max_norm=0.7)
        expect_close(
            norm, want, because="the length isn't that of torch's clip_grad_norm_: root of the sum of ALL squares"
        )
        for a, b in zip(mine, torchs, strict=True):
            expect_close(a.grad, b.grad, because="the clipped gradients are not those of torch's clip_grad_norm_")


@exercise("6.4")
def test_parameters_without_a_gradient():
    params = parameters([3.0], None, [4.0])
    none = "a parameter that had no part in the loss has grad None and doesn't count"
    with no_error(AttributeError, because=f"{none}: leave those out"), no_error(TypeError, because=none):
        norm = gradients.clip_global_norm(params, max_norm=10.0)
    expect_close(norm, 5.0, because=none)
    expect(params[1].grad is None, because="a parameter without a gradient keeps None")


@exercise("6.4")
def test_parameters_from_a_generator():
    params = parameters([3.0], [4.0])
    once = "parameters may be a generator, which is empty the second time; gather a list first"
    expect_close(gradients.clip_global_norm((p for p in params), max_norm=1.0), 5.0, rtol=1e-5, because=once)
    expect_close([p.grad.item() for p in params], [0.6, 0.8], rtol=1e-5, because=once)


# 6.5 accumulate


@exercise("6.5")
def test_equal_to_one_large_batch():
    inputs, labels = batch(rows=6)
    small, large = Words(), Words()
    parts = [(inputs[:1], labels[:1]), (inputs[1:4], labels[1:4]), (inputs[4:], labels[4:])]
    loss = gradients.accumulate(small, parts, FP32)
    want = F.cross_entropy(large(inputs).flatten(0, 1), labels.flatten())
    want.backward()
    because = (
        "the loss is the mean over all tokens of all micro-batches, which hold 1, 3 and 2 rows here; a mean of the "
        "micro-batches' means weighs a token in a small one more"
    )
    if loss is not None and abs(float(torch.as_tensor(loss).detach()) - want.item() / 3) < 1e-6:
        because = "that is a third: the sum is over the number of tokens already, and not over the micro-batches, too"
    expect_close(loss, want, rtol=1e-6, because=because)
    for a, b in zip(grads(small), grads(large), strict=True):
        expect_close(
            a,
            b,
            rtol=1e-6,
            atol=1e-12,
            because="the gradients aren't those of one large batch. If they are those of the last micro-batch alone, "
            "something zeroes them in between; if they are a whole factor too large, the sum was not divided",
        )


@exercise("6.5")
def test_ignored_labels_do_not_count():
    inputs, labels = batch(rows=4, ignored=8)  # the first row and most of the second
    small, large = Words(), Words()
    loss = gradients.accumulate(small, [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])], FP32)
    want = F.cross_entropy(large(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100)
    want.backward()
    expect_close(
        loss,
        want,
        rtol=1e-6,
        because="labels of -100 are no tokens: here the two micro-batches hold 2 and 10 labelled ones, not 10 and 10. "
        "Divide by the number of labels that aren't IGNORED",
    )
    for a, b in zip(grads(small), grads(large), strict=True):
        expect_close(a, b, rtol=1e-6, atol=1e-12, because="with ignored labels the gradients aren't those of one batch")


@exercise("6.5")
def test_gradients_are_added_to_what_is_there():
    model = Words()
    part = [batch(rows=2)]
    gradients.accumulate(model, part, FP32)
    once = grads(model)
    gradients.accumulate(model, part, FP32)
    for a, b in zip(grads(model), once, strict=True):
        expect_close(
            a, 2 * b, because="accumulate adds to the gradients; zeroing them is the step's business, not its own"
        )


@exercise("6.5")
def test_a_divisor_from_outside():
    model = Words()
    part = [batch(rows=2, length=5)]
    a = gradients.accumulate(model, part, FP32)
    model.zero_grad()
    b = gradients.accumulate(model, part, FP32, divisor=20)
    expect_close(b, a / 2, because="with divisor=20 the sum of the 10 losses is divided by 20: the caller knows of "
                                   "tokens "
                                   "in other processes")  # fmt: skip


@exercise("6.5")
def test_no_graph_is_kept():
    loss = gradients.accumulate(Words(), [batch(rows=2), batch(rows=2)], FP32)
    expect(
        isinstance(loss, torch.Tensor),
        because="return a tensor: loss.item() and float(loss) make a GPU's caller wait in every micro-batch until all "
        "is computed. Add up loss.detach()",
    )
    expect(
        not loss.requires_grad,
        because="the returned loss still hangs on the graph that backward has used up: who keeps a run's losses keeps "
        "all those graphs with them; detach it",
    )


@exercise("6.5")
def test_one_micro_batch_in_memory():
    events = []

    class Noted(Words):
        def forward(self, ids):
            events.append("forward")
            return super().forward(ids)

    model = Noted()
    model.head.weight.register_hook(lambda grad: events.append("backward"))
    gradients.accumulate(model, [batch(rows=1)] * 3, FP32)
    expect_equal(
        events,
        ["forward", "backward"] * 3,
        because="each micro-batch needs its backward pass before the next one's forward pass: backward frees what the "
        "forward pass keeps. One backward over the sum, or one pass over all of them together, needs the memory of the "
        "large batch, and saving that is the point",
    )


@exercise("6.5")
def test_the_precision_is_used():
    seen = []

    class Noted(Words):
        def forward(self, ids):
            seen.append(super().forward(ids))
            return seen[-1]

    part = batch(rows=2)
    loss = gradients.accumulate(Noted(torch.float32), [part], gradients.Precision("bf16"))
    expect_equal(
        str(seen[0].dtype),
        "torch.bfloat16",
        because="with bf16 the model must run under precision.autocast(), and it ran in fp32; token_losses does that",
    )
    expect_close(
        loss,
        F.cross_entropy(seen[0].detach().float().flatten(0, 1), part[1].flatten()),
        because="the logits are bf16, and the loss is to be computed from them in fp32; token_losses does that",
    )


@exercise("6.5")
def test_the_scaler_is_used():
    precision = gradients.Precision()
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    plain, scaled = Words(torch.float32), Words(torch.float32)
    loss = gradients.accumulate(plain, [batch(rows=2)], FP32)
    same = gradients.accumulate(scaled, [batch(rows=2)], precision)
    expect_close(same, loss, because="what is returned is the true loss, not the scaled one")
    for a, b in zip(grads(scaled), grads(plain), strict=True):
        expect_close(a, 64 * b, because="backward must go through precision.scaler.scale(loss): in fp16, gradients "
                                        "that "
                                        "aren't scaled up become zero")  # fmt: skip


@exercise("6.5")
def test_processes_exchange_gradients_once():
    class Distributed(Words):
        """Like DDP: what counts is whether it is to wait when forward runs, and when backward runs."""

        waiting = False

        def __init__(self):
            super().__init__()
            self.forwards, self.backwards = [], []

        @contextmanager
        def no_sync(self):
            self.waiting = True
            yield
            self.waiting = False

        def forward(self, ids):
            self.forwards.append("waits" if self.waiting else "exchanges")
            return super().forward(ids)

    model = Distributed()
    model.head.weight.register_hook(lambda grad: model.backwards.append("waits" if model.waiting else "exchanges"))
    gradients.accumulate(model, [batch(rows=1)] * 3, FP32)
    want = ["waits", "waits", "exchanges"]
    expect_equal(
        model.backwards,
        want,
        because="forward and backward both stand inside `with last_only(model, is_last):`, with is_last for the last "
        "one only: three exchanges cost three times the network, and none leaves every process with its own gradients",
    )
    expect_equal(
        model.forwards,
        want,
        because="the forward pass stands outside `with last_only(…)`; DDP decides in its forward pass whether this "
        "micro-batch's gradients are exchanged, so forward and backward both belong inside",
    )
