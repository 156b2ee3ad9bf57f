"""The book's own model by a very small recipe, made once for all tests here."""

import pytest

from shared.data import corpus
from shared.training.own_model import Recipe, ensure_own_model
from shared.training.trainer import Settings

TINY = Recipe(
    documents=300, vocab_size=320, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    settings=Settings(steps=6, length=32, batch_size=4, warmup_steps=2, precision="fp32", save_every=2, eval_every=3,
                      eval_windows=4), final_windows=8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _corpora(tmp_path_factory, monkeypatch):
    """The small corpora of these tests don't belong in data/."""
    monkeypatch.setattr(corpus, "CORPORA", tmp_path_factory.getbasetemp() / "corpora")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "CORPORA", tmp_path_factory.getbasetemp() / "corpora")
        return ensure_own_model(tmp_path_factory.mktemp("models") / "tiny", TINY, progress=False)
