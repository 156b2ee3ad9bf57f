# Yours to finish. Generated from shared/model/int8.py (version a8c9aca52871).
"""The int8 model: weights in eight bits, activations in eight bits row by row, products in whole numbers.

On a CPU that is less memory to read and more numbers to an instruction, hence faster. On a GPU only the weights are
quantised (weight_only.py): there the reading is what a decode step waits for.
"""

from chapters import Todo
import copy
from functools import cache

import torch
from torch import Tensor, nn

from shared.measure.memory import free_unused_memory
from shared.model.calibration import ChannelMax, scales_for, smooth_layer, watch
from shared.model.linear import Linear
from shared.model.quantization import quantize_symmetric
from shared.model.transformer import Layer, Transformer
from shared.model.weight_only import check_weights, quantize_weight_only

CALIBRATION_TOKENS = 512
ROWS_AT_ONCE = 1024  # of a weight that is quantised: temporaries are as large as these rows, not as a whole table
BAND = 4.0  # how far a tied table's columns may lie from their median, either way


def int_matmul(a: Tensor, w: Tensor) -> Tensor:
    """The product of whole numbers. a: int8 [n, in]; w: int8 [out, in]. Returns int32 [n, out].

    Exact as long as |w| <= `highest_weight()`. The one place that names torch's kernel, which is not a public one.
    """
    return torch._int_mm(a, w.t())


@cache
def highest_weight() -> int:
    """The largest weight level whose products this CPU's kernel adds up exactly: 127, or 64 on older machines.

    Without the instructions made for int8 (VNNI, since about 2019 in servers), a processor multiplies bytes in pairs
    and keeps the sum of two products in 16 bits, where it saturates at 32,767. The kernel shifts activations to
    0..255, and 2 * 255 * 127 is too much while 2 * 255 * 64 is not. So we try it and see.
    """
    most = torch.full((8, 64), 127, dtype=torch.int8)
    return 127 if bool((int_matmul(most, most) == 64 * 127 * 127).all()) else 64


def nearest(x: Tensor) -> Tensor:
    """The nearest whole numbers, halves to the even one, like x.round(). x: float32, |x| below 2**22.

    A float32 of this size has no bits for fractions, so the addition rounds. torch.round gives even a small tensor to
    all threads, and waking them takes longer than the rounding.
    """
    return (x + 1.5 * 2**23).sub_(1.5 * 2**23)


def int8_linear(x: Tensor, levels: Tensor, scale: Tensor) -> Tensor:
    """x times a quantised weight's rows, by an integer product.

    x: [..., in], float; levels: int8 [out, in]; scale: [out], float32: the weight is levels * scale[:, None].
    Each row of x is quantised by itself, symmetrically to -127..127 (a step of its largest |value| / 127, and at least
    1e-12, or a row of zeros would be divided by zero). Returns [..., out] in x's dtype.

    >>> int8_linear(torch.tensor([[1.0, 127.0]]), torch.tensor([[2, 1]], dtype=torch.int8), torch.tensor([0.5]))
    tensor([[64.5000]])
    """
    # exercise 8.9: quantise each row, multiply by int_matmul, and scale back by the row's step and the channel's scale
    #   int_matmul takes two dimensions, so flatten the others first; compute in float32; nearest() is a faster round()
    raise Todo("8.9")
    # end


class Int8Weight(nn.Module):
    """A weight [out, in] as int8 levels and one float32 scale for each row. It multiplies itself, and hands out rows.

    One table serves as embedding and head, for the kernel takes the levels as they are: packed kernels are faster and
    keep a copy, which a tied model would pay for twice.
    """

    levels: Tensor
    scale: Tensor
    columns: Tensor | None

    def __init__(self, weight: Tensor, columns: Tensor | None = None) -> None:
        """columns: [in], when x comes divided by it (SmoothQuant): the levels are of weight * columns."""
        super().__init__()
        weight = weight.detach()
        levels, scale = torch.empty_like(weight, dtype=torch.int8), torch.empty(len(weight))
        for i in range(0, len(weight), ROWS_AT_ONCE):  # each row has its own scale, so the cuts don't matter
            rows = weight[i : i + ROWS_AT_ONCE] if columns is None else weight[i : i + ROWS_AT_ONCE] * columns
            whole, step = quantize_symmetric(rows, highest_weight(), dim=-1)
            levels[i : i + ROWS_AT_ONCE], scale[i : i + ROWS_AT_ONCE] = whole, step[:, 0]
        self.register_buffer("levels", levels)  # [out, in]
        self.register_buffer("scale", scale)  # [out]
        self.register_buffer("columns", columns)

    def linear(self, x: Tensor) -> Tensor:
        """x: [..., in], already divided by `columns` where there are any. Returns [..., out] in x's dtype."""
        return int8_linear(x, self.levels, self.scale)

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., in], float32: rows of the weight itself, without `columns`."""
        rows = self.levels[ids].float() * self.scale[ids][..., None]
        return rows if self.columns is None else rows / self.columns


@torch.no_grad()
def quantize_int8(model: Transformer, calibration: Tensor | None = None) -> Transformer:
    """A new model with int8 weights, the fast path of the device that `model` is on. The norms stay as they are.

    calibration: ids [batch, length] of some typical text, to measure activations on; what goes beyond the context is
    left out. Without it random ids serve, and hardly worse: the outliers sit in the same channels whatever the text.
    One layer is copied at a time, so it takes little more memory than both models. The int8 model is this process's
    own: unlike float weights that are mapped from their file, it isn't shared with other processes.
    Raises ValueError for a model that is quantised already, for weights that aren't finite, and on the CPU for weights
    that aren't float32.
    """
    check_weights(model)
    devices = {weight.device.type for weight in model.parameters()}
    if devices == {"cuda"}:
        return quantize_weight_only(model, bits=8, group_size=None)
    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ValueError(
                f"int8 is made from float32 weights on the CPU or from any on CUDA, and {name} is {weight.dtype} on "
                f"{weight.device}; load the model with load_model(path) first"
            )
    if calibration is None:
        generator = torch.Generator().manual_seed(0)
        calibration = torch.randint(model.config.vocab_size, (1, CALIBRATION_TOKENS), generator=generator)
    seen = watch(model, calibration[:, : model.config.max_position_embeddings], ChannelMax)
    quantized = copy.deepcopy(model, memo={id(weight): weight for weight in model.parameters()})  # shared for now
    for i, shared in enumerate(model.model.layers):
        free_unused_memory()  # what was made for the layer before
        layer = copy.deepcopy(shared)
        assert isinstance(layer, Layer)
        smooth_layer(layer, seen, f"model.layers.{i}")
        for module in layer.modules():
            if isinstance(module, Linear):
                _replace_weight(module, Int8Weight(module.weight))
        quantized.model.layers[i] = layer
    free_unused_memory()
    # The last norm is divided, and the head's columns multiplied. A head of its own never hands out rows.
    table, head, norm = quantized.model.embed_tokens, quantized.lm_head, quantized.model.norm
    seen_by_head = seen["model.embed_tokens" if head is None else "lm_head"]
    columns = scales_for(seen_by_head, table.weight if head is None else head.weight)  # [dim]
    if head is None:
        columns = tame(columns, seen_by_head)
    else:
        _replace_weight(head, Int8Weight(head.weight, columns))
    norm.weight = nn.Parameter(norm.weight / columns)
    _replace_weight(table, Int8Weight(table.weight, columns if head is None else None))
    free_unused_memory()
    return quantized.requires_grad_(False)


def tame(columns: Tensor, seen: ChannelMax) -> Tensor:
    """Keep a tied table's columns [dim] near their median; channels in which nothing was seen get it itself.

    The embedding divides by them, and with it the rounding error: in a channel that the norm switches off (its maximum
    counts as 1e-5) the column would be hundreds of times too small, and that error the largest number of the row.
    """
    assert seen.value is not None
    alive = seen.value > 0
    middle = columns[alive].median() if bool(alive.any()) else columns.new_ones(())
    return torch.where(alive, columns, middle).clamp(middle / BAND, middle * BAND)


def _replace_weight(module: nn.Module, weight: Int8Weight) -> None:
    del module.weight  # a parameter; a module takes its name
    module.weight = weight


def memory_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, quantised weights and scales among them; what is shared counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())
