"""The loss that does not fall: a very small run that can be broken in every usual way, and leaves its signs behind."""

import argparse
import inspect
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared.data.corpus import docstring_documents
from shared.model.config import ModelConfig
from shared.model.transformer import Transformer
from shared.training.adamw import AdamW
from shared.training.diagnosis import CLIPPED, GARBAGE, HEALTHY, HIGH, LABELS, LOW, ORDER, VANISHING, Signs
from shared.training.gradients import Batch, Precision, clip_global_norm, token_losses
from shared.training.windows import count_windows, epoch_order, windows

VOCAB = 256  # bytes
FP32 = Precision()


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run; by default nothing.

    label_shift: how far ahead labels are (1 is right). shuffled: or in the file's order. init_std: of all matrices.
    garbage: share of the training windows that are replaced; by `garbage_kind`: "noise" (random bytes), "labels" (good
    text with another window's labels), or "repeat" (one byte, again and again).
    """

    lr: float = 1e-2
    label_shift: int = 1
    shuffled: bool = True
    init_std: float = 0.05
    max_norm: float = 1.0
    sgd: bool = False
    garbage: float = 0.0
    garbage_kind: str = "noise"


def three_sources(n: int = 60_000, held_out: int = 8_000) -> tuple[Tensor, Tensor]:
    """A file as they often are, sorted by where its texts come from: documentation, code, tables of numbers.

    Returns the bytes to train on, n of each, and the bytes held out. The same on every call.
    """
    docs = "\n".join(document["text"] for document in docstring_documents(limit=200))
    code = "".join(inspect.getsource(module) for module in (argparse, statistics, random))
    rng = random.Random(0)
    numbers = "\n".join(",".join(f"{rng.gauss(0, 100):.2f}" for _ in range(6)) for _ in range(5000))
    sources = (docs, code, numbers)
    return byte_stream([s[:n] for s in sources]), byte_stream([s[n : n + held_out] for s in sources])


def byte_stream(texts: Sequence[str]) -> Tensor:
    """Texts as bytes, the smallest vocabulary there is. [n] int32."""
    return torch.frombuffer(bytearray("\n".join(texts).encode()), dtype=torch.uint8).int()


# Every cause, reproduced. To be clipped to death takes plain SGD: AdamW divides by the gradients' own size, and so
# undoes any constant factor.
FAULTS = {
    HEALTHY: Fault(),
    HIGH: Fault(lr=1.0),
    LOW: Fault(lr=1e-5),
    GARBAGE: Fault(garbage=0.2),
    LABELS: Fault(label_shift=0),
    ORDER: Fault(shuffled=False),
    VANISHING: Fault(init_std=0.0),
    CLIPPED: Fault(sgd=True, lr=0.3, max_norm=1e-4),
}


def tiny_run(
    text: Tensor, held_out: Tensor, fault: Fault = Fault(), steps: int = 150, batch: int = 16, length: int = 32,
    seed: int = 0,
) -> Signs:  # fmt: skip
    """Train a Llama of one layer on bytes for some steps, under a second, with this fault.

    text, held_out: [n] ids below 256.
    """
    torch.manual_seed(seed)
    model = tiny_llama(length, fault.init_std)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=fault.lr, momentum=0.9)
        if fault.sgd
        else AdamW(model.parameters(), lr=fault.lr, betas=(0.9, 0.95), weight_decay=0.0)
    )
    inputs, labels = training_windows(text, steps * batch, length, fault, seed)
    signs = Signs(VOCAB, fault.max_norm)
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        loss = token_losses(model, inputs[part], labels[part], FP32) / labels[part].numel()
        optimizer.zero_grad()
        loss.backward()
        signs.losses.append(loss.item())
        signs.grad_norms.append(float(clip_global_norm(model.parameters(), fault.max_norm)))
        optimizer.step()
    signs.ahead_losses = [_loss(model, held_out, length, ahead) for ahead in (0, 1, 2)]
    some = torch.randperm(len(inputs))[:128]
    signs.sample_losses = _sample_losses(model, (inputs[some], labels[some]))
    return signs


def tiny_llama(length: int, init_std: float = 0.05) -> Transformer:
    """A Llama of one layer over bytes. init_std: the deviation of every matrix; 0 starts from nothing at all."""
    config = ModelConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=96, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                         max_position_embeddings=length, tie_word_embeddings=True)  # fmt: skip
    model = Transformer(config)
    for weight in model.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=init_std)
    return model


def training_windows(text: Tensor, n: int, length: int, fault: Fault, seed: int) -> Batch:
    """n windows with the fault in them, [n, length] each; at most one pass over the text."""
    available = count_windows(len(text) - 1, length)
    if available < n:
        raise ValueError(f"{n} windows are needed, and the text has {available}: give more text, or fewer steps")
    first = epoch_order(available, seed, 0)[:n]
    if not fault.shuffled:
        first = sorted(first)
    inputs, labels = windows(text, length, first)
    if fault.label_shift != 1:
        labels = torch.stack([text[i * length + fault.label_shift :][:length] for i in first]).long()
    generator = torch.Generator().manual_seed(seed)
    bad = torch.rand(n, generator=generator) < fault.garbage  # [n]
    noise = torch.randint(VOCAB, (n, length + 1), generator=generator)
    if fault.garbage_kind == "labels":
        return inputs, torch.where(bad[:, None], labels.roll(1, dims=0), labels)
    if fault.garbage_kind == "repeat":
        noise = noise[:, :1].expand(n, length + 1)
    elif fault.garbage_kind != "noise":
        raise ValueError(f"garbage_kind must be noise, labels or repeat, not {fault.garbage_kind!r}")
    return torch.where(bad[:, None], noise[:, :-1], inputs), torch.where(bad[:, None], noise[:, 1:], labels)


@torch.no_grad()
def _loss(model: nn.Module, text: Tensor, length: int, ahead: int) -> float:
    """Validation by hand: the log-probability of what really stands `ahead` places on. Not the training's labels."""
    rows = text[: len(text) // length * length].long().view(-1, length)
    rows = rows[:: max(1, len(rows) // 128)]  # [about 128, length], from everywhere in the text
    told = model(rows).log_softmax(-1)[:, : length - ahead].gather(-1, rows[:, ahead:, None])
    return -float(told.mean())


@torch.no_grad()
def _sample_losses(model: nn.Module, batch: Batch) -> list[float]:
    logits = model(batch[0])
    each = nn.functional.cross_entropy(logits.transpose(1, 2), batch[1], reduction="none")  # [batch, length]
    return each.mean(dim=1).tolist()
