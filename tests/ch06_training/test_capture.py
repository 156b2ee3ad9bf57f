"""Exercise 6.8: judged by a run that must go on bit for bit."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from chapters.ch06_training import checkpoint
from chapters.judge import NO_RESULT, exercise, expect, expect_equal


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))  # the norm has buffers
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def steps(model, optimizer, n: int) -> list[float]:
    """Steps that draw from all three generators."""
    losses = []
    for _ in range(n):
        x = torch.randn(16, 4) + random.random() + np.random.normal()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def taken():
    """A snapshot after three steps, what the next three brought, and the model after them."""
    random.seed(1), np.random.seed(1)
    model, optimizer = build()
    steps(model, optimizer, 3)
    np.random.normal()  # leaves a spare number drawn, and not yet handed out
    snapshot = copy.deepcopy(checkpoint.capture(model, optimizer, None, step=3))
    return snapshot, steps(model, optimizer, 3), model


@exercise("6.8")
def test_the_model_is_whole(taken):
    expect(taken[0] is not None, because=NO_RESULT)
    names = {name.removeprefix("model.") for name in taken[0].tensors if name.startswith("model.")}
    expect_equal(
        sorted(names),
        sorted(build()[0].state_dict()),
        because='each tensor of model.state_dict() must be there as "model.NAME"; parameters() alone leaves '
        "out buffers, such as a norm's running mean",
    )


@exercise("6.8")
def test_the_optimiser_is_in_it(taken):
    names = {name for name in taken[0].tensors if name.startswith("optimizer.")}
    expect(
        {"optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"} <= names,
        because="the optimiser's means are missing: a resumed run would begin with a mean of zero, and its loss jumps. "
        'Its tensors go in as "optimizer." and their names',
    )
    facts = taken[0].facts.get("optimizer", {})
    expect(
        isinstance(facts, dict) and "groups" in facts,
        because="the optimiser's tensors are there, its settings aren't: the second thing that optimizer_parts returns "
        'goes into the facts under "optimizer"',
    )


@exercise("6.8")
def test_the_optimisers_plain_numbers_are_in_it():
    model, optimizer = build()
    for p in model.parameters():
        optimizer.state[p] = {"step": 7, "exp_avg": torch.zeros_like(p)}  # the book's AdamW counts in plain numbers
    snapshot = checkpoint.capture(model, optimizer, None, step=7)
    expect_equal(
        snapshot.facts.get("optimizer", {}).get("numbers", "no numbers"),
        {f"{i}.step": 7 for i in range(6)},
        because="the optimiser's counts are missing: what isn't a tensor stands in the second thing that "
        'optimizer_parts returns, which goes in whole under "optimizer"',
    )


@exercise("6.8")
def test_the_random_state_is_in_it(taken):
    names = {name for name in taken[0].tensors if name.startswith("random.")}
    missing = {f"random.{name}" for name in checkpoint.random_state()} - names
    expect(
        not missing,
        because=f"missing of the random generators' states: {', '.join(sorted(missing))}. After a resume dropout draws "
        'other masks, or NumPy other numbers. All that random_state() returns goes in, as "random." and its name',
    )


@exercise("6.8")
def test_the_step_is_in_it(taken):
    expect_equal(
        taken[0].facts.get("step", "no step"),
        3,
        because='"step" must be there: the place in the data and in the schedule follow from it',
    )


@exercise("6.8")
def test_the_scaler_is_in_it():
    model, optimizer = build()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    snapshot = checkpoint.capture(model, optimizer, scaler, step=0)
    expect_equal(
        snapshot.facts.get("scaler", {}).get("scale", "no scale"),
        64.0,
        because="fp16's scale has been found by trial; without the scaler's state_dict it begins again, and skips "
        "steps",
    )
    expect_equal(
        checkpoint.capture(model, optimizer, None, step=0).facts.get("scaler"),
        {},
        because="without a scaler the facts hold {} in its place",
    )


@exercise("6.8")
def test_a_resumed_run_is_the_same_bit_for_bit(taken, tmp_path):
    snapshot, want, model = taken
    checkpoint.save_checkpoint(tmp_path, snapshot)
    random.seed(9), np.random.seed(9)
    torch.manual_seed(9)
    other, optimizer = build()
    steps(other, optimizer, 5)  # another past
    checkpoint.restore(checkpoint.latest_checkpoint(tmp_path), other, optimizer)
    expect_equal(
        steps(other, optimizer, 3),
        want,
        because="after a resume the losses are not those of the run that was never interrupted: something that decides "
        "them was not saved. Weights, buffers, the optimiser's means and counts, the random generators",
    )
    for name, tensor in model.state_dict().items():
        expect(
            torch.equal(other.state_dict()[name], tensor),
            because=f"after the resume {name} is not the same to the last bit",
        )
