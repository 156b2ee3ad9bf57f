"""Train the book's own model: python -m shared.training. Stopped by Ctrl-C, the same command goes on where it was.

Two processes: torchrun --standalone --nproc-per-node 2 -m shared.training
"""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from shared.measure.command import run_command

if TYPE_CHECKING:
    from shared.training.own_model import Recipe

LEAST = {"steps": 1, "batch": 1, "micro_batch": 0, "documents": 1, "seed": 0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when the model is there, 2 for an error told in a line, 130 after Ctrl-C."""
    # OpenMP's threads wait for one another by spinning, which costs a factor of ten when anything else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # a little of it is cheaper than going to sleep and being woken
    given = sys.argv[1:] if arguments is None else list(arguments)
    again = f"To go on: {same_command(given)}" if os.environ.get("RANK", "0") == "0" else ""
    # Even the options are read in there: for their usual values torch is loaded, and Ctrl-C may come while it is.
    return run_command(lambda: _work(given), again, RuntimeError, SafetensorError)


def same_command(given: Sequence[str]) -> str:
    """What to type to go on: the same, but not --fresh, which would start over."""
    start = ["python"]
    if "RANK" in os.environ:  # torchrun's processes find their number there
        start = ["torchrun", "--standalone", "--nproc-per-node", os.environ.get("WORLD_SIZE", "1")]
    return shlex.join([*start, "-m", "shared.training", *(a for a in given if a != "--fresh")])


def _work(given: Sequence[str]) -> None:
    from shared.training.own_folder import MODELS, NAME
    from shared.training.own_model import RECIPE

    usual = RECIPE.settings
    parser = argparse.ArgumentParser(prog="python -m shared.training", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=MODELS / NAME, help="the model's folder (%(default)s)")
    parser.add_argument("--steps", type=int, default=usual.steps, help="how long to train (%(default)s)")
    parser.add_argument("--batch", type=int, default=usual.batch_size, help="windows in a step (%(default)s)")
    parser.add_argument("--micro-batch", type=int, default=0, help="windows in one pass, to save memory (all of them)")
    parser.add_argument("--lr", type=float, default=usual.max_lr, help="the highest learning rate (%(default)s)")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16", "fp16"), default="auto",
                        help="auto is bf16 where this machine is fast at it, else fp32")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (%(default)s)")
    parser.add_argument("--documents", type=int, default=RECIPE.documents, help="texts to start from (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order (%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="start over, even if a model or a run is there")
    options = parser.parse_args(given)
    for name, least in LEAST.items():
        if getattr(options, name) < least:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} must be at least {least}, not {getattr(options, name)}")
    if not 0 < options.lr < math.inf:
        raise ValueError(f"--lr must be above 0 and finite, not {options.lr}")
    settings = replace(usual, steps=options.steps, batch_size=options.batch, micro_batch=options.micro_batch,
                       max_lr=options.lr, min_lr=min(usual.min_lr, options.lr),
                       warmup_steps=min(usual.warmup_steps, options.steps // 10),
                       precision=options.precision, seed=options.seed)  # fmt: skip
    recipe = replace(RECIPE, documents=options.documents, settings=settings)
    _run(options.out.absolute(), recipe, options.device, options.fresh)


def _run(out: Path, recipe: "Recipe", device: str, fresh: bool) -> None:
    import torch

    from shared.training.checkpoint import checkpoints
    from shared.training.distributed import process_group
    from shared.training.gradients import Precision
    from shared.training.own_folder import FACTS, check_ours, discard, is_whole, lock, read_facts, work_folder
    from shared.training.own_model import train_own_model
    from shared.training.trainer import Stopped

    settings, work = recipe.settings, work_folder(out)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; leave the option out to train on the CPU")
    if settings.precision != "auto":
        Precision(settings.precision, device)  # refuses what this device can't do
    with process_group(device) as group:
        if settings.batch_size % group.world:
            enough = -(-settings.batch_size // group.world) * group.world
            raise ValueError(f"--batch {settings.batch_size} can't be shared by {group.world} processes; make it a "
                             f"multiple of {group.world}, such as {enough}")  # fmt: skip
        if is_whole(out) and not fresh and not work.exists():
            if group.leads:
                print(f"{out} is there already; --fresh trains it again, --out DIR makes another one.")
            return
        with lock(out, wait=False) if group.leads else nullcontext():
            if fresh and group.leads:  # only now, when all that can be refused has been
                check_ours(out)
                discard(work)
                work.mkdir()  # the same command without --fresh goes on from here, even if a finished model is there
            if group.leads and (saved := checkpoints(work / "run")):
                print(f"Going on from {saved[0]}.")
            try:
                train_own_model(out, recipe, group)
            except Stopped as stopped:
                if group.leads:
                    done = f"Stopped after step {stopped.step} of {settings.steps}; saved in {work}."
                    print(f"\n{done}", file=sys.stderr)
                raise KeyboardInterrupt from None
            except KeyboardInterrupt:
                if group.leads:
                    saved = checkpoints(work / "run")
                    kept = f"What {saved[0]} doesn't hold is lost." if saved else "No step of the training was saved."
                    print(f"\nBroken off at once. {kept}", file=sys.stderr)
                raise
    if group.leads:
        facts = read_facts(out / FACTS)
        print(f"{out}: validation loss {facts['val_loss']:.3f} nats a token, {facts['bits_per_byte']:.3f} bits "
              f"a byte, in {sum(facts['seconds'].values()):.0f} s\n"
              f"Chat with it: python -m shared.serving --model {shlex.quote(str(out))}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
