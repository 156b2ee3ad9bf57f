"""Training from start to end on real digits, and what `fit` refuses."""

from dataclasses import replace

import numpy as np
import pytest

from shared.data.digits import load_small_digits
from shared.model.mlp import MLP, mse, softmax_cross_entropy
from shared.training.optim import SGD, Adam, lr_at_step
from shared.training.train_mlp import accuracy, fit, predict

DATA = load_small_digits()


def train(seed: int = 0, epochs: int = 6, **changes):
    model = MLP((64, 64, 10), np.random.default_rng(seed))
    schedule = changes.pop("schedule", lambda step: lr_at_step(step, 1e-2, 0.0, 10, epochs * 23))
    optimizer = changes.pop("optimizer", Adam)(model.params)
    loss_fn, data = changes.pop("loss_fn", softmax_cross_entropy), changes.pop("data", DATA)
    return model, fit(model, loss_fn, optimizer, data, epochs, schedule, **changes)


def test_it_learns_to_read_digits():
    model, history = train()
    assert history.losses[0] > 2
    assert np.mean(history.losses[-23:]) < 0.2
    assert history.test_accuracy[-1] > 0.85
    assert accuracy(model, DATA.x_test, DATA.y_test) == history.test_accuracy[-1]
    assert len(history.losses) == len(history.lrs) == 6 * 23
    assert len(history.test_accuracy) == 6
    assert history.lrs[:2] == pytest.approx([1e-3, 2e-3])
    assert history.lrs[-1] == 0
    assert not history.diverged


def test_mse_trains_too():
    _, history = train(loss_fn=lambda out, y: mse(out, np.eye(10, dtype=out.dtype)[y]))
    assert history.test_accuracy[-1] > 0.8


def test_a_seed_is_a_run():
    (_, a), (_, b), (_, other) = train(epochs=2), train(epochs=2), train(epochs=2, seed=1)
    assert a.losses == b.losses
    assert a.losses != other.losses


def test_a_run_that_diverges_is_stopped_and_says_so():
    with np.errstate(all="ignore"):
        _, history = train(epochs=9, optimizer=SGD, schedule=lambda step: 1e30)
    assert history.diverged
    assert len(history.test_accuracy) == 1


def test_empty_and_mismatched_data_are_refused():
    none = {"x_train": DATA.x_train[:0], "y_train": DATA.y_train[:0]}
    for data in (replace(DATA, y_train=DATA.y_train[:-1]), replace(DATA, **none)):
        with pytest.raises(ValueError, match="labels"):
            train(data=data)
    with pytest.raises(ValueError, match="epochs 0"):
        train(epochs=0)
    with pytest.raises(ValueError, match="batch_size 0"):
        train(batch_size=0)
    with pytest.raises(ValueError, match="no rows"):
        accuracy(MLP((64, 10), np.random.default_rng(0)), DATA.x_test[:0], DATA.y_test[:0])


def test_prediction_is_the_same_in_any_batches():
    model, _ = train(epochs=1)
    assert (predict(model, DATA.x_test, batch_size=7) == predict(model, DATA.x_test)).all()
    assert predict(model, DATA.x_test[:0]).shape == (0,)
