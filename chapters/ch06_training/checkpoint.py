# Yours to finish. Generated from shared/training/checkpoint.py (version d0f93f749a06).
"""Checkpoints: all that a run needs to go on bit for bit, in one safetensors file that is whole or isn't there.

No pickle: numbers are tensors, and what isn't a tensor stands as JSON in the file's own header.
"""

from chapters import Todo
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

KEPT = 2  # the newest checkpoint, and the one before it in case the newest is damaged
Tensors = dict[str, Tensor]


class CheckpointError(ValueError):
    """A checkpoint that can't be used; the message names the file and says what to do."""


@dataclass
class Snapshot:
    """A run at one moment. facts: what JSON can hold; "step" is the number of steps done."""

    tensors: Tensors
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """How many steps were done; the run goes on with the one of this number, counted from 0."""
        return int(self.facts["step"])


def capture(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, step: int
) -> Snapshot:
    """Everything that decides how the run goes on, after `step` steps. `restore` is the way back.

    tensors: "model.NAME" for the whole state_dict (buffers too), "optimizer.…" and "random.…".
    facts: "step"; "optimizer", the rest of the optimiser; "scaler", the scaler's state_dict ({} without one).
    The position in the data and in the schedule follow from the step.

    optimizer_parts(optimizer) -> (tensors, facts) of the optimiser; random_state() -> tensors.  Both dicts of tensors
    have short names, such as "0.exp_avg" and "torch": put the prefix before them.
    """
    # exercise 6.8: gather the model's, the optimiser's and the random generators' tensors, each with its prefix
    #   the check saves and resumes a run, so write 6.7 first
    raise Todo("6.8")
    # end


def restore(
    snapshot: Snapshot, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
) -> int:
    """Put model, optimiser, scaler and random generators back as they were; returns the number of steps done.

    Raises CheckpointError when the snapshot is of another model or another optimiser.
    """
    try:
        model.load_state_dict(_with_prefix(snapshot.tensors, "model."))
        load_optimizer_parts(optimizer, _with_prefix(snapshot.tensors, "optimizer."), snapshot.facts["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint is of another model or optimiser: {error}") from error
    if scaler is not None and snapshot.facts["scaler"]:
        scaler.load_state_dict(snapshot.facts["scaler"])
    set_random_state(_with_prefix(snapshot.tensors, "random."))
    return snapshot.step


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Make `path` by calling write(temporary path), so that a kill or a power cut at any moment leaves the old file or
    the new one, whole.

    The temporary file stands in the same folder, for a rename across file systems is a copy, and its name is
    temporary_name(path). If write fails (Ctrl-C too, and maybe before it has made a file), what there is of the
    temporary file is removed, the old file stays and the error goes on. os.replace takes the old file's place.
    fsync_path(path) waits until a file's bytes, or a folder's names, are on the disk.
    """
    # exercise 6.7: write to the temporary file; its bytes to the disk; rename (os.replace); the folder to the disk
    raise Todo("6.7")
    # end


def temporary_name(path: Path) -> Path:
    """Hidden, in the same folder, and the same every time: what a killed run leaves there is overwritten."""
    return path.with_name(f".{path.name}.part")


def fsync_path(path: Path) -> None:
    """Wait until the disk has it. Without this a rename may reach the disk before the bytes do."""
    if os.name == "nt" and path.is_dir():
        return  # Windows can't open a folder
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write the snapshot as folder/checkpoint-STEP.safetensors and remove all but the KEPT newest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{snapshot.step:08}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in snapshot.tensors.items()}
    header = {"facts": json.dumps(snapshot.facts), "sha256": checksum(tensors)}
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=header))
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"{path} can't be written: {error}") from error
    for old in checkpoints(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    for left in folder.glob(".checkpoint-*.part"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, the newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def checksum(tensors: Tensors) -> str:
    """SHA-256 of names and bytes. safetensors has none: a number that a bad disk has changed would be read as it is."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_checkpoint(path: Path) -> Snapshot:
    """Read one file. Raises CheckpointError when it is damaged or isn't a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            facts = json.loads(header["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if checksum(tensors) != header["sha256"]:
            raise ValueError("its numbers aren't those that were saved")
        if not isinstance(facts["step"], int):
            raise ValueError("its step is not a number")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error})") from error
    return Snapshot(tensors, facts)


def latest_checkpoint(folder: Path, say: Callable[[str], None] | None = None) -> Snapshot | None:
    """The newest checkpoint that is whole, or None when there is none at all.

    say: is told, in a sentence, of each damaged one that is passed over (stderr by default). Raises CheckpointError
    when all of them are damaged: to start from nothing in silence would throw the run away.
    """
    say = say or (lambda text: print(text, file=sys.stderr))
    found = checkpoints(folder)
    for path in found:
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            say(f"{error}; trying the one before it.")
    if found:
        raise CheckpointError(f"no checkpoint in {folder} can be read. Delete them to start over (--fresh does).")
    return None


def optimizer_parts(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """An optimiser's state_dict as named tensors ("0.exp_avg") and JSON: {"groups": […], "numbers": {"0.step": 9}}."""
    state = optimizer.state_dict()
    flat = {f"{i}.{name}": value for i, values in state["state"].items() for name, value in values.items()}
    tensors = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in flat.items() if name not in tensors}
    return tensors, {"groups": state["param_groups"], "numbers": numbers}


def load_optimizer_parts(optimizer: torch.optim.Optimizer, tensors: Tensors, facts: dict[str, Any]) -> None:
    """The inverse of optimizer_parts."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in (tensors | facts["numbers"]).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": facts["groups"]})


def random_state() -> Tensors:
    """The state of every random generator that code in this process may draw from: torch's, NumPy's and Python's."""
    version, numbers, spare = random.getstate()
    twister = np.random.get_state(legacy=False)  # a dict, which names what it holds
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *numbers], dtype=torch.int64),
        "numpy": torch.tensor([*twister["state"]["key"].tolist(), twister["state"]["pos"], twister["has_gauss"]]),
        # a spare is a normal number that has been drawn and not yet handed out; nan stands for none
        "spares": torch.tensor([float("nan") if spare is None else spare, twister["gauss"]], dtype=torch.float64),
    }
    for i in range(torch.cuda.device_count()):
        state[f"cuda.{i}"] = torch.cuda.get_rng_state(i)
    return state


def set_random_state(state: Tensors) -> None:
    """The inverse of random_state. The state of a GPU that this machine lacks is left out."""
    torch.set_rng_state(state["torch"])
    version, *numbers = state["python"].tolist()
    spare, numpy_spare = state["spares"].tolist()
    random.setstate((version, tuple(numbers), None if spare != spare else spare))
    *keys, place, has_spare = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), place, has_spare, numpy_spare))
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda.{i}"], i)


def _with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
