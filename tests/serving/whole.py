"""A server over a whole model directory: its weights in a thread of the test's process, its own tokenizer and text."""

from pathlib import Path

from shared.inference.async_engine import AsyncLLMEngine
from shared.model.calibration import calibration_ids
from shared.model.int8 import quantize_int8
from shared.model.weights import load_model
from shared.serving.models.text_model import TextModel
from shared.serving.settings import Settings
from tests.serving.live import LiveService


def whole_model(folder: Path, int8: bool = False, settings: dict | None = None, **engine) -> LiveService:
    """settings: Settings' fields; engine: LLMEngine's settings."""
    text, model = TextModel.load(folder), load_model(folder)
    if int8:
        model = quantize_int8(model, calibration_ids(text.tokenizer.encode))
    engine = {"max_num_seqs": 8, "num_blocks": 100} | engine
    settings = {"max_waiting": 16, "max_num_seqs": engine["max_num_seqs"], "grace": 0.2} | (settings or {})
    return LiveService(AsyncLLMEngine(model, text.tokenizer, 64, **engine), text, Settings(**settings))
