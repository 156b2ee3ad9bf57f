# Yours to finish. Generated from shared/inference/sampling.py (version d4e22a959f6c).
"""From the logits of one position to the next token."""

from chapters import Todo
import hashlib
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.inference.filters import apply_repetition_penalty as apply_repetition_penalty
from shared.inference.filters import min_p_filter as min_p_filter
from shared.inference.filters import probabilities as probabilities
from shared.inference.filters import top_k_filter as top_k_filter
from shared.inference.filters import top_p_filter as top_p_filter  # "as": to be had from here too

# The least and the most that each may be. A seed is 64 bits, as in the API.
WHOLE_NUMBERS = {"max_tokens": (1, sys.maxsize), "top_k": (0, sys.maxsize), "seed": (-(2**63), 2**63 - 1),
                 "n": (1, sys.maxsize), "logprobs": (0, sys.maxsize)}  # fmt: skip
NUMBERS = {"temperature": (0, math.inf), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100)}


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen, and when to stop.

    max_tokens: at most so many new tokens. temperature: 0 is greedy. top_k: only the k likeliest tokens, 0 is all.
    top_p: only the smallest set of tokens with this much probability. min_p: only tokens this many times as likely as
    the likeliest. repetition_penalty: above 1 makes tokens of the prompt and the answer less likely, 1 changes nothing.
    seed: with the position, decides every draw. stop: texts that end the answer and are not part of it. ignore_eos: go
    on after an end-of-sequence token. n: so many answers. logprobs: None, or log-probabilities of the token chosen and
    of this many of the likeliest.
    Raises ValueError that names the field.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if name == "logprobs" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                bound = f"of at least {least}" if most == sys.maxsize else f"between {least} and {most}"
                raise ValueError(f"{name} must be a whole number {bound}, not {_shown(value)}")
        for name, (low, high) in NUMBERS.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and value <= sys.float_info.max
            if not number or not low <= value <= high:
                bound = f"of at least {low}" if high == math.inf else f"between {low} and {high}"
                raise ValueError(f"{name} must be a finite number {bound}, not {_shown(value)}")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop must be a tuple of texts, none of them empty, not {self.stop!r}")


def _shown(value: object) -> str:
    """repr, also of a number that has more digits than Python is willing to write."""
    return "a number of thousands of digits" if isinstance(value, int) and abs(value) > 10**30 else repr(value)


def for_each(params: SamplingParams | Sequence[SamplingParams], n: int) -> list[SamplingParams]:
    """One SamplingParams for each of n prompts, from one for all or a list of them. Raises ValueError for others."""
    if isinstance(params, SamplingParams):
        return [params] * n
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        raise ValueError(
            f"params must be SamplingParams, one for all prompts or a list of one for each, not {params!r}"
        )
    if len(params) != n:
        raise ValueError(f"{len(params)} params for {n} prompts; there must be one for each, or one for all")
    return list(params)


def sample(logits: Tensor, params: SamplingParams, position: int, token_ids: Sequence[int] = ()) -> int:
    """Choose the token for `position`, counted from the start of the sequence.

    logits: [vocab], any float dtype. token_ids: the prompt and the answer so far, for the repetition penalty.
    Greedy (temperature 0, or top_k 1) is the largest logit after the penalty. Otherwise the candidates, in the order of
    their ids, share the stretch from 0 to 1 by their probabilities, and the token is the one whose part `uniform` of
    (seed, position) falls into; a part begins with its left end. So the draw depends on (seed, position) alone: not on
    what else runs in the batch, nor on whether the tokens before it were computed in one go or after a restart.
    (Where top_k cuts between equal logits, torch.topk chooses which stay: always the same on the same device.)
    Raises ValueError when the logits aren't one row, or hold NaN or infinity (minus infinity is fine: a token that
    can't be chosen).

    With probabilities 0.2, 0.5 and 0.3 a draw of 0.1 is token 0, of 0.2 token 1, of 0.69 token 1, of 0.7 token 2.
    """
    if logits.dim() != 1:
        raise ValueError(f"logits must be those of one position, [vocab], not {list(logits.shape)}")
    if not math.isfinite(logits.max()):
        raise ValueError(f"the model's logits for position {position} are not finite numbers")
    if params.repetition_penalty != 1:  # it may make a number of 16 bits infinite
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # exercise 9.6: the penalty where there is one; greedy without a draw; else candidates(), their cumulative sum, and
    #   the first whose sum is above uniform(params.seed, position), times the last sum: rounding may leave it below 1
    raise Todo("9.6")
    # end


def candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """The tokens that may be drawn and how likely each is: top-k, temperature, top-p and min-p, in this order.

    top-k only looks at the order, which no temperature changes; top-p and min-p look at the probabilities that the
    temperature has made. logits: [vocab], after the penalty. Returns ids [n], ascending, and probs [n], float64, which
    sum to 1 (some may be 0).
    """
    ids = torch.arange(logits.shape[-1], device=logits.device)
    if 0 < params.top_k < len(ids):
        logits = top_k_filter(logits, params.top_k)
        ids = (logits > -math.inf).nonzero().squeeze(-1)  # [k]: from here on k numbers instead of a vocabulary
        logits = logits[ids]
    probs = probabilities(logits, params.temperature)
    if params.top_p < 1:
        likely = likely_enough(probs, params.top_p)  # sorting these takes much less than sorting a vocabulary
        ids, probs = ids[likely], top_p_filter(probs[likely], params.top_p)
    if params.min_p > 0:
        probs = min_p_filter(probs, params.min_p)
    return ids, probs


def likely_enough(probs: Tensor, p: float) -> Tensor:
    """Where the smallest set of mass p lies, and few others, found without sorting. probs: [n]. Returns [m], ascending.

    Tokens are counted into steps of equal size on a logarithmic scale; all below the step where the mass is enough go.
    """
    ids = (probs >= (1 - p) / len(probs)).nonzero().squeeze(-1)  # all that are rarer hold less than 1 - p together
    steps = (-4 * probs[ids].log2()).long()  # step 0 is just below 1, and four of them halve the probability
    mass = torch.bincount(steps, weights=probs[ids]).cumsum(dim=-1)
    return ids[steps <= torch.searchsorted(mass, p, right=True)]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is always the same for (seed, position), and unrelated to that of any other pair."""
    seed, position = operator.index(seed), operator.index(position)  # 3.0 is another text, and True, too
    digest = hashlib.blake2b(f"{seed},{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 12) / 2**52  # 52 bits: times a sum near 1 it can't round up to the sum
