"""The loop of a training run: batches in an order that can be resumed, steps, a history, checkpoints, and a way out."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from shared.training.adamw import AdamW, decay_groups
from shared.training.checkpoint import (
    CheckpointError,
    capture,
    checkpoints,
    latest_checkpoint,
    restore,
    save_checkpoint,
)
from shared.training.display import training_bar
from shared.training.distributed import ALONE, Group, share_of_rank
from shared.training.gradients import IGNORED, Batch, Precision, token_losses, train_step
from shared.training.history import History, Row
from shared.training.optim import lr_at_step
from shared.training.utilisation import Speed
from shared.training.windows import count_windows, windows, windows_of_step


@dataclass(frozen=True)
class Settings:
    """All that decides a run's result. ValueError names a field that can't be.

    batch_size: windows in a step, over all processes; micro_batch: windows in one forward pass (0: all of them).
    embedding_scale: the embeddings' learning rate over the others'. max_norm: what gradients are clipped to.
    eval_every, save_every: in steps; 0 is only at the end.
    """

    steps: int
    length: int = 256
    batch_size: int = 8
    micro_batch: int = 0
    max_lr: float = 3e-3
    min_lr: float = 1e-4
    warmup_steps: int = 50
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    embedding_scale: float = 1.0
    max_norm: float = 1.0
    precision: str = "fp32"
    seed: int = 0
    eval_every: int = 100
    eval_windows: int = 32
    save_every: int = 100

    def __post_init__(self) -> None:
        for name in ("steps", "length", "batch_size", "eval_windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("micro_batch", "eval_every", "save_every", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, not {self.seed}")
        if not 0 < self.max_lr < math.inf:
            raise ValueError(f"max_lr must be above 0 and finite, not {self.max_lr}: nothing would be learnt")
        lr_at_step(0, self.max_lr, self.min_lr, self.warmup_steps, self.steps)  # refuses what doesn't fit together


class Stopped(Exception):
    """The run was asked to stop, and has saved. `step`: the steps done."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}, and saved")
        self.step = step


def train(
    model: nn.Module,
    stream: Tensor,
    validation: Tensor,
    settings: Settings,
    folder: Path,
    group: Group = ALONE,
    progress: bool = True,
    on_step: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Train `model` in place on the windows of `stream`; go on from the folder's newest checkpoint, if it has one.

    stream, validation: [n] ids. folder: gets checkpoints and history.jsonl, a row for each step: "step" (from 1),
    "loss" (nats a token, the step's mean), "lr", "grad_norm" (before clipping), "seconds", now and then "val_loss".
    on_step: is called with each row, after the step. Returns all rows, those of earlier starts included.
    Ctrl-C or SIGTERM: finishes the step, saves, raises Stopped. Raises ValueError for a run that can't be, and for a
    loss that isn't finite; OSError when a checkpoint can't be written.
    """
    precision = Precision(settings.precision, group.device)
    n_windows = count_windows(len(stream), settings.length)
    share_of_rank(windows_of_step(0, settings.batch_size, n_windows, settings.seed), group.rank, group.world)
    if count_windows(len(validation), settings.length) < 1:
        raise ValueError(f"the validation text has {len(validation)} tokens, and a window takes {settings.length + 1}")
    optimizer = AdamW(
        decay_groups(model, settings.weight_decay, settings.embedding_scale), lr=settings.max_lr, betas=settings.betas
    )
    facts = {"settings": json.loads(json.dumps(asdict(settings))), "data": fingerprint(stream)}
    start = resume(model, optimizer, precision, facts, folder)
    history = History(folder, start)
    wrapped, speed = group.wrap(model), Speed(model, settings.batch_size, settings.length, precision.name, group)

    def save(step: int) -> None:
        if group.leads:
            snapshot = capture(model, optimizer, precision.scaler, step)
            snapshot.facts |= facts
            history.save()  # first: a kill in between leaves rows too many, and those are cut off
            save_checkpoint(folder, snapshot)

    with (
        stop_signals() as asked,
        training_bar(settings.steps, start, progress and group.leads) as show,
    ):
        for step in range(start, settings.steps):
            began = time.perf_counter()
            batches = step_batches(stream, settings, step, group)
            lr = lr_at_step(step + 1, settings.max_lr, settings.min_lr, settings.warmup_steps, settings.steps)
            divisor = float(group.mean(sum(float((labels != IGNORED).sum()) for _, labels in batches)))
            loss, norm = train_step(wrapped, optimizer, batches, lr, settings.max_norm, precision, divisor)
            row = {"step": step + 1, "loss": float(group.mean(loss)), "lr": lr, "grad_norm": float(norm)}
            if due(step + 1, settings.eval_every, settings.steps):
                row["val_loss"] = validation_loss(model, validation, settings.length, settings.eval_windows, precision)
            check_finite(row, settings, folder)
            row["seconds"] = time.perf_counter() - began
            history.rows.append(row)
            show(step + 1, speed.note(row))
            if on_step is not None:
                on_step(row)
            stop = float(group.mean(float(asked.is_set()))) > 0 if group.world > 1 else asked.is_set()
            if stop or due(step + 1, settings.save_every, settings.steps):
                save(step + 1)
            if stop and step + 1 < settings.steps:
                raise Stopped(step + 1)
    return history.rows


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, precision: Precision, facts: Row, folder: Path) -> int:
    """Go back to the folder's newest checkpoint; returns the steps done, 0 without one.

    facts: "settings" and "data" of this run. Raises CheckpointError when the checkpoint's are others.
    """
    snapshot = latest_checkpoint(folder)
    if snapshot is None:
        return 0
    then, now = snapshot.facts.get("settings", {}), facts["settings"]
    if other := [f"{name} {then.get(name)!r}, now {now[name]!r}" for name in now if then.get(name) != now[name]]:
        raise CheckpointError(f"the run in {folder} was started with {'; '.join(other)}. Go on with the same settings, "
                              "choose another folder, or start over (--fresh).")  # fmt: skip
    if snapshot.facts.get("data") != facts["data"]:
        raise CheckpointError(f"the run in {folder} was started on other data; choose another or start over (--fresh).")
    return restore(snapshot, model, optimizer, precision.scaler)


def step_batches(stream: Tensor, settings: Settings, step: int, group: Group = ALONE) -> list[Batch]:
    """This process's micro-batches of step number `step` (from 0)."""
    n_windows = count_windows(len(stream), settings.length)
    indices = windows_of_step(step, settings.batch_size, n_windows, settings.seed)
    mine = share_of_rank(indices, group.rank, group.world)
    size = settings.micro_batch or len(mine)
    parts = (windows(stream, settings.length, mine[i : i + size]) for i in range(0, len(mine), size))
    return [(inputs.to(group.device), labels.to(group.device)) for inputs, labels in parts]


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    stream: Tensor,
    length: int,
    n_windows: int,
    precision: Precision | None = None,
    batch_size: int = 8,
) -> float:
    """Mean loss, in nats a token, over the first n_windows windows of a stream. precision: fp32 by default."""
    precision = precision or Precision("fp32", str(next(model.parameters()).device))
    total = min(n_windows, count_windows(len(stream), length))
    was_training = model.training
    model.eval()
    losses = 0.0
    for i in range(0, total, batch_size):
        inputs, labels = windows(stream, length, range(i, min(i + batch_size, total)))
        losses += float(token_losses(model, inputs.to(precision.device), labels.to(precision.device), precision))
    model.train(was_training)
    return losses / (total * length)


def check_finite(row: Row, settings: Settings, folder: Path) -> None:
    """Raises ValueError when a step's numbers are nan or infinite: all that follows would be lost, and is not saved."""
    names = ["loss", "val_loss"] + ["grad_norm"] * (settings.precision != "fp16")  # there the scaler skips such a step
    if bad := [f"{name} {row[name]}" for name in names if not math.isfinite(row.get(name, 0.0))]:
        kept = checkpoints(folder)
        raise ValueError(f"step {row['step']}: {', '.join(bad)}. The run has diverged, and this step is not saved"
                         f"{f'; {kept[0]} is of before' if kept else ''}. Start over (--fresh) with a lower learning "
                         f"rate (--lr) than {settings.max_lr:g}.")  # fmt: skip


def due(step: int, every: int, total: int) -> bool:
    """True for every `every`-th step, and for the last."""
    return step == total or (every > 0 and step % every == 0)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, in place of breaking a step off. A second one does break off."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fingerprint(stream: Tensor) -> str:
    """A short name for the data: how many tokens, and a sum that depends on each one's place."""
    places = torch.arange(1, len(stream) + 1, dtype=torch.int64)
    return f"{len(stream)}-{int((stream.long() * places % 1_000_003).sum()):x}"
