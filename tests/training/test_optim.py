"""What the optimisers and the schedule refuse, and that the docstrings' examples are true."""

import doctest

import numpy as np
import pytest

from shared.training import optim


def test_docstring_examples():
    result = doctest.testmod(optim)
    assert result.attempted >= 1
    assert result.failed == 0


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_parameters_must_be_float_arrays(make):
    with pytest.raises(TypeError, match=r"params\[1\].*int64"):
        make([np.zeros(2), np.zeros(2, dtype=np.int64)])
    with pytest.raises(TypeError, match=r"params\[0\].*list"):
        make([[0.0, 1.0]])


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_a_missing_gradient_is_noticed(make):
    with pytest.raises(ValueError, match="shorter"):
        make([np.zeros(2), np.zeros(2)]).step([np.zeros(2)], lr=0.1)


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_is_checked(momentum: float):
    with pytest.raises(ValueError, match="momentum"):
        optim.SGD([np.zeros(2)], momentum)


@pytest.mark.parametrize("settings", [{"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}, {"eps": 0.0}])
def test_adams_settings_are_checked(settings: dict):
    with pytest.raises(ValueError, match="betas"):
        optim.Adam([np.zeros(2)], **settings)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1, 1.0, 0.0, 2, 10), "step -1"), ((0, 1.0, 0.0, 11, 10), "warmup_steps 11"), ((0, 1.0, 0.0, -1, 10), "-1"),
     ((0, 0.1, 0.2, 2, 10), "min_lr 0.2"), ((0, 0.1, -0.2, 2, 10), "min_lr -0.2")],
)
def test_schedule_is_checked(arguments: tuple, named: str):
    with pytest.raises(ValueError, match=named):
        optim.lr_at_step(*arguments)
