"""From the logits of one position to the next token."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen, and when to stop.

    max_tokens: at most so many new tokens. temperature: 0 is greedy. top_k: only the k likeliest tokens, 0 is all.
    top_p: only the smallest set of tokens with this much probability. seed: with the position, decides every draw.
    stop: texts that end the answer and are not part of it. ignore_eos: go on after an end-of-sequence token.
    Raises ValueError that names the field.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("top_k", 0), ("seed", None)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
                bound = "" if least is None else f" of at least {least}"
                raise ValueError(f"{name} must be a whole number{bound}, not {value!r}")
        for name, most in (("temperature", math.inf), ("top_p", 1)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not 0 <= value <= most:
                bound = "of at least 0" if most == math.inf else f"between 0 and {most}"
                raise ValueError(f"{name} must be a finite number {bound}, not {value!r}")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop must be a tuple of texts, none of them empty, not {self.stop!r}")


def sample(logits: Tensor, params: SamplingParams, position: int) -> int:
    """Choose the token for `position`, counted from the start of the sequence.

    logits: [vocab], any float dtype. The draw depends on (seed, position) alone: not on what else runs in the batch,
    nor on whether the tokens before it were computed in one go or after a restart.
    Raises ValueError when the logits hold NaN or infinity (minus infinity is fine: a token that can't be chosen).
    """
    best, likeliest = logits.max(dim=-1)
    if not math.isfinite(best):
        raise ValueError(f"the model's logits for position {position} are not finite numbers")
    if params.temperature == 0 or params.top_k == 1:
        return int(likeliest)
    ids, probs = candidates(logits, params)
    cumulative = probs.cumsum(dim=-1)  # [n_candidates]
    draw = uniform(params.seed, position) * cumulative[-1]
    return int(ids[torch.searchsorted(cumulative, draw, right=True)])


def candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """The tokens that may be drawn at a temperature above 0, and how likely each is: temperature, top-k, then top-p.

    logits: [vocab]. Returns ids [n], ascending, and probs [n], float64, which sum to 1 (some may be 0).
    """
    logits = logits.double()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    if 0 < params.top_k < len(ids):
        ids = logits.topk(params.top_k).indices.sort().values
        logits = logits[ids]
    # Subtracting the largest first changes nothing, except that a tiny temperature can't overflow.
    probs = ((logits - logits.max()) / params.temperature).softmax(dim=-1)
    if params.top_p < 1:
        # Tokens rarer than this hold less than 1 - p together: the set is found without them, and sorting a few
        # hundred tokens instead of a whole vocabulary keeps sampling as fast as greedy.
        kept = (probs >= (1 - params.top_p) / len(ids)).nonzero().squeeze(-1)
        ids, probs = ids[kept], top_p_filter(probs[kept], params.top_p)
    return ids, probs


def top_p_filter(probs: Tensor, p: float) -> Tensor:
    """Keep the smallest set of tokens with mass >= p, at least one, and rescale it to 1 (Holtzman et al. 2020, 3.1).

    probs: [..., vocab]; 0 <= p <= 1. Returns the same shape, 0 for what was dropped. Of equal tokens the first stays.

    >>> top_p_filter(torch.tensor([0.5, 0.125, 0.25, 0.125]), p=0.7)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be between 0 and 1, not {p!r}")
    if p == 1:
        return probs / probs.sum(dim=-1, keepdim=True)
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    dropped = ordered.cumsum(dim=-1) >= p  # [..., vocab]: the mass up to and with this token is enough
    dropped = dropped.roll(1, dims=-1)  # so the tokens after it go, and it stays
    dropped[..., 0] = False
    kept = torch.zeros_like(probs).scatter(-1, index, ordered.masked_fill(dropped, 0.0))
    return kept / kept.sum(dim=-1, keepdim=True)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is always the same for (seed, position), and unrelated to that of any other pair."""
    digest = hashlib.blake2b(f"{seed},{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 12) / 2**52  # 52 bits: times a sum near 1 it can't round up to the sum
