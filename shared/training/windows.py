"""From documents to training batches: one long stream of ids, cut into windows, in an order that can be resumed.

Nothing here has a position that could be lost. Which windows step 1234 reads is a function of the seed and of 1234.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


def token_stream(documents: Iterable[str], encode: Callable[[str], Sequence[int]], end_id: int) -> Tensor:
    """All documents' ids behind one another, each followed by end_id. [n] int32, half the memory of int64.

    >>> token_stream(["ab", "c"], lambda text: list(text.encode()), end_id=0)
    tensor([97, 98,  0, 99,  0], dtype=torch.int32)
    """
    parts = [np.array([*encode(document), end_id], dtype=np.int32) for document in documents]
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int32)


def count_windows(n_tokens: int, length: int) -> int:
    """How many windows a stream has. The last token is only ever a label, so it takes one more than a multiple.

    >>> count_windows(7, length=3), count_windows(6, length=3)
    (2, 1)
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    return max(0, (n_tokens - 1) // length)


def windows(stream: Tensor, length: int, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the windows with these numbers: at each place, the label is the token that comes next.

    stream: [n] ids; window i begins at token i * length. This is the one place in the book where labels are shifted.
    Returns inputs and labels, both [len(indices), length] int64.

    >>> windows(torch.tensor([10, 11, 12, 13, 14, 15, 16]), length=3, indices=[1, 0])
    (tensor([[13, 14, 15],
            [10, 11, 12]]), tensor([[14, 15, 16],
            [11, 12, 13]]))
    """
    total = count_windows(len(stream), length)
    if wrong := [i for i in indices if not 0 <= i < total]:
        raise IndexError(f"window {wrong[0]} doesn't exist: {len(stream)} tokens make {total} windows of {length}")
    # exercise 6.2: cut length + 1 tokens for each window, then take all but the last and all but the first
    cut = torch.stack([stream[i * length : i * length + length + 1] for i in indices]).long()  # [batch, length + 1]
    return cut[:, :-1], cut[:, 1:]
    # end


def epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    """The order of n windows in one pass over the data: a random permutation that depends on (seed, epoch) alone.

    Another epoch has another order, and so has another seed; the same pair gives the same order in every process and
    on every machine, whatever else has drawn random numbers meanwhile.
    """
    # exercise 6.3: a permutation from a generator of its own, seeded with both numbers; return a list (.tolist())
    #   np.random.default_rng takes a list of numbers as its seed, and mixes them well
    return np.random.default_rng([seed, epoch]).permutation(n).tolist()
    # end


def windows_of_step(step: int, batch_size: int, n_windows: int, seed: int) -> list[int]:
    """Which windows step number `step` (from 0) trains on: the next batch_size of its epoch's order.

    An epoch has n_windows // batch_size steps; the few windows left over are others in every epoch.
    Raises ValueError when there are fewer windows than a batch takes.
    """
    per_epoch = n_windows // batch_size if batch_size > 0 else 0
    if per_epoch == 0:
        raise ValueError(f"a batch of {batch_size} windows can't be taken from {n_windows}; use more text, a smaller "
                         "batch, or shorter windows")  # fmt: skip
    epoch, position = divmod(step, per_epoch)
    return epoch_order(n_windows, seed, epoch)[position * batch_size : (position + 1) * batch_size]
