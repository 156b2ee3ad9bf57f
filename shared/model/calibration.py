"""Calibration: what activations look like on real text, and SmoothQuant, which moves their outliers into the weights.

Weights can be looked at beforehand; activations depend on the text. So a few hundred tokens go through the model, and
an observer at each product keeps what is needed of what it sees.
"""

import copy
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from shared.measure.memory import free_unused_memory
from shared.model.linear import Linear, linear
from shared.model.transformer import Layer, RMSNorm, Transformer


def calibration_ids(encode: Callable[[str], Sequence[int]], n: int = 512) -> Tensor:
    """Some typical text to calibrate on, which every Python has with it: its modules' own words. Returns [1, n] ids."""
    modules = "argparse", "bisect", "decimal", "fractions", "json", "logging", "pathlib", "random", "re", "textwrap"
    text = "\n\n".join(importlib.import_module(name).__doc__ or "" for name in modules)
    ids = list(encode(text))[:n]
    return torch.tensor([(ids * -(-n // len(ids)))[:n]])  # from the start again where Python was stripped of its texts


class Observer(Protocol):
    """Sees the inputs of one product, batch after batch."""

    def update(self, x: Tensor) -> None:
        """x: [tokens, channels], the inputs of one call of the product."""


Seen = TypeVar("Seen", bound=Observer)


class ChannelMax:
    """The largest |x| of every channel: what SmoothQuant needs. `value`: [channels]."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def update(self, x: Tensor) -> None:
        """x: [tokens, channels]. `value` grows to hold the largest of each channel."""
        largest = x.abs().amax(dim=0)
        self.value = largest if self.value is None else torch.maximum(self.value, largest)


class MinMax:
    """The smallest and the largest number of all: a range that nothing falls out of."""

    def __init__(self) -> None:
        self.low, self.high = float("inf"), float("-inf")

    def update(self, x: Tensor) -> None:
        """x: any shape. Widens `low` and `high`."""
        low, high = x.aminmax()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))


class Percentile:
    """A range that all but the most extreme numbers fall into: the mean of what `clip_value` says of each batch."""

    def __init__(self, percent: float = 99.9) -> None:
        self.percent, self._sum, self._n = percent, 0.0, 0

    def update(self, x: Tensor) -> None:
        """x: any shape, one batch. Each batch counts alike, however large."""
        self._sum, self._n = self._sum + clip_value(x, self.percent), self._n + 1

    @property
    def value(self) -> float:
        """The range's end, symmetrical about 0; 0.0 before the first batch."""
        return self._sum / max(self._n, 1)


def clip_value(x: Tensor, percent: float) -> float:
    """The smallest number that at least `percent` % of |x| don't exceed: clip there, and the few outliers saturate.

    x: any shape, not empty; percent: above 0, at most 100. 100 gives the largest |x|. It is one of the |x| itself,
    not a number between two of them.

    >>> clip_value(torch.tensor([-5.0, 1.0, 2.0, -3.0]), percent=75)
    3.0
    """
    if not 0 < percent <= 100 or x.numel() == 0:
        raise ValueError(f"percent must be above 0 and at most 100, not {percent}, and x must not be empty")
    # exercise 8.7: of the n absolute values, the k-th smallest, where k is percent of n, rounded up
    #   torch.kthvalue counts from 1; take 1e-9 off before math.ceil, for 99.9 / 100 * 1000 is 999.0000000000001
    k = max(1, math.ceil(percent * x.numel() / 100 - 1e-9))
    return float(x.abs().flatten().kthvalue(k).values)
    # end


class Watched(nn.Module):
    """A weight that multiplies as ever and shows its observer what it is multiplied with.

    The head only looks: nobody reads these logits, and for 512 tokens they'd be as large as its weight.
    """

    def __init__(self, weight: Tensor, observer: Observer, is_head: bool) -> None:
        super().__init__()
        self.weight, self.observer, self.is_head = weight, observer, is_head

    def linear(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns the product [..., out]; for the head, x itself."""
        self.observer.update(x.detach().flatten(0, -2))  # [tokens, channels]
        return x if self.is_head else linear(x, self.weight)

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., in]. A look-up multiplies nothing, so there is nothing to observe."""
        return self.weight[ids]


@torch.inference_mode()
def watch(model: Transformer, ids: Tensor, make_observer: Callable[[], Seen]) -> dict[str, Seen]:
    """Run the model on ids [batch, length] and observe the inputs of every product, by its name in the model.

    A tied head is called "model.embed_tokens". The model stays as it is: a copy is watched that shares its weights.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    watched = copy.deepcopy(model, memo=dict(shared))
    observers: dict[str, Seen] = {}
    for name, module in watched.named_modules():
        is_head = module is (watched.lm_head or watched.model.embed_tokens)
        if isinstance(module, Linear) or is_head:
            observers[name] = make_observer()
            weight = module.weight
            del module.weight
            module.weight = Watched(weight, observers[name], is_head)
    for layer in watched.model.layers:
        layer.register_forward_hook(lambda *_: free_unused_memory())  # or freed activations pile up, layer by layer
    for batch in ids:  # row by row, for less memory
        watched(batch[None])
    return observers


def smooth_scales(activation_max: Tensor, weight_max: Tensor, alpha: float = 0.5) -> Tensor:
    """By how much each channel of the activations is divided, and its column of the weights multiplied.

    activation_max, weight_max: [channels], the largest |value| of each channel, of the activations and of the weights'
    column. Returns activation_max**alpha / weight_max**(1 - alpha), [channels] (SmoothQuant, Xiao et al. 2023,
    equation 4): alpha = 1 moves all the difficulty into the weights, 0.5 shares it out, so that both maxima become the
    root of their product. A channel that is zero in either counts as 1e-5 there; no scale is below 1e-5. What came in
    stays as it is.

    >>> smooth_scales(torch.tensor([100.0, 1.0]), torch.tensor([0.25, 0.25]))
    tensor([20.,  2.])
    """
    # exercise 8.8: the equation, after keeping all maxima (and in the end the scales) at 1e-5 or more
    activation_max, weight_max = activation_max.clamp(min=1e-5), weight_max.clamp(min=1e-5)
    return (activation_max**alpha / weight_max ** (1 - alpha)).clamp(min=1e-5)
    # end


@torch.no_grad()
def smooth(model: Transformer, seen: dict[str, ChannelMax], alpha: float = 0.5) -> Transformer:
    """A new model that computes the same with tamer activations. seen: what `watch(model, ids, ChannelMax)` returned.

    Dividing costs nothing at run time, for it is folded into whatever makes the activations: see `smooth_layer`, and
    the last norm before a head of its own (a tied head is the embedding too, whose rows must stay as they are: see
    Int8Weight).
    """
    smoothed = copy.deepcopy(model)
    for i, layer in enumerate(smoothed.model.layers):
        assert isinstance(layer, Layer)
        smooth_layer(layer, seen, f"model.layers.{i}", alpha)
    if smoothed.lm_head is not None:
        scales = scales_for(seen["lm_head"], smoothed.lm_head.weight, alpha=alpha)
        _migrate(scales, smoothed.model.norm, smoothed.lm_head)
    return smoothed


def smooth_layer(layer: Layer, seen: dict[str, ChannelMax], name: str, alpha: float = 0.5) -> None:
    """Change one layer, called `name` in its model, so that it computes the same with tamer activations.

    The norms' weights are divided before q, k, v and before gate, up; the rows of `up` before `down`; the rows of `v`
    before `o`.
    """
    mixer, mlp = layer.self_attn, layer.mlp

    def scales(of: str, *users: Linear) -> Tensor:
        return scales_for(seen[f"{name}.{of}"], *(user.weight for user in users), alpha=alpha)

    _migrate(scales("self_attn.q_proj", mixer.q_proj, mixer.k_proj, mixer.v_proj),
             layer.input_layernorm, mixer.q_proj, mixer.k_proj, mixer.v_proj)  # fmt: skip
    _migrate(scales("mlp.gate_proj", mlp.gate_proj, mlp.up_proj),
             layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)  # fmt: skip
    _migrate(scales("mlp.down_proj", mlp.down_proj), mlp.up_proj, mlp.down_proj)
    # A key-value head serves a group of query heads, so these must agree on its scales: the largest wins.
    kv_heads = len(mixer.v_proj.weight) // mixer.head_dim
    per_head = scales("self_attn.o_proj", mixer.o_proj).view(kv_heads, -1, mixer.head_dim)  # [kv_heads, group, dim]
    per_head[:] = per_head.amax(dim=1, keepdim=True)
    mixer.v_proj.weight.div_(per_head[:, 0].reshape(-1, 1))
    if mixer.v_proj.bias is not None:
        mixer.v_proj.bias.div_(per_head[:, 0].flatten())
    mixer.o_proj.weight.mul_(per_head.flatten())


def scales_for(seen: ChannelMax, *weights: Tensor, alpha: float = 0.5) -> Tensor:
    """The scales of one product's channels: of all the weights [out, channels] that see these activations."""
    if seen.value is None:
        raise ValueError("nothing was observed; calibrate with at least one token")
    ends = [end for weight in weights for end in weight.aminmax(dim=0)]  # a table's abs() would be as large as it is
    columns = torch.stack(ends).abs().amax(dim=0)
    return smooth_scales(seen.value, columns, alpha)  # [channels]


def _migrate(scales: Tensor, maker: Linear | RMSNorm, *users: Linear) -> None:
    """Divide what `maker` makes (a norm's weights [channels], a Linear's rows) and multiply the users' columns."""
    maker.weight.div_(scales if maker.weight.dim() == 1 else scales[:, None])
    for user in users:
        user.weight.mul_(scales)
