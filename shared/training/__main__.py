"""Train the book's own model: python -m shared.training. Stopped by Ctrl-C, the same command goes on where it was.

Two processes: torchrun --standalone --nproc-per-node 2 -m shared.training
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shared.measure.command import run_command

if TYPE_CHECKING:
    from shared.training.own_model import Recipe


def main(arguments: Sequence[str] | None = None) -> int:
    # OpenMP's threads wait for one another by spinning, which costs a factor of ten when anything else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from shared.training.own_model import MODELS, NAME, RECIPE, is_whole, work_folder

    usual = RECIPE.settings
    parser = argparse.ArgumentParser(prog="python -m shared.training", description=__doc__)
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
    options = parser.parse_args(arguments)
    out = options.out.absolute()
    leads = os.environ.get("RANK", "0") == "0"  # torchrun starts several processes
    if options.fresh and leads:
        shutil.rmtree(work_folder(out), ignore_errors=True)
    if is_whole(out) and not options.fresh and not work_folder(out).exists():
        print(f"{out} is there already; --fresh trains it again, --out DIR makes another one.")
        return 0
    given = [a for a in (sys.argv[1:] if arguments is None else arguments) if a != "--fresh"]
    again = " ".join(["To go on: python -m shared.training", *given])

    def work() -> None:
        warmup = min(usual.warmup_steps, options.steps // 10)
        settings = replace(usual, steps=options.steps, batch_size=options.batch, micro_batch=options.micro_batch,
                           max_lr=options.lr, min_lr=min(usual.min_lr, options.lr), warmup_steps=warmup,
                           precision=options.precision, seed=options.seed)  # fmt: skip
        _run(out, replace(RECIPE, documents=options.documents, settings=settings), options.device)

    return run_command(work, again if leads else "", RuntimeError)


def _run(out: Path, recipe: "Recipe", device: str) -> None:
    import torch

    from shared.training.distributed import process_group
    from shared.training.own_model import FACTS, train_own_model, work_folder
    from shared.training.trainer import Stopped

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; leave the option out to train on the CPU")
    with process_group(device) as group:
        try:
            train_own_model(out, recipe, group)
        except Stopped as stopped:
            if group.leads:
                done = f"Stopped after step {stopped.step} of {recipe.settings.steps}; saved in {work_folder(out)}."
                print(f"\n{done}", file=sys.stderr)
            raise KeyboardInterrupt from None
        if group.leads:
            facts = json.loads((out / FACTS).read_text(encoding="utf-8"))
            print(f"{out}: validation loss {facts['val_loss']:.3f} nats a token, {facts['bits_per_byte']:.3f} bits "
                  f"a byte, in {sum(facts['seconds'].values()):.0f} s\n"
                  f"Chat with it: python -m shared.serving --model {out}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
