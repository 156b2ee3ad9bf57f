"""AdamW by hand: Adam whose weight decay doesn't pass through Adam (Loshchilov & Hutter 2019, algorithm 2)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class AdamW(torch.optim.Optimizer):
    """AdamW as a `torch.optim.Optimizer`: groups, `state_dict` and schedules work as they do for torch's own.

    params: parameters, or groups as dicts with settings of their own. lr: above or at 0; betas: each in [0, 1);
    eps: above 0; weight_decay: at least 0, per step and times lr. Raises ValueError, naming the setting.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; every group's settings are checked, wherever they come from."""
        settings = self.defaults | param_group
        for name, value, lowest in (("lr", settings["lr"], 0), ("weight_decay", settings["weight_decay"], 0)):
            if not (math.isfinite(value) and value >= lowest):
                raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
        if not (math.isfinite(settings["eps"]) and settings["eps"] > 0):
            raise ValueError(f"eps must be a number above 0, not {settings['eps']!r}")
        if len(settings["betas"]) != 2 or not all(0 <= beta < 1 for beta in settings["betas"]):
            raise ValueError(f"betas must be two numbers in [0, 1), not {settings['betas']!r}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. closure: computes the loss again; its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if p.grad.is_sparse:
                        raise RuntimeError("AdamW can't use sparse gradients; make the embedding with sparse=False")
                    self.update(p, p.grad, group)
        return loss

    def update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One parameter's step, in place. grad is left as it was. group: "lr", "betas", "eps", "weight_decay".

        group["lr"] is the rate to use as it stands: a group's "lr_scale" is already in it (exercise 6.6).
        self.state[p] is this parameter's own dict, empty before its first step; it keeps "step" (a count), "exp_avg"
        and "exp_avg_sq" (the running means m and v, shaped like p), so that `state_dict` saves them.

        p -= lr * weight_decay * p                   decay, of the weight itself
        m = beta1 * m + (1 - beta1) * grad;          v = beta2 * v + (1 - beta2) * grad**2
        m_hat = m / (1 - beta1**step);               v_hat = v / (1 - beta2**step)
        p -= lr * m_hat / (sqrt(v_hat) + eps)

        By hand: p = 10, grad = 2, lr = 0.1, weight_decay = 0.5, first step. The decay takes 0.1 * 0.5 * 10 = 0.5 off;
        m_hat = 2 and v_hat = 4, so Adam takes 0.1 * 2 / 2 = 0.1 off: p = 9.4.
        """
        # exercise 6.1: fill an empty state, count the step, decay, update both means, correct their bias, move p
        #   in place (mul_, add_, lerp_, addcmul_, addcdiv_): a copy of each tensor would double the memory in use
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        p.mul_(1 - group["lr"] * group["weight_decay"])
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1, correction2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        denominator = (state["exp_avg_sq"].sqrt() / math.sqrt(correction2)).add_(group["eps"])
        p.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / correction1)
        # end


def decay_groups(model: nn.Module, weight_decay: float, embedding_scale: float = 1.0) -> list[dict[str, Any]]:
    """Three groups for an optimiser: matrices, which decay; embeddings and vectors (norms, biases), which don't.

    A norm's weight is a scale near 1; pulling it to 0 is no regularisation, only a smaller scale. A rare token's row
    would decay at every step and learn at few of them. embedding_scale: the embeddings' "lr_scale", for the same
    reason: each row has few steps in which to get anywhere.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    embeddings = [p for name, p in named if "embed" in name]
    vectors = [p for name, p in named if "embed" not in name and p.dim() < 2]
    return [
        {"params": [p for name, p in named if "embed" not in name and p.dim() >= 2], "weight_decay": weight_decay},
        {"params": embeddings, "weight_decay": 0.0, "lr_scale": embedding_scale},
        {"params": vectors, "weight_decay": 0.0},
    ]
