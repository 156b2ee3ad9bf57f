"""A live server over a model that says what it is told to."""

import pytest

from tests.inference.scripted import ScriptedModel
from tests.serving.live import scripted, serving


@pytest.fixture
def model():
    """Says x ninety times, as fast as it can until a test sets a turnstile."""
    return ScriptedModel("x" * 90)


@pytest.fixture
def server(model):
    with serving(scripted(model, max_waiting=1, max_num_seqs=1)) as client:
        yield client
