"""A run whose numbers are no numbers any more is stopped, and what was good is kept."""

from dataclasses import replace

import pytest

from shared.training.checkpoint import checkpoints
from shared.training.history import read_history
from shared.training.trainer import check_finite
from tests.training.small import SETTINGS
from tests.training.test_trainer import run


@pytest.mark.parametrize("save_every", [1, 5])
def test_a_run_that_diverges_stops_and_keeps_what_was_good(tmp_path, save_every):
    """The first step's loss is that of the first weights, and finite; its update throws them away."""
    with pytest.raises(ValueError, match=r"step 2: .*(nan|inf).*diverged.*--lr\) than 1e\+30"):
        run(tmp_path, replace(SETTINGS, max_lr=1e30, save_every=save_every))
    assert len(checkpoints(tmp_path)) == (1 if save_every == 1 else 0)
    assert [row["step"] for row in read_history(tmp_path)] == ([1] if save_every == 1 else [])


def test_what_diverged_names_each_number(tmp_path):
    row = {"step": 9, "loss": 2.0, "val_loss": float("nan"), "grad_norm": float("inf")}
    with pytest.raises(ValueError, match="step 9: val_loss nan, grad_norm inf"):
        check_finite(row, SETTINGS, tmp_path)
    check_finite(row | {"val_loss": 2.0}, replace(SETTINGS, precision="fp16"), tmp_path)  # the scaler's own business
    check_finite({"step": 9, "loss": 2.0, "grad_norm": 1.0}, SETTINGS, tmp_path)
