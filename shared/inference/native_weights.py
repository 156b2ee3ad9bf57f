"""A model whose products run on the fastest kernels there are: our own for a row or two, oneDNN's for more.

torch's product of one row reads a weight at a third of the speed that the memory has. With more rows it puts the weight
into another order first, every time; oneDNN can keep it in that order.
"""

import copy
import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.model.int8 import Int8Weight, int_matmul
from shared.model.linear import Embedding, Linear
from shared.model.transformer import Transformer

FEW_ROWS = 2  # up to here our kernel wins in float32 …
FEW_ROWS_INT8 = 8  # … and up to here in int8
USUAL_ROWS = 64  # oneDNN chooses an order for this many rows, and takes any number
SLICE = 2048  # rows of the vocabulary at a time: logits of 64 rows are then half a megabyte


class NativeWeight(nn.Module):
    """A float32 weight [out, in] that multiplies itself. It's kept twice: as it was, for few rows, and packed.

    The packed one is a copy: who changes the weight's numbers must wrap it anew.
    """

    def __init__(self, weight: Tensor, kernels: ctypes.CDLL, pack: bool = True) -> None:
        super().__init__()
        if weight.dtype != torch.float32 or weight.device.type != "cpu":
            raise ValueError(f"a float32 weight on the CPU is wanted, not {weight.dtype} on {weight.device}")
        self.weight, self.kernels = weight.detach().contiguous(), kernels
        self.n_out, self.n_in = weight.shape
        pack = pack and bool(torch.backends.mkldnn.is_available())
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, USUAL_ROWS) if pack else None

    def linear(self, x: Tensor) -> Tensor:
        """x: float32 [..., in]. Returns [..., out]. Raises ValueError for another dtype or size."""
        n_out, n_in = self.n_out, self.n_in
        if x.dtype is not torch.float32 or x.shape[-1] != n_in:
            raise refusal(x, n_in)
        rows = x.numel() // n_in
        if 0 < rows <= FEW_ROWS:
            x = x.contiguous()
            out = x.new_empty(*x.shape[:-1], n_out)
            arrays = (x, self.weight, out)
            self.kernels.linear(*(array.data_ptr() for array in arrays), rows, n_out, n_in, torch.get_num_threads())
            return out
        if self.packed is None or rows == 0:
            return F.linear(x, self.weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [None], "")
        return product

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., in]: the weight as an embedding."""
        return F.embedding(ids, self.weight)

    def sliced(self) -> list["NativeWeight"]:
        """The same weight in pieces of SLICE rows, each packed by itself: see NativeHead."""
        return [NativeWeight(part, self.kernels) for part in torch.split(self.weight, SLICE)]


class NativeInt8Weight(nn.Module):
    """An int8 weight whose activations are quantised, and whose products are scaled back, in one pass each."""

    def __init__(self, weight: Int8Weight, kernels: ctypes.CDLL, rows: slice = slice(None)) -> None:
        super().__init__()
        self.levels, self.scale = weight.levels[rows], weight.scale[rows]
        self.n_out, self.n_in = self.levels.shape
        self.whole, self.kernels = weight, kernels
        self.sums = self.levels.sum(dim=1, dtype=torch.int32)  # [out]

    def linear(self, x: Tensor) -> Tensor:
        """x: float32 [..., in]. Returns [..., out]: int8_linear's numbers, and NaN where a row of x isn't finite.

        Raises ValueError for another dtype or size.
        """
        n_out, n_in = self.n_out, self.n_in
        if x.dtype is not torch.float32 or x.shape[-1] != n_in:
            raise refusal(x, n_in)
        threads, kernels = torch.get_num_threads(), self.kernels
        x = x.contiguous()
        rows = x.numel() // n_in
        out = x.new_empty(*x.shape[:-1], n_out)
        quantized, step = torch.empty(rows, n_in, dtype=torch.int8), torch.empty(rows)
        few = rows <= FEW_ROWS_INT8
        kernels.quantize_rows(x.data_ptr(), quantized.data_ptr(), step.data_ptr(), rows, n_in, 128 * few, threads)
        if few:
            arrays = [quantized, step, self.levels, self.scale, self.sums, out]
            kernels.linear_int8(*(array.data_ptr() for array in arrays), rows, n_out, n_in, threads)
        else:
            arrays = [int_matmul(quantized, self.levels), self.scale, step, out]
            kernels.scale_back(*(array.data_ptr() for array in arrays), rows, n_out, threads)
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., in]: the weight as an embedding, in float32."""
        return self.whole.rows(ids)

    def sliced(self) -> list["NativeInt8Weight"]:
        """The same weight in pieces of SLICE rows, which share its levels: see NativeHead."""
        starts = range(0, len(self.levels), SLICE)
        return [NativeInt8Weight(self.whole, self.kernels, slice(start, start + SLICE)) for start in starts]


class NativeHead(nn.Module):
    """A model's largest weight, [vocab, dim], multiplied a slice at a time, into memory that is kept.

    The logits of 64 rows are 12 MB, and fresh memory is handed over by the system page by page. So a result is good
    until the next call.
    """

    def __init__(self, weight: NativeWeight | NativeInt8Weight, vocab_size: int) -> None:
        super().__init__()
        self.whole, self.vocab_size = weight, vocab_size
        self.parts: Sequence[NativeWeight | NativeInt8Weight] = weight.sliced()
        self._room = torch.empty(0)

    def linear(self, x: Tensor) -> Tensor:
        """x: [..., dim]. Returns [..., vocab]."""
        rows = x.numel() // x.shape[-1]
        if rows <= FEW_ROWS:
            return self.whole.linear(x)
        if self._room.numel() < rows * self.vocab_size:
            self._room = x.new_empty(rows * self.vocab_size)
        out = self._room[: rows * self.vocab_size].view(*x.shape[:-1], self.vocab_size)
        for part, into in zip(self.parts, torch.split(out, SLICE, dim=-1), strict=True):
            into.copy_(part.linear(x))
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [...]. Returns [..., dim]: a tied head is the embedding, too."""
        return self.whole.rows(ids)


def refusal(x: Tensor, n_in: int) -> ValueError:
    """The kernels would read whatever they are given as float32 of the right size."""
    return ValueError(f"x: float32 [..., {n_in}] is wanted, not {x.dtype} {list(x.shape)}")


def with_native_weights(model: Transformer, kernels: ctypes.CDLL) -> Transformer:
    """The model with its weights wrapped, for one engine; what it was made from is shared, and stays as it is.

    Its numbers must not change afterwards: some are packed, and a copy.
    """
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    shared |= {id(module): module for module in model.modules() if isinstance(module, Int8Weight)}
    native = copy.deepcopy(model, memo=shared)
    head = (native.lm_head or native.model.embed_tokens).weight
    wrapped: dict[int, nn.Module] = {}  # a tied table stays one
    for module in list(native.modules()):
        if not isinstance(module, Linear | Embedding):
            continue
        weight: Tensor | nn.Module = module.weight
        if id(weight) not in wrapped:
            if isinstance(weight, Int8Weight):
                new: NativeWeight | NativeInt8Weight = NativeInt8Weight(weight, kernels)
            elif isinstance(weight, Tensor) and weight.dtype == torch.float32 and weight.device.type == "cpu":
                new = NativeWeight(weight, kernels, pack=weight is not head and isinstance(module, Linear))
            else:
                continue
            wrapped[id(weight)] = NativeHead(new, model.config.vocab_size) if weight is head else new
        del module.weight
        module.weight = wrapped[id(weight)]  # type: ignore[assignment]  # another kind of weight from here on
    return native
