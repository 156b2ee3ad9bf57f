# Yours to finish. Generated from shared/inference/diagnosis.py (version 6ed14d872969).
"""Which fault has a loop, or a sampler, that answers wrongly? Found out from outside, without reading its code."""

from chapters import Todo
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared.inference.generate import PREFILL_CHUNK
from shared.model.transformer import Transformer

Loop = Callable[[Any, Sequence[int], int], list[int]]  # model, prompt, number of tokens -> the answer's ids
Sampler = Callable[[Tensor, float, float], Tensor]  # logits [vocab], temperature, top_p -> probabilities [vocab]

SHARED = "caches outlive their request"
FORGOTTEN = "earlier tokens are not in the caches"
FED_AGAIN = "tokens fed again to a warm cache"
POSITIONS = "positions don't go on from the cache"
TOO_MANY = "one call too many"
LOST = "the answer is lost"
OTHER_TOKENS = "other tokens are fed than those of the text"
NOT_GREEDY = "not greedy at temperature 0"
NO_MASK = "tokens see what comes after them"
HEALTHY = "healthy"

ZERO = "temperature 0 is not the largest logit"
UPSIDE_DOWN = "a higher temperature is surer"
OVERFLOW = "a small temperature overflows"
CUT_OFF = "a high temperature is cut off"
FILTER_FIRST = "top-p before the temperature"


@dataclass(frozen=True)
class Call:
    """One call of the model by a loop. cached: tokens in the caches before it. best: what greedy takes after it."""

    cached: int
    ids: list[int]
    positions: list[int]
    best: int


@dataclass(frozen=True)
class Observation:
    """What was seen of a loop: the prompt it got, the answer it gave, and every call of the model it made for that.

    truth: the naive loop's greedy answer to the same prompt, as many tokens as the loop was asked for.
    """

    prompt: list[int]
    answer: list[int]
    calls: list[Call]
    truth: list[int]


class Recorder(nn.Module):
    """A model that notes down what it is asked."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.inner, self.config, self.calls = model, model.config, list[Call]()

    def forward(
        self, ids: Tensor, caches: Any = None, last_only: bool = False, positions: Any = None, **settings: Any
    ) -> Tensor:
        """Asks the model, adds a Call to `calls`, and returns the logits unchanged."""
        cached = caches[0].length if caches else 0
        where = list(range(cached, cached + ids.shape[1])) if positions is None else positions.flatten().tolist()
        if positions is not None:
            settings["positions"] = positions
        logits: Tensor = self.inner(ids, caches, last_only=last_only, **settings)
        self.calls.append(Call(cached, ids[0].tolist(), where, int(logits[0, -1].argmax())))
        return logits


@torch.inference_mode()
def observe(loop: Loop, model: Transformer, prompt: Sequence[int], max_tokens: int) -> Observation:
    """Let a loop answer, and watch it. It answers another prompt first: some faults show only with the second request.

    Both requests see the same model, so that what a loop keeps on the model is found too. The model should be float64:
    in float32 two nearly equal logits may change places between a cached and a naive loop, and a healthy one looks ill.
    Raises ValueError when nothing could be seen: for a prompt of one token (no mask can be missing) or one that a loop
    may read in pieces (more than PREFILL_CHUNK tokens), for fewer than 2 tokens asked for, and for a loop that calls no
    model, returns no list, or more tokens than it was asked for.
    """
    if not 2 <= len(prompt) <= PREFILL_CHUNK:
        raise ValueError(f"the prompt must have 2 to {PREFILL_CHUNK} tokens, not {len(prompt)}")
    if max_tokens < 2:
        raise ValueError(f"max_tokens must be at least 2, not {max_tokens}: many faults show from the second token on")
    recorder = Recorder(model)
    loop(recorder, list(reversed(prompt)), max_tokens)
    recorder.calls.clear()
    answer = loop(recorder, list(prompt), max_tokens)
    if not isinstance(answer, list):
        raise ValueError(f"the loop must return the answer's ids, a list, and returned {type(answer).__name__}")
    if len(answer) > max_tokens:
        raise ValueError(f"the loop gave {len(answer)} tokens, asked for {max_tokens}: the prompt is not the answer's")
    if not recorder.calls:
        raise ValueError("the loop never called the model that it was given")
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return Observation(list(prompt), answer, recorder.calls, ids[len(prompt) :])


def diagnose_loop(seen: Observation) -> str:
    """The fault that was seen, one of the names above. Call number i, from 0, should leave len(prompt) + i tokens in
    the caches: those that were there and those it was fed. The first line that fits is the answer:

    SHARED        the first call found tokens in the caches
    FORGOTTEN     a call left fewer tokens in the caches than it should
    FED_AGAIN     a call left more
    POSITIONS     a call's tokens don't stand at cached, cached + 1, ...
    TOO_MANY      more calls than tokens were asked for
    LOST          the answer is shorter than the number of calls
    OTHER_TOKENS  a call was fed other tokens than prompt + answer has at cached, cached + 1, ...
    NOT_GREEDY    the answer isn't made of each call's best token
    NO_MASK       the model was asked the right things, its best tokens were taken, and still the answer isn't how
                  the truth begins (a loop may end before it, with an end token)
    HEALTHY       it is
    """
    # exercise 9.12: the table, line by line
    raise Todo("9.12")
    # end


def diagnose_sampler(sampler: Sampler) -> str:
    """Find a sampler's fault by asking it for distributions. It has one at most, and answers every question somehow.

    ZERO          at temperature 0 the largest logit hasn't got all the probability (it may be nan, or as if at 1)
    UPSIDE_DOWN   at a higher temperature the likeliest token is likelier
    OVERFLOW      at a tiny temperature, not 0, the probabilities are no numbers
    CUT_OFF       at an enormous temperature the tokens aren't equally likely
    FILTER_FIRST  at a high temperature, when all tokens are nearly equally likely, top-p still keeps but the usual few
    HEALTHY       none of these
    """
    # exercise 9.13: one question for each line, with logits and settings whose right answer you know
    #   sampler(torch.tensor([3.0, 2.0, 1.0]), 0.5, 1.0) gives three probabilities; a top_p of 1 leaves all tokens in
    raise Todo("9.13")
    # end
