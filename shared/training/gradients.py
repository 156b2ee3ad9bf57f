"""One training step: gradients summed over micro-batches, kept at a safe length, in a precision of your choice."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100  # the label of a place that isn't to be learnt; cross_entropy's own value
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Batch = tuple[Tensor, Tensor]  # inputs, labels: [batch, length] each


@dataclass
class Precision:
    """How products are computed; the weights and the optimiser's means stay in fp32 in every case.

    name: "fp32", "bf16" or "fp16". fp16 has no small numbers (below 6e-8 all is 0), so the loss is multiplied by a
    large factor before the backward pass: that is the scaler's work, and the gradients it leaves are as much too large.
    Raises ValueError for another name, and for fp16 without CUDA, where it is slower than fp32 and gains nothing.
    """

    name: str = "fp32"
    device: str = "cpu"
    scaler: torch.amp.GradScaler = field(init=False)

    def __post_init__(self) -> None:
        if self.name not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, not {self.name!r}")
        self.kind = torch.device(self.device).type
        if self.name == "fp16" and self.kind != "cuda":
            raise ValueError("fp16 is for CUDA; on a CPU use fp32, or bf16 where the processor has it")
        self.scaler = torch.amp.GradScaler(self.kind, enabled=self.name == "fp16")

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which matrix products run in this precision, and sums and softmax in fp32."""
        return torch.autocast(self.kind, DTYPES[self.name], enabled=self.name != "fp32")


def clip_global_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Shorten all gradients by one factor, so that together they are at most max_norm long (Pascanu et al. 2013).

    The length is that of the vector of all gradients put one behind the other: the root of the sum of all squares. A
    common factor keeps its direction. Parameters without a gradient don't count. Returns the length before, a scalar.
    parameters may be a generator, such as `model.parameters()`, which can be gone through only once.

    By hand: two parameters with gradients [3.0] and [4.0] have length 5. With max_norm 1 they become 0.6 and 0.8.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, not {max_norm!r}")
    # exercise 6.4: the length of all gradients together; if it is above max_norm, multiply all by max_norm / length
    #   a factor made with clamp(max=1), and no `if`, spares a GPU the wait for the answer
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)
    return norm
    # end


def accumulate(
    model: nn.Module, batches: Sequence[Batch], precision: Precision, divisor: float | None = None
) -> Tensor:
    """Add to every parameter's gradient that of the mean loss over ALL labelled tokens of all micro-batches.

    The result is that of one large batch, whatever the sizes of the small ones, in the memory of a small one. Labels
    that are IGNORED count nowhere. divisor: the number of labelled tokens to divide by; by default those of `batches`.
    (With several processes it is their mean number, since DDP averages the gradients: see distributed.py.)
    Returns the mean loss, a scalar tensor, detached from the graph (what autograd keeps for the backward pass).

    token_losses(model, inputs, labels, precision) gives the SUM of a micro-batch's losses, computed in `precision`.
    Call backward, through precision.scaler.scale(loss) (which does nothing in fp32 and bf16), before the next
    micro-batch's forward pass: it frees the graph, so that only one is held at a time. Forward and backward both stand
    inside `with last_only(model, is_last):`, so that several processes exchange gradients once a step: DDP decides in
    the forward pass.

    By hand: losses [1, 1, 1, 1] and [6] are 10 / 5 = 2 in the mean; the mean of their means would be 3.5.
    """
    # exercise 6.5: count the labelled tokens, then for each micro-batch: its summed loss over the count, and backward
    if divisor is None:
        divisor = sum(int((labels != IGNORED).sum()) for _, labels in batches)
    total = torch.zeros((), device=batches[0][0].device)
    for i, (inputs, labels) in enumerate(batches):
        with last_only(model, i == len(batches) - 1):
            loss = token_losses(model, inputs, labels, precision) / divisor
            precision.scaler.scale(loss).backward()
        total += loss.detach()
    return total
    # end


def token_losses(model: nn.Module, inputs: Tensor, labels: Tensor, precision: Precision) -> Tensor:
    """The sum of the cross-entropies, in nats, at all places whose label isn't IGNORED. A scalar in fp32."""
    with precision.autocast():
        logits = model(inputs)  # [batch, length, vocab]
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))  # a softmax in bf16 is 1% off
    return F.cross_entropy(wide, labels.flatten(), ignore_index=IGNORED, reduction="sum")


def last_only(model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
    """Under DDP, gradients are exchanged for the last micro-batch only; without DDP this does nothing.

    To stand around the forward pass as well as the backward pass: DDP prepares the exchange in its forward.
    """
    wait = getattr(model, "no_sync", None)
    return wait() if wait is not None and not is_last else nullcontext()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    lr: float,
    max_norm: float,
    precision: Precision,
    divisor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One update of the parameters from all the micro-batches. Returns (mean loss, gradient length before clipping).

    In this order: no old gradients; `accumulate`; true gradients again (`precision.scaler.unscale_(optimizer)`); clip
    with `clip_global_norm`; lr into each of optimizer.param_groups, times the group's own "lr_scale" if it has one;
    `precision.scaler.step(optimizer)`, which leaves the step out when fp16 has overflowed; `precision.scaler.update()`.
    """
    # exercise 6.6: the seven things above, each once a step and in this order
    optimizer.zero_grad(set_to_none=True)
    loss = accumulate(model, batches, precision, divisor)
    precision.scaler.unscale_(optimizer)
    norm = clip_global_norm(model.parameters(), max_norm)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    precision.scaler.step(optimizer)
    precision.scaler.update()
    return loss, norm
    # end
