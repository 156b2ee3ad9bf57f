"""The book's own model: a small Llama trained on documentation, from nothing, in minutes on two cores.

The folder it is saved in is one that every other part reads: weights, config, tokenizer, a chat template, and
training.json, which says how it came to be and how good it is.
"""

import hashlib
import math
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shared.measure.files import write_json
from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from shared.model.weights import load_model, save_model
from shared.training.checkpoint import checkpoints, latest_checkpoint
from shared.training.distributed import ALONE, Group
from shared.training.own_data import OwnData, bytes_of, own_data
from shared.training.own_folder import FACTS, MODELS, NAME, check_ours, discard, is_whole, lock, work_folder
from shared.training.trainer import Settings, train, validation_loss
from shared.training.utilisation import best_precision
from shared.training.windows import windows

CODE = ("model/transformer.py", "model/linear.py", "training/adamw.py", "training/gradients.py", "training/trainer.py",
        "training/own_data.py", "training/own_model.py")  # fmt: skip
# It has never seen a conversation: the messages' texts, one after another, are what it goes on from.
TEMPLATE = "{{ messages | map(attribute='content') | join('\\n') }}"
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.95}  # greedy, a model this small repeats itself


@dataclass(frozen=True)
class Recipe:
    """What decides the model. settings.precision: "auto" is bf16 where this machine is fast at it, else fp32."""

    documents: int = 12_000
    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 3
    num_key_value_heads: int = 1
    settings: Settings = Settings(steps=850, length=256, batch_size=4, max_lr=3e-3, min_lr=1e-4, warmup_steps=50,
                                  embedding_scale=10.0,
                                  precision="auto", eval_every=100, eval_windows=32, save_every=100)  # fmt: skip
    final_windows: int = 128  # of validation text that the stated loss is measured on, in fp32

    def config(self, vocab_size: int) -> ModelConfig:
        """The model's shape for a tokenizer of this size; its context is as long as the windows it is trained on."""
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            max_position_embeddings=self.settings.length,  # of later positions it has learnt nothing
            # Tied, one matrix must suit both ends: as a head it has to begin small, as an embedding large. Apart, each
            # begins as it should, and the loss ends lower by far. The second matrix costs memory, and no time.
            tie_word_embeddings=False,
        )


RECIPE = Recipe()
STATED_LOSS, STATED_BITS = 4.3, 2.4  # the recipe's validation loss is below: nats a token, bits a byte


def ensure_own_model(path: Path | None = None, recipe: Recipe = RECIPE, progress: bool = True) -> Path:
    """The folder of the book's own model; trained first, in a few minutes, when it isn't there.

    path: by default data/models/docs-llama-v1. Two processes may call this at once: one works, the other waits. A run
    that was interrupted, or killed, goes on from its last checkpoint; Ctrl-C raises trainer.Stopped.
    """
    path = MODELS / NAME if path is None else Path(path).absolute()
    if is_whole(path):
        return path
    with lock(path):
        if not is_whole(path):  # another process may have made it while this one waited
            train_own_model(path, recipe, progress=progress)
    return path


def train_own_model(path: Path, recipe: Recipe = RECIPE, group: Group = ALONE, progress: bool = True) -> None:
    """Train, or go on training, and put the finished model at `path`. Raises trainer.Stopped, ValueError.

    Who calls this holds own_folder.lock(path), where another process might work in the same folder.
    """
    work = work_folder(path)
    if group.leads:
        check_ours(path)
        own_data(work, recipe.documents, recipe.vocab_size, progress)
    group.wait()
    data = own_data(work, recipe.documents, recipe.vocab_size, progress=False)
    settings = recipe.settings
    if settings.precision == "auto":
        settings = replace(settings, precision=_precision(work / "run", group))
    model = first_weights(Transformer(recipe.config(data.tokenizer.vocab_size)), settings.seed).to(group.device)
    with all_cores():
        rows = train(model, data.train, data.validation, settings, work / "run", group, progress)
        if group.leads:
            _finish(path, work, model.float(), data, recipe, settings, rows)


def first_weights(model: Transformer, seed: int) -> Transformer:
    """Random weights in a size that lets signals through, whatever a layer's width.

    A matrix's numbers have a deviation of 0.6 / sqrt(in): sums of `in` products stay near 1. What a layer adds to the
    stream is divided by the root of how often something is added (Radford et al. 2019, section 2.3).
    """
    torch.manual_seed(seed)
    additions = 2 * len(model.model.layers)
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            torch.nn.init.normal_(weight, std=0.5)
        elif weight.dim() == 2:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(weight, std=0.6 / math.sqrt(weight.shape[1] * (additions if adds else 1)))
    return model


@contextmanager
def all_cores() -> Iterator[None]:
    """Let torch use every core this process may run on, as it does unless somebody has said otherwise."""
    before = torch.get_num_threads()
    if "RANK" not in os.environ:  # torchrun's processes share the cores out
        torch.set_num_threads(max(before, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _precision(run: Path, group: Group) -> str:
    """What the run was begun with; else the fastest, as rank 0 measures it."""
    if checkpoints(run) and (snapshot := latest_checkpoint(run)) is not None:
        return str(snapshot.facts["settings"]["precision"])
    fast = float(best_precision(group.device) == "bf16") if group.leads else 0.0
    return "bf16" if float(group.mean(fast)) > 0 else "fp32"


def _finish(
    path: Path,
    work: Path,
    model: Transformer,
    data: OwnData,
    recipe: Recipe,
    settings: Settings,
    rows: list[dict[str, Any]],
) -> None:
    """Measure the finished model and put its folder together under another name; then give it its own."""
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_model(model.to("cpu"), part)
    write_json(part / "generation_config.json", SAMPLING)
    data.tokenizer.save(part)
    end = data.tokenizer.decode(sorted(data.tokenizer.eos_ids))
    write_json(
        part / "tokenizer_config.json",
        {"chat_template": TEMPLATE, "eos_token": end, "model_max_length": settings.length},
    )
    shutil.copy(work / "validation.jsonl", part)
    shutil.copy(work / "run" / "history.jsonl", part)
    facts = {
        "name": path.name,
        **stated(load_model(part), data, settings, recipe.final_windows),
        "steps": settings.steps,
        "tokens": settings.steps * settings.batch_size * settings.length,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": {"data": data.facts["seconds"], "training": sum(row["seconds"] for row in rows)},
        "settings": asdict(settings),
        "data": data.facts,
        "code_sha256": code_version(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    facts["files"] = {file.name: file.stat().st_size for file in sorted(part.iterdir())}
    write_json(part / FACTS, facts)
    discard(path)
    os.replace(part, path)
    discard(work)


def stated(model: Transformer, data: OwnData, settings: Settings, n_windows: int) -> dict[str, Any]:
    """The finished model's loss on validation text, in fp32: nats a token, and bits a byte for comparisons."""
    loss = validation_loss(model, data.validation, settings.length, n_windows)
    used = min(n_windows, (len(data.validation) - 1) // settings.length)
    labels = windows(data.validation, settings.length, range(used))[1]
    bits = loss * labels.numel() / math.log(2) / bytes_of(data.tokenizer, labels)
    return {"val_loss": loss, "bits_per_byte": bits, "validation_windows": used}


def code_version() -> str:
    """SHA-256 of the source files that decide the result."""
    shared = Path(__file__).resolve().parents[1]
    return hashlib.sha256(b"".join((shared / name).read_bytes() for name in CODE)).hexdigest()
