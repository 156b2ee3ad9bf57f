"""Train the book's own model from nothing, in a temporary folder: how good it gets, and in what time."""

import json
import tempfile
from pathlib import Path
from typing import Any

from shared.training.own_folder import FACTS
from shared.training.own_model import RECIPE, Recipe, train_own_model


def bench_training(progress: bool = True, recipe: Recipe = RECIPE) -> dict[str, Any]:
    """val_loss (nats a token), bits_per_byte, seconds (text and training together), tokens_per_s, and the setting.

    Takes as long as the training does: some minutes on two cores.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model"
        train_own_model(path, recipe, progress=progress)
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
    seconds = facts["seconds"]
    return {
        "val_loss": facts["val_loss"],
        "bits_per_byte": facts["bits_per_byte"],
        "seconds": sum(seconds.values()),
        "data_s": seconds["data"],
        "training_s": seconds["training"],
        "tokens_per_s": facts["tokens"] / seconds["training"],
        "parameters": facts["parameters"],
        "steps": facts["steps"],
        "precision": facts["settings"]["precision"],
    }
