"""One epoch of the same net on the same batches: our NumPy against eager torch, on this machine's CPU."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.nn import functional as F

from shared.measure.progress import progress_bar
from shared.model import mlp as our_mlp
from shared.training import optim as our_optim
from shared.training import train_mlp as our_train

BATCH_SIZE = 64
LR = 1e-3
LOSSES_AGREE = 0.01  # relative difference of the epoch's mean loss; fp32 sums in another order drift apart a little


def bench_mlp(
    hidden: Sequence[int] = (128,),
    samples: int = 60_000,
    optimizer: str = "adam",
    threads: int = 1,
    repeats: int = 5,
    torch_variant: str = "default",
    mlp: ModuleType = our_mlp,
    optim: ModuleType = our_optim,
    train: ModuleType = our_train,
    progress: bool = False,
) -> dict[str, Any]:
    """Time an epoch of 784 -> hidden -> 10, fp32, batch 64, both ways.  Returns numpy_s, torch_s, ratio, the setting.

    Fair by construction: the same start, data, order of batches, loss and optimiser; both are held to `threads` threads
    (torch by set_num_threads, NumPy's BLAS by threadpoolctl); epochs alternate, so that a busy machine disturbs both;
    the best of `repeats` counts.  RuntimeError when the two losses don't agree, for then the work was not equal.

    optimizer: "sgd" or "adam".  torch_variant: "default" (what torch.optim.Adam(params) does on a CPU: a loop over
    the parameters), "foreach" or "fused".  mlp, optim, train: the modules whose parts are timed, a reader's own say.
    """
    if optimizer not in ("sgd", "adam") or torch_variant not in ("default", "foreach", "fused"):
        raise ValueError(f"no optimizer {optimizer!r} or torch_variant {torch_variant!r}; see the docstring")
    if samples < 1 or repeats < 1 or threads < 1:
        raise ValueError(f"samples, repeats and threads must be at least 1; got {samples}, {repeats}, {threads}")
    sizes = (784, *hidden, 10)
    x, y = mnist_shaped(samples)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def numpy_epoch() -> tuple[float, float]:
        model = mlp.MLP(sizes, np.random.default_rng(0))
        updater = optim.SGD(model.params) if optimizer == "sgd" else optim.Adam(model.params)
        rng = np.random.default_rng(1)
        arguments = (model, mlp.softmax_cross_entropy, updater, x, y, BATCH_SIZE, rng, lambda _: LR)
        return timed(lambda: train.train_epoch(*arguments))

    def torch_epoch() -> tuple[float, float]:
        net = torch_mlp(mlp.MLP(sizes, np.random.default_rng(0)).params)
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
        options: dict[str, Any] = {} if torch_variant == "default" else {torch_variant: True}
        updater = kind(net.parameters(), lr=LR, **options)
        rng = np.random.default_rng(1)
        return timed(lambda: train_torch_epoch(net, updater, tx, ty, rng))

    seconds: dict[str, list[float]] = {"numpy": [], "torch": []}
    loss = {}
    with held_to(threads), progress_bar("epochs", 2 * repeats, enabled=progress) as advance:
        for _ in range(repeats):
            for name, epoch in (("numpy", numpy_epoch), ("torch", torch_epoch)):
                took, loss[name] = epoch()
                seconds[name].append(took)
                advance()
    if abs(loss["numpy"] - loss["torch"]) > LOSSES_AGREE * abs(loss["torch"]):
        raise RuntimeError(f"not the same work: mean loss {loss['numpy']} in NumPy, {loss['torch']} in torch")
    numpy_s, torch_s = min(seconds["numpy"]), min(seconds["torch"])
    return {"numpy_s": numpy_s, "torch_s": torch_s, "ratio": numpy_s / torch_s, "numpy_loss": loss["numpy"],
            "torch_loss": loss["torch"], "sizes": list(sizes), "samples": samples, "batch_size": BATCH_SIZE,
            "optimizer": optimizer, "torch_variant": torch_variant, "threads": threads, "repeats": repeats}


def mnist_shaped(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n images of 784 numbers from 0 to 1 (float32) in 10 classes, and their labels, a tenth of them wrong.

    Each class is a random pattern under noise: learnable, so that the loss falls; never perfectly, so that gradients
    stay alive.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    patterns = rng.random((10, 784), dtype=np.float32)
    x = 0.5 * patterns[y] + 0.5 * rng.random((n, 784), dtype=np.float32)
    return x, np.where(rng.random(n) < 0.1, rng.integers(0, 10, n), y)


def torch_mlp(params: Sequence[np.ndarray]) -> torch.nn.Sequential:
    """The same net in torch, starting from copies of our parameters [w1, b1, w2, b2, ...]."""
    layers: list[torch.nn.Module] = []
    for w, b in zip(params[::2], params[1::2], strict=True):
        layer = torch.nn.Linear(w.shape[1], w.shape[0], dtype=torch.from_numpy(w).dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(w))
            layer.bias.copy_(torch.from_numpy(b))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])  # no ReLU after the last layer


def train_torch_epoch(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator
) -> list[float]:
    """The loop every torch tutorial has, without a DataLoader (which would only slow it down)."""
    order = torch.from_numpy(rng.permutation(len(x)))
    losses = []
    for start in range(0, len(x), BATCH_SIZE):
        batch = order[start : start + BATCH_SIZE]
        loss = F.cross_entropy(net(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def timed(epoch: Callable[[], list[float]]) -> tuple[float, float]:
    """Seconds of wall clock, and the epoch's mean loss."""
    start = time.perf_counter()
    losses = epoch()
    return time.perf_counter() - start, float(np.mean(losses))


@contextmanager
def held_to(threads: int) -> Iterator[None]:
    """Hold torch and NumPy's BLAS to so many threads, and put things back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)
