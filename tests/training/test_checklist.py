"""Each cause of a loss that does not fall, as a real run of a very small model, is recognised by its signs."""

import pytest
import torch

from shared.training.checklist import FAULTS, Fault, three_sources, tiny_run, training_windows
from shared.training.diagnosis import HEALTHY, LABELS, diagnose


@pytest.fixture(scope="module")
def text():
    torch.set_num_threads(1)
    return three_sources()


@pytest.mark.parametrize("cause", FAULTS)
def test_reproduced_and_recognised(text, cause):
    assert diagnose(tiny_run(*text, FAULTS[cause])) == cause


def test_labels_two_ahead(text):
    assert diagnose(tiny_run(*text, Fault(label_shift=2))) == LABELS


def test_adamw_undoes_a_constant_factor(text):
    """Clipped to a ten-thousandth, it learns as well: its step doesn't depend on the gradients' size."""
    assert diagnose(tiny_run(*text, Fault(max_norm=1e-4))) == HEALTHY


def test_garbage_is_what_it_says(text):
    clean = training_windows(text[0], 400, 32, Fault(), seed=0)
    for kind in ("noise", "labels", "repeat"):
        inputs, labels = training_windows(text[0], 400, 32, Fault(garbage=0.25, garbage_kind=kind), seed=0)
        changed = (labels != clean[1]).any(dim=1)
        assert 60 < int(changed.sum()) < 140
        assert torch.equal(inputs[~changed], clean[0][~changed])
        assert torch.equal(inputs, clean[0]) == (kind == "labels")
    with pytest.raises(ValueError, match="garbage_kind"):
        training_windows(text[0], 10, 32, Fault(garbage_kind="x"), seed=0)


def test_refuses_too_little_text(text):
    with pytest.raises(ValueError, match="2400 windows are needed"):
        tiny_run(text[0][:1000], text[1])
