"""Our tokenizer against the `tokenizers` library: training and encoding, on the same documents, one thread each."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from shared.data import bpe as our_bpe
from shared.data import tokenizer as our_tokenizer
from shared.data.corpus import docstring_documents
from shared.measure.progress import progress_bar

END = "<|endoftext|>"


def bench_bpe(
    vocab_size: int = 4096,
    size: int = 5_000_000,
    repeats: int = 3,
    documents: Sequence[str] | None = None,
    bpe: ModuleType = our_bpe,
    tokenizer: ModuleType = our_tokenizer,
    progress: bool = False,
) -> dict[str, Any]:
    """Train on `size` bytes of documentation, then encode it document by document.

    Returns train_s, tokenizers_train_s, encode_mb_s, tokenizers_encode_mb_s (megabytes of UTF-8) and the setting.
    CPU seconds, the best of `repeats`, in turns, so that a busy machine disturbs both.  Caches are empty at each start;
    of the library's two ways to encode, one by one and as a batch without offsets, the quicker one counts.
    RuntimeError when the two don't get the same ids, or merges that are not equally good: the work was not equal then.

    documents: other texts.  bpe, tokenizer: the modules whose parts are timed, a reader's own say.
    """
    documents = take_documents(size) if documents is None else documents
    n_bytes = sum(len(text.encode()) for text in documents)
    times: dict[str, list[float]] = {"train": [], "library train": [], "encode": [], "library encode": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        one_thread(),
        progress_bar("tokenizer against tokenizers", 2 * repeats, progress) as step,
    ):
        corpus, saved = Path(folder) / "corpus.txt", Path(folder) / "tokenizer.json"
        corpus.write_bytes(END.join(documents).encode())
        for _ in range(repeats):
            seconds, (vocab, merges) = timed(lambda: bpe.train_bpe(corpus, vocab_size, [END]))
            times["train"].append(seconds)
            seconds, library = timed(lambda: train_library(documents, vocab_size))
            times["library train"].append(seconds)
            step()
        tokenizer.Tokenizer(vocab, merges, [END]).save(saved)
        n_theirs = sum(len(row.ids) for row in library.encode_batch_fast(documents))
        for _ in range(repeats):
            ours = tokenizer.Tokenizer.load(saved)
            seconds, ids = timed(lambda: [ours.encode(text) for text in documents])  # noqa: B023
            times["encode"].append(seconds)
            one_by_one, batch = tokenizers.Tokenizer.from_file(str(saved)), tokenizers.Tokenizer.from_file(str(saved))
            seconds, theirs = timed(lambda: [one_by_one.encode(text).ids for text in documents])  # noqa: B023
            batch_seconds, _ = timed(lambda: batch.encode_batch_fast(documents))  # noqa: B023
            times["library encode"].append(min(seconds, batch_seconds))
            step()
        if ids != theirs:
            raise RuntimeError("the two tokenizers get different ids for the same vocabulary; their times say nothing")
        n_ours = sum(map(len, ids))
        if abs(n_ours / n_theirs - 1) > 0.01:
            raise RuntimeError(f"our merges make {n_ours} tokens of the corpus, the library's {n_theirs}")
    best = {name: min(seconds) for name, seconds in times.items()}
    return {
        "train_s": best["train"],
        "tokenizers_train_s": best["library train"],
        "encode_mb_s": n_bytes / 1e6 / best["encode"],
        "tokenizers_encode_mb_s": n_bytes / 1e6 / best["library encode"],
        "bytes": n_bytes,
        "documents": len(documents),
        "vocab_size": vocab_size,
        "tokens": n_ours,
        "tokenizers_version": tokenizers.__version__,
    }


def take_documents(size: int) -> list[str]:
    """Documentation of the running Python until there are `size` bytes of it (less when there is no more)."""
    documents, total = [], 0
    for record in docstring_documents():
        documents.append(record["text"])
        total += len(record["text"].encode())
        if total >= size:
            break
    return documents


def train_library(documents: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    """The library's trainer with our settings: all bytes, GPT-2's pattern, one special token.

    It gets texts and not the file, for a file it cuts into lines first, and never learns a merge across a line's end.
    """
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(documents, trainer)
    return library


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and the result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the library from using more than one core."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
