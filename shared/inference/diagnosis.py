"""Which fault has a loop, or a sampler, that answers wrongly? Found out from outside, without reading its code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared.model.transformer import Transformer

Loop = Callable[[Any, Sequence[int], int], list[int]]  # model, prompt, number of tokens -> the answer's ids
Sampler = Callable[[Tensor, float, float], Tensor]  # logits [vocab], temperature, top_p -> probabilities [vocab]

SHARED = "caches outlive their request"
FORGOTTEN = "earlier tokens are not in the caches"
FED_AGAIN = "tokens fed again to a warm cache"
POSITIONS = "positions don't go on from the cache"
LOST = "the answer is lost"
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

    truth: the naive loop's greedy answer to the same prompt.
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

    def forward(self, ids: Tensor, caches: Any = None, **settings: Any) -> Tensor:
        cached = caches[0].length if caches else 0
        positions = settings.get("positions")
        where = list(range(cached, cached + ids.shape[1])) if positions is None else positions.flatten().tolist()
        logits: Tensor = self.inner(ids, caches, **settings)
        self.calls.append(Call(cached, ids[0].tolist(), where, int(logits[0, -1].argmax())))
        return logits


@torch.inference_mode()
def observe(loop: Loop, model: Transformer, prompt: Sequence[int], max_tokens: int) -> Observation:
    """Let a loop answer, and watch it. It answers another prompt first: some faults show only with the second request.

    The prompt must be short enough for the loop to read it in one call.
    """
    loop(model, list(reversed(prompt)), max_tokens)
    recorder = Recorder(model)
    answer = loop(recorder, list(prompt), max_tokens)
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return Observation(list(prompt), answer, recorder.calls, ids[len(prompt) :])


def diagnose_loop(seen: Observation) -> str:
    """The fault that was seen, one of the names above. Call number i, from 0, should leave len(prompt) + i tokens in
    the caches: those that were there and those it was fed. The first line that fits is the answer:

    SHARED      the first call found tokens in the caches
    FORGOTTEN   a call left fewer tokens in the caches than it should
    FED_AGAIN   a call left more
    POSITIONS   a call's tokens don't stand at cached, cached + 1, ...
    LOST        the answer is shorter than the number of calls
    NOT_GREEDY  the answer isn't made of each call's best token
    NO_MASK     the model was asked the right things, its best tokens were taken, and still the answer isn't the truth
    HEALTHY     it is
    """
    # exercise 9.12: the table, line by line
    if seen.calls[0].cached > 0:
        return SHARED
    surplus = [call.cached + len(call.ids) - len(seen.prompt) - i for i, call in enumerate(seen.calls)]
    if min(surplus) < 0:
        return FORGOTTEN
    if max(surplus) > 0:
        return FED_AGAIN
    if any(call.positions != list(range(call.cached, call.cached + len(call.ids))) for call in seen.calls):
        return POSITIONS
    if len(seen.answer) < len(seen.calls):
        return LOST
    if seen.answer != [call.best for call in seen.calls]:
        return NOT_GREEDY
    return HEALTHY if seen.answer == seen.truth else NO_MASK
    # end


def diagnose_sampler(sampler: Sampler) -> str:
    """Find a sampler's fault by asking it for distributions. It has one at most, and answers every question somehow.

    ZERO          at temperature 0 the largest logit hasn't got all the probability (it may be nan, or as if at 1)
    UPSIDE_DOWN   at a higher temperature the likeliest token is likelier
    OVERFLOW      at a small temperature, not 0, the probabilities are no numbers
    CUT_OFF       at an enormous temperature the tokens aren't equally likely
    FILTER_FIRST  at a high temperature, when all tokens are nearly equally likely, top-p still keeps but the usual few
    HEALTHY       none of these
    """
    # exercise 9.13: one question for each line, with logits and settings whose right answer you know
    #   sampler(torch.tensor([3.0, 2.0, 1.0]), 0.5, 1.0) gives three probabilities; a top_p of 1 leaves all tokens in
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
    if not sampler(logits, 0.0, 1.0)[0] > 0.999:
        return ZERO
    if sampler(logits, 2.0, 1.0)[0] > sampler(logits, 1.0, 1.0)[0]:
        return UPSIDE_DOWN
    if not sampler(logits, 1e-4, 1.0).isfinite().all():
        return OVERFLOW
    hot = sampler(logits, 1e6, 1.0)
    if hot.max() > 1.01 * hot.min():
        return CUT_OFF
    return FILTER_FIRST if (sampler(logits, 1e6, 0.9) > 0).sum() < 4 else HEALTHY
    # end
