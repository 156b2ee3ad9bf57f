"""Weight-only quantisation, for GPUs: int8 or int4 in memory, turned back into the compute dtype before the product.

A decode step waits for weights to arrive from memory, so fewer bytes are a faster step, as long as turning them back is
cheaper than fetching them. Written in plain torch, it runs on every device; torch.compile fuses it into one kernel.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.linear import Embedding, Linear
from shared.model.quantization import in_groups, limit, pack_int4, quantize_symmetric, unpack_int4
from shared.model.transformer import Transformer


class GroupedWeight(nn.Module):
    """A weight [out, in] in 8 or 4 bits, with a scale for each group of a row, or for the whole row (None)."""

    levels: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bits: int, group_size: int | None = None) -> None:
        super().__init__()
        if bits not in (4, 8):
            raise ValueError(f"weights are stored in 4 or 8 bits, not {bits}")
        self.bits = bits
        grouped = in_groups(weight.detach(), group_size or weight.shape[1])  # [out, groups, size]
        levels, scale = quantize_symmetric(grouped.float(), limit(bits), dim=-1)
        levels = levels.flatten(1)  # [out, in]
        self.register_buffer("levels", pack_int4(levels) if bits == 4 else levels)
        self.register_buffer("scale", scale.to(weight.dtype))  # [out, groups, 1]

    def linear(self, x: Tensor) -> Tensor:
        """x: [..., in]. Returns [..., out] in x's dtype. The whole weight is turned back for the product."""
        return F.linear(x, self._floats(self.levels, self.scale).to(x.dtype))

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., in], in the dtype of the weight that was quantised."""
        return self._floats(self.levels[ids], self.scale[ids])

    def _floats(self, levels: Tensor, scale: Tensor) -> Tensor:
        whole = unpack_int4(levels) if self.bits == 4 else levels  # [..., in]
        return (whole.unflatten(-1, (scale.shape[-2], -1)).to(scale.dtype) * scale).flatten(-2)


def check_weights(model: Transformer) -> None:
    """Raise ValueError, naming the tensor, for a model that can't be quantised: it is already, or has nan in it."""
    if not isinstance(model.model.embed_tokens.weight, nn.Parameter):
        raise ValueError("this model is quantised already")
    for name, weight in model.named_parameters():
        if not bool(torch.stack(weight.aminmax()).isfinite().all()):  # nan is both; a mask would take memory
            raise ValueError(f"{name} holds nan or infinity, and its scale would be nan or infinite, too")


def quantize_weight_only(model: Transformer, bits: int = 4, group_size: int | None = 32) -> Transformer:
    """A new model whose weights take 8 or 4 bits and a scale a group (None: a row); norms stay as they are.

    Embedding and head always get 8 bits and a scale a row: at 4 they lose more than all other weights together.
    Any device and float dtype; the scales, and what is computed, keep the dtype. Raises ValueError for another number
    of bits, rows that aren't whole groups, weights that aren't finite, and a model that is quantised already.
    """
    check_weights(model)
    quantized = copy.deepcopy(model)
    for module in quantized.modules():
        if isinstance(module, Linear | Embedding):
            weight = module.weight
            del module.weight
            is_table = isinstance(module, Embedding) or module is quantized.lm_head
            grouped = GroupedWeight(weight, 8) if is_table else GroupedWeight(weight, bits, group_size)
            module.weight = grouped  # type: ignore[assignment]  # from here on it has another kind of weight
    return quantized
