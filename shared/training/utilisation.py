"""How much of the machine a training run uses: its floating-point operations over what a large product reaches here."""

import time
from functools import cache

import torch
from torch import nn

from shared.model.counting import flops_per_token
from shared.training.distributed import Group
from shared.training.gradients import DTYPES
from shared.training.history import Row

SIZE = {"cpu": 512, "cuda": 8192}  # of the square matrices that are multiplied to find the peak


@cache
def matmul_peak(precision: str = "fp32", device: str = "cpu") -> float:
    """Floating-point operations a second of a large matrix product on this machine: the best in 0.2 s.

    On a CPU: what one thread does in a second of its own time, which nothing else that runs can disturb, times the
    threads in use.
    """
    kind = torch.device(device).type
    n = SIZE.get(kind, 1024)
    a, b = (torch.randn(n, n, device=device).to(DTYPES[precision]) for _ in range(2))
    clock, threads = (time.perf_counter, 1) if kind == "cuda" else (time.process_time, torch.get_num_threads())
    best, deadline = float("inf"), time.perf_counter() + 0.2
    if kind != "cuda":
        torch.set_num_threads(1)
    try:
        while time.perf_counter() < deadline or best == float("inf"):
            start = clock()
            a @ b.T
            if kind == "cuda":
                torch.cuda.synchronize()
            best = min(best, max(clock() - start, 1e-9))
    finally:
        if kind != "cuda":
            torch.set_num_threads(threads)
    return 2 * n**3 * threads / best


def best_precision(device: str = "cpu") -> str:
    """ "bf16" where this device multiplies it at least 1.5 times as fast as fp32, else "fp32".

    A processor with AMX or AVX-512 BF16, and any recent GPU, does. Without them bf16 is several times slower.
    """
    return "bf16" if matmul_peak("bf16", device) > 1.5 * matmul_peak("fp32", device) else "fp32"


def training_flops_per_token(model: nn.Module, length: int) -> int:
    """Operations for a token's forward and backward pass: the backward pass has two products for each of the forward's.

    For a model without a Llama's config: 6 for each parameter (Kaplan et al. 2020, section 2.1).
    """
    if (config := getattr(model, "config", None)) is not None:
        return 3 * flops_per_token(config, length)
    return 6 * sum(p.numel() for p in model.parameters())


class Speed:
    """Tokens a second and utilisation, over the steps since the start. batch_size: windows in a step, over all."""

    def __init__(self, model: nn.Module, batch_size: int, length: int, precision: str, group: Group) -> None:
        self.tokens = batch_size * length
        self.peak = matmul_peak(precision, group.device) * group.world
        self.flops = training_flops_per_token(model, length)
        self.seconds: list[float] = []
        self.validated = ""

    def note(self, row: Row) -> str:
        """What stands beside the bar: loss, validation loss, tokens/s, and the share of the peak in use."""
        if "val_loss" in row:
            self.validated = f"  validation {row['val_loss']:.3f}"
        else:
            self.seconds = [*self.seconds[-19:], row["seconds"]]  # the mean of the last 20 steps
        rate = self.tokens * len(self.seconds) / max(sum(self.seconds), 1e-9)
        use = rate * self.flops / self.peak
        return f"loss {row['loss']:.3f}{self.validated}  {rate:,.0f} tokens/s  {use:.0%} of peak"
