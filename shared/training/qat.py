"""Quantisation-aware training: the network trains with the rounding it will have to live with.

Rounding has a slope of zero nearly everywhere, so no gradient would come through. The straight-through estimator
pretends that it isn't there on the way back (Bengio, Leonard & Courville 2013, section 5).
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.quantization import fake_quantize


def straight_through(x: Tensor, quantized: Tensor) -> Tensor:
    """The value of `quantized`, with the gradient of `x`: as if nothing had been rounded. Shapes: all the same.

    >>> x = torch.tensor([0.4, 1.7], requires_grad=True)
    >>> y = straight_through(x, x.round())
    >>> (y * torch.tensor([10.0, 20.0])).sum().backward()
    >>> y.detach(), x.grad
    (tensor([0., 2.]), tensor([10., 20.]))
    """
    # exercise 8.10: x plus a difference that no gradient flows through
    return x + (quantized - x).detach()
    # end


class QATLinear(nn.Linear):
    """A linear layer that computes with its weight quantised to `bits`, a scale a row, and trains the weight itself."""

    def __init__(self, n_in: int, n_out: int, bits: int) -> None:
        super().__init__(n_in, n_out)
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns [..., out]. The gradient reaches the weight as if nothing had been rounded."""
        w = straight_through(self.weight, fake_quantize(self.weight, self.bits, per="row"))
        return F.linear(x, w, self.bias)


def classifier(sizes: tuple[int, ...], seed: int = 0) -> nn.Sequential:
    """Chapter 1's network in torch: linear layers with ReLU between them. sizes: (inputs, hidden, ..., classes)."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def rounded(model: nn.Sequential, bits: int) -> nn.Sequential:
    """Post-training quantisation: a copy whose weights are what `bits` leave of them, a scale a row."""
    result = copy.deepcopy(model)
    with torch.no_grad():
        for layer in result:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(fake_quantize(layer.weight, bits, per="row"))
    return result


def with_rounding(model: nn.Sequential, bits: int) -> nn.Sequential:
    """A copy, weights and all, whose linear layers train with the rounding: start QAT from a trained network."""
    result = copy.deepcopy(model)
    for i, layer in enumerate(result):
        if isinstance(layer, nn.Linear):
            aware = QATLinear(layer.in_features, layer.out_features, bits)
            aware.load_state_dict(layer.state_dict())
            result[i] = aware
    return result


def train_classifier(
    model: nn.Module, x: Tensor, labels: Tensor, epochs: int, lr: float = 3e-3, batch_size: int = 64, seed: int = 0
) -> list[float]:
    """Adam on the cross-entropy, with a learning rate that falls to zero. x: [n, inputs]; labels: [n], int64.

    Returns the mean loss of each epoch. The order of the examples depends on `seed` alone.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    history = []
    for _ in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(x), generator=generator).split(batch_size):
            loss = F.cross_entropy(model(x[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        schedule.step()
        history.append(total / len(x))
    return history


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The share of examples whose largest output is the label's."""
    return float((model(x).argmax(dim=1) == labels).float().mean())
