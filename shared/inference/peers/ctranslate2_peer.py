"""CTranslate2: `generate_batch` on static batches; int8 weights are made as the model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

from shared.inference.peers.converted import converted
from shared.inference.peers.rates import Answer, Told, sorted_batches
from shared.inference.peers.transformers_peer import without_torchvision
from shared.measure.trace import Trace


def load(model_dir: Path, work_dir: Path, threads: int, variant: str, say: Callable[[str], None]) -> Answer:
    """Convert the model once and load it. variant: a compute type, such as "int8". Raises ImportError without it."""
    without_torchvision()
    import ctranslate2

    def convert(folder: Path) -> None:
        ctranslate2.converters.TransformersConverter(str(model_dir)).convert(str(folder))

    folder = converted(work_dir / "ctranslate2", convert, say)
    model = ctranslate2.Generator(
        str(folder), device="cpu", compute_type=variant, inter_threads=1, intra_threads=threads
    )
    tokens = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))  # it is asked in tokens, not in ids

    def answer(requests: Trace, told: Told) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in requests]
        for batch in sorted_batches(requests):
            most = max(requests[i].max_new_tokens for i in batch)
            results = model.generate_batch(
                [[tokens[t] for t in requests[i].prompt_ids] for i in batch],
                max_length=most,
                min_length=most,  # no end token before it
                include_prompt_in_result=False,
                cache_static_prompt=False,
            )
            for i, result in zip(batch, results, strict=True):
                answers[i] = result.sequences_ids[0][: requests[i].max_new_tokens]
                told(len(answers[i]))
        return answers

    return answer
