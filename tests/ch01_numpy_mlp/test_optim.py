"""Exercises 1.7 to 1.9: judged by hand-made numbers and by torch.optim."""

import numpy as np
import torch

from chapters.ch01_numpy_mlp import optim
from chapters.judge import exercise, expect, expect_close, expect_equal

IN_PLACE = ("the array that the model holds did not change: p = p - ... makes a new array and leaves the model's as it "
            "was; write p -= ...")
GRADS_CHANGED = ("the gradients were changed: they belong to the caller. An in-place operation on g, or on a velocity "
                 "that is g itself, does that")


def run_both(ours, theirs_class, steps: int, dtype: type, lrs: list[float], **options) -> tuple[list, list]:
    """Parameters after the same steps with the reader's optimiser and with torch's."""
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape).astype(dtype) for shape in [(3, 2), (3,), (1,)]]
    params, tensors = [p.copy() for p in start], [torch.from_numpy(p.copy()).requires_grad_() for p in start]
    mine, theirs = ours(params), theirs_class(tensors, lr=1.0, **options)
    for step in range(steps):
        grads = [rng.standard_normal(p.shape).astype(dtype) * 10.0**-i for i, p in enumerate(start)]
        mine.step(grads, lrs[step % len(lrs)])
        theirs.param_groups[0]["lr"] = lrs[step % len(lrs)]
        for tensor, g in zip(tensors, grads, strict=True):
            tensor.grad = torch.from_numpy(g.copy())
        theirs.step()
    return params, tensors


# 1.7 SGD.step


@exercise("1.7")
def test_sgd_updates_in_place():
    p = np.array([1.0])
    optimizer = optim.SGD([p], momentum=0.75)
    for _ in range(2):
        optimizer.step([np.array([2.0])], lr=0.1)
    expect(p[0] != 1.0, because=IN_PLACE)
    expect(p[0] < 1.0, because="the gradient is positive and the parameter went up: a step goes against the gradient")


@exercise("1.7")
def test_first_the_velocity_then_the_parameter():
    p = np.array([1.0])
    optim.SGD([p], momentum=0.75).step([np.array([2.0])], lr=0.1)
    expect(p[0] != 1.0, because="the first step moved nothing: the parameter was moved before the gradient was in the "
                                "velocity; bring the velocity up to date first, then move the parameter with it")
    expect(abs(p[0] - 0.85) > 1e-9, because="the new gradient was shrunk together with the old velocity: first "
                                            "*= momentum, then += the gradient")


@exercise("1.7")
def test_plain_sgd_by_hand():
    p = np.array([1.0])
    optim.SGD([p]).step([np.array([2.0])], lr=0.1)
    expect_close(p, [0.8], because="one step from 1.0 with gradient 2.0 and lr 0.1 is 1.0 - 0.1 * 2.0 = 0.8")


@exercise("1.7")
def test_momentum_by_hand():
    p = np.array([1.0])
    optimizer = optim.SGD([p], momentum=0.5)
    optimizer.step([np.array([2.0])], lr=0.1)
    expect_close(p, [0.8], because="the first velocity is the gradient itself, 2.0; (1 - momentum) * grad is another "
                                   "convention, in which the first step is smaller")
    optimizer.step([np.array([2.0])], lr=0.1)
    expect_close(p, [0.5], because="the second velocity is 0.5 * 2.0 + 2.0 = 3.0, so 0.8 - 0.1 * 3.0 = 0.5; "
                                   "is the velocity kept from step to step?")


@exercise("1.7")
def test_learning_rate_stays_out_of_the_velocity():
    p = np.array([0.0])
    optimizer = optim.SGD([p], momentum=0.5)
    optimizer.step([np.array([1.0])], lr=1.0)
    optimizer.step([np.array([0.0])], lr=0.1)
    expect_close(p, [-1.05],
                 because="the second step is 0.1 * 0.5: today's learning rate applies to the whole velocity. With the "
                         "rate stored inside the velocity, a schedule acts late")


@exercise("1.7")
def test_every_parameter_has_its_own_velocity():
    p, q = np.array([0.0]), np.array([0.0])
    optim.SGD([p, q], momentum=0.9).step([np.array([1.0]), np.array([10.0])], lr=1.0)
    expect_close([p[0], q[0]], [-1.0, -10.0],
                 because="the parameters share a velocity; each has its own in self.velocity")


@exercise("1.7")
def test_sgd_leaves_gradients_alone():
    g = np.array([1.0, -2.0])
    optimizer = optim.SGD([np.zeros(2)], momentum=0.9)
    for _ in range(3):
        optimizer.step([g], lr=0.1)
    expect_equal(g, np.array([1.0, -2.0]), because=GRADS_CHANGED)


@exercise("1.7")
def test_sgd_equals_torch():
    for momentum in (0.0, 0.9):
        got, want = run_both(lambda params, m=momentum: optim.SGD(params, m), torch.optim.SGD, 10, np.float64,
                             [0.1, 0.05, 0.2], momentum=momentum)
        for g, w in zip(got, want, strict=True):
            expect_close(g, w, because=f"after 10 steps with momentum {momentum} torch.optim.SGD is elsewhere")


# 1.8 Adam.step


@exercise("1.8")
def test_the_step_is_counted_first():
    p = np.array([1.0])
    optimizer = optim.Adam([p])
    try:
        with np.errstate(all="ignore"):
            optimizer.step([np.array([2.0])], lr=0.1)
    except ZeroDivisionError:
        p[0] = np.nan
    expect(optimizer.t != 0, because="self.t is still 0 after a step: count it, self.t += 1, before anything else; "
                                     "with t = 0 the corrections are 1 - beta**0 = 0, and what they divide is nan")
    expect(np.isfinite(p[0]), because="the parameter became nan in the first step: self.t was still 0 when the "
                                      "corrections were computed, 1 - beta**0 = 0; count the step before that")


@exercise("1.8")
def test_adam_updates_in_place():
    p = np.array([1.0])
    optim.Adam([p]).step([np.array([2.0])], lr=0.1)
    expect(p[0] != 1.0, because=IN_PLACE)
    expect(p[0] < 1.0, because="the gradient is positive and the parameter went up: a step goes against the gradient")


@exercise("1.8")
def test_first_step_is_the_learning_rate():
    p = np.zeros(3)
    optim.Adam([p]).step([np.array([0.01, 1.0, -100.0])], lr=0.1)
    expect_close(p, [-0.1, -0.1, 0.1], rtol=1e-4,
                 because="the first step is lr, whatever the gradient's size. 3.16 times too much: m and v start at 0 "
                         "and their bias was not corrected. 0.1 times: only v's was")


@exercise("1.8")
def test_eps_is_outside_the_root():
    p = np.zeros(1)
    optim.Adam([p], eps=1e-8).step([np.array([1e-8])], lr=0.1)
    expect_close(p, [-0.05],
                 because="with a gradient as small as eps the step is lr * g / (g + eps) = lr / 2; eps is added to the"
                         " root, not under it, where it counts as 1e-4")


@exercise("1.8")
def test_steps_are_counted_once():
    optimizer = optim.Adam([np.zeros(2), np.zeros(3)])
    for _ in range(2):
        optimizer.step([np.ones(2), np.ones(3)], lr=0.1)
    expect_equal(optimizer.t, 2,
                 because="t counts calls of step: 2 here. Counting inside the loop over parameters gives every "
                         "parameter another t")


@exercise("1.8")
def test_running_means_stay_uncorrected():
    optimizer = optim.Adam([np.zeros(1)])
    optimizer.step([np.array([2.0])], lr=0.1)
    expect_close(optimizer.m[0], [0.2], because="m is 0.9 * 0 + 0.1 * 2.0 = 0.2 after one step and must stay so: the "
                                                "correction is for this step's use, not stored")
    expect_close(optimizer.v[0], [0.004],
                 because="v is 0.999 * 0 + 0.001 * 2.0**2 = 0.004 after one step: a mean of squares, with beta2, and "
                         "stored uncorrected")


@exercise("1.8")
def test_adam_leaves_gradients_alone():
    g = np.array([1.0, -2.0])
    optim.Adam([np.zeros(2)]).step([g], lr=0.1)
    expect_equal(g, np.array([1.0, -2.0]), because=GRADS_CHANGED)


@exercise("1.8")
def test_adam_equals_torch():
    for betas in ((0.9, 0.999), (0.5, 0.9)):
        got, want = run_both(lambda params, b=betas: optim.Adam(params, b), torch.optim.Adam, 20, np.float64,
                             [0.1, 0.05, 0.01], betas=betas)
        for g, w in zip(got, want, strict=True):
            expect_close(g, w, because=f"after 20 steps with betas {betas} torch.optim.Adam is elsewhere")


@exercise("1.8")
def test_adam_keeps_float32():
    got, want = run_both(optim.Adam, torch.optim.Adam, 5, np.float32, [0.1])
    for g, w in zip(got, want, strict=True):
        expect_equal(str(g.dtype), "float32", because="the parameters became float64")
        expect_close(g, w, rtol=1e-4, atol=1e-6, because="after 5 steps in float32 torch.optim.Adam is elsewhere")


# 1.9 lr_at_step


def lrs(steps: list[int], max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> list[float]:
    return [optim.lr_at_step(step, max_lr, min_lr, warmup_steps, total_steps) for step in steps]


@exercise("1.9")
def test_warmup_is_a_line_from_zero():
    expect_close(lrs([0, 1, 2, 3], 1.0, 0.1, 4, 100), [0.0, 0.25, 0.5, 0.75],
                 because="during warm-up the rate is max_lr * step / warmup_steps: 0 at step 0 and max_lr first at "
                         "step 4; (step + 1) is early by one, and min_lr plays no part yet")


@exercise("1.9")
def test_warmup_ends_at_the_top():
    expect_close(lrs([4], 1.0, 0.1, 4, 100), [1.0],
                 because="step warmup_steps has exactly max_lr: there the cosine starts")
    expect_close(lrs([0], 1.0, 0.1, 0, 100), [1.0], because="without warm-up step 0 has max_lr")


@exercise("1.9")
def test_half_way_down_is_the_middle():
    expect_close(lrs([60], 1.0, 0.2, 20, 100), [0.6],
                 because="half way from warm-up's end to total_steps the rate is (max_lr + min_lr) / 2. Progress "
                         "counts from warm-up's end, (step - warmup) / (total - warmup), and the cosine spans max_lr -"
                         " min_lr")


@exercise("1.9")
def test_it_ends_at_the_minimum_and_stays():
    expect_close(lrs([100], 1.0, 0.2, 20, 100), [0.2], because="at total_steps the rate is min_lr: the cosine ends on "
                                                               "min_lr, and not on 0")
    expect_close(lrs([180, 150, 101, 10_000], 1.0, 0.2, 20, 100), [0.2] * 4,
                 because="after total_steps the rate stays at min_lr; a cosine left to itself climbs again")
    expect_close(lrs([5, 6], 1.0, 0.2, 5, 5), [0.2] * 2, because="a run that is all warm-up ends at min_lr too")


@exercise("1.9")
def test_decay_equals_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.01)
    want = []
    for _ in range(41):
        want.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    expect_close(lrs(list(range(10, 51)), 0.3, 0.01, 10, 50), want,
                 because="from warm-up's end on this should be torch's CosineAnnealingLR")
