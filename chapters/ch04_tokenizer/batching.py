# Yours to finish. Generated from shared/data/batching.py (version b48bf420fef9).
"""Sequences of different lengths into rectangular batches, and the results back into the order of the questions."""

from chapters import Todo
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor


def length_buckets(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Batches of neighbours in length: indices of the sequences, shortest first; equally long ones keep their order.

    Each batch has batch_size indices, the last one perhaps fewer.  Raises ValueError for a batch_size below 1.

    >>> length_buckets([9, 2, 8, 1, 3], batch_size=2)
    [[3, 1], [4, 2], [0]]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    # exercise 4.7: sort the indices, not the lengths, and cut the result into batches
    raise Todo("4.7")
    # end


def restore(batches: Iterable[Sequence[int]], results: Iterable[Iterable[Any]]) -> list[Any]:
    """The results in the order of the sequences: the inverse of what length_buckets did.

    batches: the indices, as length_buckets gave them; results: for each batch, a result for each of its sequences.
    Raises ValueError when there are more or fewer results than indices.

    >>> restore([[3, 1], [4, 2], [0]], [["D", "B"], ["E", "C"], ["A"]])
    ['A', 'B', 'C', 'D', 'E']
    """
    order, flat = list(chain.from_iterable(batches)), list(chain.from_iterable(results))
    if len(order) != len(flat):
        raise ValueError(f"{len(flat)} results for {len(order)} sequences; there must be one for each")
    return [result for _, result in sorted(zip(order, flat, strict=True), key=lambda pair: pair[0])]


def pad(batch: Sequence[Sequence[int]], pad_id: int, side: Literal["right", "left"] = "right") -> tuple[Tensor, Tensor]:
    """One rectangle of ids, and a mask that says which of them are real.

    batch: sequences of ids; side: where the padding goes.  Returns ids [batch, longest] int64, filled up with pad_id,
    and mask [batch, longest] bool, True = real.  The mask comes from the lengths: pad_id may well be a real token too.

    >>> pad([[5, 6, 7], [8]], pad_id=0)
    (tensor([[5, 6, 7],
            [8, 0, 0]]), tensor([[ True,  True,  True],
            [ True, False, False]]))
    """
    if not batch:
        raise ValueError("the batch is empty; there is nothing to pad")
    if side not in ("right", "left"):
        raise ValueError(f'side must be "right" or "left", not {side!r}')
    # exercise 4.8: start from a rectangle of padding and a mask of False, then write each sequence into its row
    raise Todo("4.8")
    # end


def padded_size(lengths: Sequence[int], batches: Iterable[Sequence[int]]) -> int:
    """How many tokens the model computes for these batches, padding included: rows times the longest row, each batch.

    >>> padded_size([9, 2, 8, 1, 3], [[3, 1], [4, 2], [0]])  # 2 * 2 + 2 * 8 + 1 * 9
    29
    """
    return sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
