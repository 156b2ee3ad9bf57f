"""Fixtures that every test may use."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The real model's directory; fetched and converted when it isn't there yet."""
    from shared.model.fetch import ensure_model

    return ensure_model()


@pytest.fixture(scope="session")
def real_model(model_dir):
    """The real model in float32."""
    from shared.model.weights import load_model

    return load_model(model_dir)


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    """The real model's tokenizer."""
    from shared.data.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)
