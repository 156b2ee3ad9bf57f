"""What stands between logits and a draw: repetition penalty, temperature, and the filters top-k, top-p and min-p."""

import math
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature): a low temperature sharpens the distribution, a high one flattens it.

    logits: [..., vocab], any float dtype; minus infinity is a token that can't be chosen. temperature: 0 or more.
    Returns the same shape in float64. Both ends are the limits: 0 gives everything to the largest logit (of equals the
    first), math.inf the same to every token that can be chosen. Raises ValueError for any other temperature. The logits
    are not looked at: a row with nan in it, or with nothing that can be chosen, has no distribution (`sample` refuses).

    >>> probabilities(torch.tensor([0.6931472, 0.0]), temperature=0.5)  # e ** (ln(2) / 0.5) = 4, against 1
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 or more, not {temperature!r}")
    # exercise 9.1: the two ends by themselves; in between, in float64, divide and take the softmax
    #   subtracting the largest logit before dividing changes nothing, except that a tiny temperature can't overflow
    logits = logits.double()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    if temperature == math.inf:
        possible = (logits > -math.inf).double()
        return possible / possible.sum(dim=-1, keepdim=True)
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)
    # end


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Leave the k largest logits as they are; all others become minus infinity (Fan et al. 2018, section 5.4).

    logits: [..., vocab], left as it was. Returns the same shape and dtype, with exactly k tokens that can be chosen, of
    equals any; a k of 0, or of the whole vocabulary or more, leaves them all. Raises ValueError for any other k.

    >>> top_k_filter(torch.tensor([1.0, 4.0, 3.0, 2.0]), k=2)
    tensor([-inf, 4., 3., -inf])
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise ValueError(f"k must be a whole number, 0 or more, not {k!r}")
    # exercise 9.2: start from minus infinity everywhere, and put the k largest back in their places
    if k == 0 or k >= logits.shape[-1]:
        return logits
    values, ids = logits.topk(k, dim=-1)  # [..., k]
    return torch.full_like(logits, -math.inf).scatter_(-1, ids, values)
    # end


def top_p_filter(probs: Tensor, p: float) -> Tensor:
    """Keep the smallest set of tokens with mass >= p, at least one, and rescale it to 1 (Holtzman et al. 2020, 3.1).

    probs: [..., vocab], left as it was; 0 <= p <= 1. Returns the same shape and dtype, 0 for what was dropped. Of equal
    tokens the first stays.

    >>> top_p_filter(torch.tensor([0.5, 0.125, 0.25, 0.125]), p=0.7)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be between 0 and 1, not {p!r}")
    # exercise 9.3: sort, add up from the largest, drop what comes after the mass is enough, put back, rescale
    #   the token that reaches p stays; p = 1 keeps everything, whatever rounding makes of the sum
    if p == 1:
        return probs / probs.sum(dim=-1, keepdim=True)
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    enough = ordered.cumsum(dim=-1) >= p  # [..., vocab]: the mass up to and with this token
    dropped = enough.roll(1, dims=-1)  # so the tokens after it go, and it stays
    dropped[..., 0] = False
    kept = torch.zeros_like(probs).scatter_(-1, ids, ordered.masked_fill(dropped, 0.0))
    return kept / kept.sum(dim=-1, keepdim=True)
    # end


def min_p_filter(probs: Tensor, min_p: float) -> Tensor:
    """Keep the tokens at least min_p times as likely as the likeliest, and rescale them to 1 (Nguyen et al. 2024, 3).

    probs: [..., vocab], left as it was; 0 <= min_p <= 1. Returns the same shape and dtype, 0 for what was dropped.

    >>> min_p_filter(torch.tensor([0.5, 0.125, 0.25, 0.125]), min_p=0.5)  # 0.25 is just enough
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, not {min_p!r}")
    # exercise 9.4: compare each token with min_p times the row's largest, zero what is below, rescale
    kept = probs.masked_fill(probs < min_p * probs.amax(dim=-1, keepdim=True), 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)
    # end


def apply_repetition_penalty(logits: Tensor, token_ids: Sequence[int], penalty: float) -> Tensor:
    """Make the tokens that have been there less likely, once each, however often they were (Keskar et al. 2019, 4.1).

    logits: [vocab], left as it was; token_ids: the prompt and the answer so far. A penalty above 1 divides a positive
    logit and multiplies one that isn't, so that both get smaller (the paper divides all; every library has mended
    that); below 1 it favours what was there. Returns [vocab] in the same dtype (float16 ends at 65,504: `sample` widens
    it before). Raises ValueError for a penalty that isn't a finite number above 0, and for ids outside the vocabulary.

    >>> apply_repetition_penalty(torch.tensor([2.0, -1.0, 3.0, 3.0]), [0, 1, 0, 2], penalty=2.0)
    tensor([ 1.0000, -2.0000,  1.5000,  3.0000])
    """
    if not 0 < penalty < math.inf:
        raise ValueError(f"the repetition penalty must be a finite number above 0, not {penalty!r}")
    seen = _as_tensor(token_ids, logits)
    # exercise 9.5: the logits of the tokens that were there, divided or multiplied by sign, in a copy
    #   `seen` is token_ids as a tensor [n], repeats and all: `logits[seen]` reads, and `scatter` writes, in one go
    there = logits[seen]  # [n]
    return logits.scatter(-1, seen, torch.where(there > 0, there / penalty, there * penalty))
    # end


def _as_tensor(token_ids: Sequence[int], logits: Tensor) -> Tensor:
    """Token ids as a tensor [n], beside the logits. An array on the way makes it ten times as fast: it's done for every
    token, over all that came before."""
    try:
        ids = torch.from_numpy(np.array(array("q", token_ids)))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"token ids must be whole numbers: {error}") from None
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(logits):
        raise ValueError(f"token ids must be from 0 to {len(logits) - 1}, not {int(ids.min())} to {int(ids.max())}")
    return ids.to(logits.device)
