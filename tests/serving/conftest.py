"""A live server over a model that says what it is told to, and a tiny model's folder."""

from pathlib import Path

import pytest

from tests.inference.scripted import ScriptedModel
from tests.serving.live import scripted, serving, write_tiny_model


@pytest.fixture
def model():
    """Says x ninety times, as fast as it can until a test sets a turnstile."""
    return ScriptedModel("x" * 90)


@pytest.fixture
def server(model):
    with serving(scripted(model, max_waiting=1, max_num_seqs=1)) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
