"""Exercises 6.2 and 6.3: judged by windows worked out by hand, and by what an order must not depend on."""

import os
import random
import time

import numpy as np
import torch

from chapters.ch06_training import windows
from chapters.judge import exercise, expect, expect_equal, expect_parts

# 6.2 windows

STREAM = torch.arange(100, 117)  # 17 tokens: 100, 101, ...


@exercise("6.2")
def test_by_hand():
    both = windows.windows(STREAM, length=4, indices=[2, 0])
    expect_parts(both, ("inputs", "labels"), because="a batch is a pair: return the inputs and the labels")
    inputs, labels = both
    expect(
        isinstance(inputs, torch.Tensor) and isinstance(labels, torch.Tensor),
        because="both are tensors, with a row for each window; torch.stack makes one of a list of cuts",
    )
    expect_equal(
        inputs.tolist(),
        [[108, 109, 110, 111], [100, 101, 102, 103]],
        because="window i begins at token i * length, and the inputs are its first `length` tokens; rows come in the "
        "order of the indices",
    )
    expect_equal(
        labels.tolist(),
        [[109, 110, 111, 112], [101, 102, 103, 104]],
        because="the label at each place is the next token: the same window, one place on. Labels equal to the inputs "
        "teach the model to copy; labels two places on, to leave a word out",
    )


@exercise("6.2")
def test_every_token_is_a_label_once():
    _, labels = windows.windows(STREAM, length=4, indices=[0, 1, 2, 3])
    expect_equal(
        labels.flatten().tolist(),
        list(range(101, 117)),
        because="all windows together must predict every token but the first, each once: neighbours share one token, "
        "which is the last label of one and the first input of the next. A step of length + 1 leaves tokens out",
    )


@exercise("6.2")
def test_types_and_shapes():
    inputs, labels = windows.windows(STREAM.int(), length=3, indices=[1, 4, 0])
    expect_equal((tuple(inputs.shape), tuple(labels.shape)), ((3, 3), (3, 3)), because="both are [windows, length]")
    expect(
        inputs.dtype == labels.dtype == torch.int64,
        because="the stream may be int32 to save memory; an embedding and cross_entropy want int64",
    )


@exercise("6.2")
def test_the_stream_stays_as_it_is():
    before = STREAM.clone()
    inputs, labels = windows.windows(STREAM, length=4, indices=[0])
    labels[:] = -100
    expect_equal(STREAM, before, because="who masks a label must not change the text: a batch is a copy")


# 6.3 epoch_order


@exercise("6.3")
def test_a_permutation():
    order = windows.epoch_order(50, seed=0, epoch=0)
    expect_equal(
        None if order is None else type(order).__name__,
        "list",
        because="return a list: end with .tolist(). It is cut and compared by those who call this",
    )
    expect_equal(
        sorted(windows.epoch_order(50, seed=0, epoch=0)),
        list(range(50)),
        because="each window comes once in an epoch; drawing with replacement leaves a third of them out",
    )


@exercise("6.3")
def test_really_shuffled():
    order = windows.epoch_order(1000, seed=0, epoch=0)
    neighbours = sum(abs(a - b) == 1 for a, b in zip(order, order[1:], strict=False))
    expect(neighbours < 20, because="windows that stand side by side in the text mostly do so in the order, too")
    strides = {(b - a) % 1000 for a, b in zip(order, order[1:], strict=False)}
    expect(
        len(strides) > 100,
        because="from one window to the next it is nearly always the same stride, so a batch is evenly spaced over the "
        "text. That is a rule and not a shuffle; a generator's permutation(n) has none",
    )


@exercise("6.3")
def test_a_function_of_seed_and_epoch():
    first = windows.epoch_order(50, seed=3, epoch=2)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.random(), np.random.rand(), torch.rand(1)
    expect_equal(
        windows.epoch_order(50, seed=3, epoch=2),
        first,
        because="the same (seed, epoch) must give the same order whatever else has drawn random numbers: a run that is "
        "resumed has drawn others. Use a generator of your own, not the global one",
    )


@exercise("6.3")
def test_other_epochs_have_other_orders():
    orders = {tuple(windows.epoch_order(50, seed=0, epoch=epoch)) for epoch in range(5)}
    expect_equal(len(orders), 5, because="every epoch needs an order of its own; is the epoch in the generator's seed?")
    first, second = (windows.epoch_order(50, seed=0, epoch=epoch) for epoch in (0, 1))
    start = first.index(second[0])
    expect(
        first[start:] + first[:start] != second,
        because="epoch 1 is epoch 0 rotated: nearly all neighbours are neighbours again. Seed the generator with the "
        "epoch, too, instead of moving along in one order",
    )


@exercise("6.3")
def test_other_seeds_have_other_orders():
    orders = {tuple(windows.epoch_order(50, seed=seed, epoch=0)) for seed in range(5)}
    expect_equal(len(orders), 5, because="another seed must give another order; is the seed in the generator's seed?")


@exercise("6.3")
def test_seed_and_epoch_do_not_add_up():
    expect(
        windows.epoch_order(50, seed=0, epoch=1) != windows.epoch_order(50, seed=1, epoch=0)
        and windows.epoch_order(50, seed=2, epoch=3) != windows.epoch_order(50, seed=3, epoch=2),
        because="seed 0 in epoch 1 has the order of seed 1 in epoch 0: a sum or a product of the two isn't a pair. "
        "Runs "
        "with neighbouring seeds would see the same orders, one epoch apart",
    )
    orders = {tuple(windows.epoch_order(50, seed=seed, epoch=epoch)) for seed in range(40) for epoch in range(40)}
    expect_equal(
        len(orders),
        1600,
        because="40 seeds with 40 epochs each are 1600 orders, and some were the same: 10 * seed + epoch and its like "
        "aren't pairs either, for seed 0 in epoch 10 is seed 1 in epoch 0. Give the generator both numbers",
    )


@exercise("6.3")
def test_the_same_in_every_process(monkeypatch):
    here = windows.epoch_order(50, seed=3, epoch=2)

    def elsewhere(value):
        """The hash in another process: of text it is another, of numbers the same."""
        text = isinstance(value, str | bytes) or isinstance(value, tuple) and any(isinstance(v, str) for v in value)
        return hash((value, "another process")) if text else hash(value)

    monkeypatch.setattr(windows, "hash", elsewhere, raising=False)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    expect_equal(
        windows.epoch_order(50, seed=3, epoch=2),
        here,
        because="another process would get another order: hash() of a text is salted anew in each, and so are the "
        "process's number and the time. Only seed and epoch may decide",
    )


@exercise("6.3")
def test_the_global_generators_are_left_alone():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    want = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    windows.epoch_order(50, seed=5, epoch=5)
    expect_equal(
        (torch.rand(1).item(), np.random.rand(), random.random()),
        want,
        because="seeding a global generator here would give dropout the same numbers in every epoch",
    )
