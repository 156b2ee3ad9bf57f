# Yours to finish. Generated from shared/model/dequantize.py (version e12ef9a2dcae).
"""GGUF's quantised weights, turned back into float32 by hand: the formats that the book's model is stored in.

llama.cpp quantises 32 neighbouring weights of a row together. Such a block holds a scale (and in some formats an
offset) in float16 and 32 levels of a few bits each. Blocks are independent, so NumPy does all of a tensor's at once.
Source: ggml-quants.c in llama.cpp, `dequantize_row_q4_1` and its neighbours.
"""

from chapters import Todo
from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType, quants

Array = np.ndarray
BLOCK = 32  # weights


def nibbles(packed: Array) -> Array:
    """Two levels of four bits in each byte: the low halves are levels 0 to 15 of a block, the high ones 16 to 31.

    packed: uint8 [blocks, 16]. Returns uint8 [blocks, 32], each 0 to 15. (Half a byte is called a nibble.)
    """
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def dequantize_q4_1(blocks: Array) -> Array:
    """Blocks of 20 bytes: a scale and an offset, float16 each, and 16 bytes with two levels in each.

    blocks: uint8 [n, 20]. Returns float32 [n, 32]: scale * level + offset, computed in float32. The low four bits of
    byte i are level i, the high four bits level i + 16 (not 2i and 2i + 1). `nibbles` unpacks them so.
    """
    # exercise 8.3: cut the four parts out of each block, and put scale * level + offset together
    #   .view(np.float16) reads two bytes as one number, if they lie side by side: np.ascontiguousarray sees to that
    raise Todo("8.3")
    # end


def dequantize_q4_0(blocks: Array) -> Array:
    """Blocks of 18 bytes: a scale, and levels from -8 to 7, stored with 8 added.  uint8 [n, 18] -> float32 [n, 32]."""
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)  # [n, 1]
    return scale * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def dequantize_q8_0(blocks: Array) -> Array:
    """Blocks of 34 bytes: a scale, and levels from -127 to 127 in a byte each.  uint8 [n, 34] -> float32 [n, 32]."""
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)  # [n, 1]
    return scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


BY_HAND: dict[GGMLQuantizationType, tuple[int, Callable[[Array], Array]]] = {  # bytes in a block, and what reads it
    GGMLQuantizationType.Q4_0: (18, dequantize_q4_0),
    GGMLQuantizationType.Q4_1: (20, dequantize_q4_1),
    GGMLQuantizationType.Q8_0: (34, dequantize_q8_0),
}


def dequantize(data: Array, kind: GGMLQuantizationType) -> Array:
    """A GGUF tensor as float32. data: uint8 [rows, bytes of a row], or the floats themselves for an unquantised one.

    Returns float32 [rows, columns]. Formats that aren't in BY_HAND are left to the gguf package.
    """
    if kind not in BY_HAND:
        return quants.dequantize(data, kind)
    size, read = BY_HAND[kind]
    return read(data.reshape(-1, size)).reshape(*data.shape[:-1], data.shape[-1] // size * BLOCK)
