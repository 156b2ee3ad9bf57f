"""The text of the book's own model: chapters 2 to 4, one after another, from documentation to two streams of ids.

Every stage leaves its result in the working folder and isn't done again when the work is taken up later.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shared.data.bpe import train_bpe
from shared.data.clean import clean_file
from shared.data.corpus import make_corpus, write_record
from shared.data.dedup import deduplicate
from shared.data.reader import read_jsonl
from shared.data.splitting import split_by_source
from shared.data.tokenizer import Tokenizer
from shared.measure.files import replacing, write_json
from shared.training.checkpoint import checkpoints, checksum
from shared.training.own_folder import ORIGIN, discard, read_facts
from shared.training.windows import token_stream

END = "<|endoftext|>"
SPECIAL = (END, "<|im_start|>", "<|im_end|>")
VERSION = 2  # of what this module makes


@dataclass(frozen=True)
class OwnData:
    """train, validation: [n] int32 ids. facts: what is known of the text, for training.json."""

    tokenizer: Tokenizer
    train: Tensor
    validation: Tensor
    facts: dict[str, Any]


def own_data(work: Path, documents: int, vocab_size: int, progress: bool = True) -> OwnData:
    """Clean, deduplicate, split, train a tokenizer, encode; or read what an earlier call has left in `work`.

    documents: how many of the documentation's texts to start from. What another corpus or other numbers have left in
    `work` is removed; but when a run has been started on it, and has checkpoints, that is a ValueError.
    validation.jsonl stays there: the records that no model has been trained on.
    """
    started = time.perf_counter()
    made_from: dict[str, Any] = {"version": VERSION, "documents": documents, "vocab_size": vocab_size}
    _check_same_start(work, made_from)  # before the corpus, which takes a while
    corpus = make_corpus("docs", limit=documents, progress=progress)
    with corpus.open("rb") as file:
        made_from["corpus_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    _check_same_start(work, made_from)
    if read_facts(work / ORIGIN) != made_from:
        discard(work)
        write_json(work / ORIGIN, made_from)
    clean, unique, streams = work / "clean.jsonl", work / "unique.jsonl", work / "streams.safetensors"
    if not _is_undamaged(streams):
        _once(clean, lambda: clean_file(corpus, clean, progress=progress))
        _once(unique, lambda: deduplicate(clean, unique, progress=progress))
        splits = split_by_source(read_jsonl(unique))
        tokenizer = _tokenizer(work, [record["text"] for record in splits["train"]], vocab_size, progress)
        ids = {
            name: token_stream((record["text"] for record in splits[name]), tokenizer.encode, tokenizer.token_id(END))
            for name in ("train", "validation")
        }
        with replacing(work / "validation.jsonl") as part, part.open("w", encoding="utf-8") as file:
            for record in splits["validation"]:
                write_record(file, record)
        known: dict[str, Any] = {f"{name}_documents": len(records) for name, records in splits.items()}
        known["seconds"] = time.perf_counter() - started
        with replacing(streams) as part:
            try:
                save_file(ids, part, metadata={"facts": json.dumps(known), "sha256": checksum(ids)})
            except SafetensorError as error:  # such as a full disk
                raise OSError(f"{streams} can't be written: {error}") from error
    return _read(work, made_from)


def bytes_of(tokenizer: Tokenizer, ids: Tensor) -> int:
    """How many bytes of text these ids stand for. Special tokens stand for none: they are no part of the text."""
    special = set(tokenizer.special_tokens.values())
    lengths = [0 if i in special else len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
    return int(torch.tensor(lengths)[ids.long().flatten()].sum())


def _read(work: Path, made_from: dict[str, Any]) -> OwnData:
    tokenizer = Tokenizer.load(work / "tokenizer")
    with safe_open(work / "streams.safetensors", framework="pt") as file:
        streams = {name: file.get_tensor(name) for name in ("train", "validation")}
        known = json.loads(file.metadata()["facts"])
    facts = made_from | known | {f"{name}_tokens": len(ids) for name, ids in streams.items()}
    return OwnData(tokenizer, streams["train"], streams["validation"], facts)


def _tokenizer(work: Path, texts: list[str], vocab_size: int, progress: bool) -> Tokenizer:
    """Trained on the training split alone: a vocabulary, too, would carry what validation texts are about."""
    with replacing(work / "train.txt") as part:
        part.write_text(END.join(texts), encoding="utf-8")
    vocab, merges = train_bpe(work / "train.txt", vocab_size, SPECIAL, progress=progress)
    tokenizer = Tokenizer(vocab, merges, SPECIAL, eos_ids=[256])  # the special tokens follow the 256 bytes
    tokenizer.save(work / "tokenizer")
    return tokenizer


def _once(result: Path, make: Callable[[], object]) -> None:
    if not result.exists():
        make()


def _check_same_start(work: Path, made_from: dict[str, Any]) -> None:
    """Refuse to throw a run away that was started on something else."""
    then = read_facts(work / ORIGIN)
    other = [f"{name} {then.get(name)}, now {value}" for name, value in made_from.items() if then.get(name) != value]
    if other and checkpoints(work / "run"):
        if other[0].startswith("corpus_sha256"):
            other = ["other texts (since then, packages have been installed or removed)"]
        raise ValueError(f"the run in {work} was started with {'; '.join(other)}. Go on with the same, choose another "
                         "folder (--out), or start over (--fresh).")  # fmt: skip


def _is_undamaged(streams: Path) -> bool:
    """True when the streams are there, each byte as it was saved."""
    try:
        with safe_open(streams, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in ("train", "validation")}
            return bool(checksum(found) == (file.metadata() or {})["sha256"])
    except (SafetensorError, OSError, KeyError):
        return False
