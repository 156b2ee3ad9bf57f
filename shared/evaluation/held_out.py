"""Documentation that chapter 6's model was not trained on: the test split of the deduplicated corpus.

What a model from elsewhere (SmolLM2) has read nobody here knows.
"""

import random
from pathlib import Path

from shared.data.cleaning import remove_control_characters
from shared.data.corpus import make_corpus
from shared.data.dedup import deduplicate
from shared.data.reader import read_jsonl
from shared.data.splitting import split_by_source


def held_out_documents(n: int, seed: int = 0, progress: bool = False) -> list[str]:
    """n documents of the test split, drawn with `seed`, the same ones on every call.

    Duplicates go before the split, as in chapter 6, or else a copy could be in the training split; and no source is in
    two splits. Control characters are removed, for not every tokenizer has them. What is missing is made: seconds, the
    first time. Raises ValueError when there are fewer than n.
    """
    records = split_by_source(read_jsonl(_unique(progress)))["test"]
    texts = [remove_control_characters(record["text"]) for record in records]
    if n > len(texts):
        raise ValueError(f"{n} documents were asked for, and the test split has {len(texts)}")
    return random.Random(seed).sample(texts, n)


def _unique(progress: bool) -> Path:
    """The corpus without duplicates; made again when the corpus was."""
    corpus = make_corpus("docs", progress=progress)
    unique = corpus.with_name("docs.unique.jsonl")
    if not unique.exists() or unique.stat().st_mtime < corpus.stat().st_mtime:
        deduplicate(corpus, unique, progress=progress)
    return unique
