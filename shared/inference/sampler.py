"""The next token of every sequence in a step: one row of logits each, its own parameters, its own draw."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.inference.outputs import TokenLogprobs
from shared.inference.sampling import SamplingParams, sample
from shared.inference.sequence import Sequence
from shared.inference.step import Step


@dataclass(frozen=True)
class Sampled:
    """A token that was drawn, and what the model thought of it where the request asks for that."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def rows_to_sample(step: Step) -> list[tuple[Sequence, int]]:
    """Who gets a token of which row of the step's logits.

    The model gives a row for each scheduled sequence that has nothing missing after the step, in their order. Siblings
    that are about to start have the same prompt, so they are drawn from the same row.
    """
    rows, row = [], 0
    for sequence, n in step.scheduled:
        if n == sequence.num_missing:
            rows += [(sequence, row), *((sibling, row) for sibling in sequence.siblings)]
            row += 1
    return rows


def sample_rows(logits: Tensor, rows: list[tuple[Sequence, int]]) -> dict[Sequence, Sampled]:
    """Draw a token for each sequence, with its log-probabilities (`logprobs_of`, of its row as it is).

    logits: [n_rows, vocab], any float dtype; rows: (sequence, its row). What comes next is decided by the sequence's
    own row, parameters and tokens, and the position the token will have in it; never by who else is in the batch. (The
    row itself can differ in its last bits with how a prompt was cut into pieces, which the others in a step have a say
    in: sums are added in another order. In float32 that hardly ever shows. Dynamic int8 rounds its activations, and the
    last bit decides which way: there logits move by so much that a greedy answer may change.)
    Greedy ones without a penalty, the most, are chosen in one go. Raises ValueError when a row holds NaN or infinity
    (minus infinity is fine: a token that can't be chosen).
    """
    if not rows:
        return {}
    if not bool(logits.amax(dim=-1).isfinite().all()):  # NaN counts as larger than everything
        raise ValueError("the model's logits are not finite numbers")
    greedy = most_likely(logits)
    # exercise 12.9: greedy[row] at temperature 0 with a penalty of 1; else `sample`, with the row and all it asks for
    sampled = {}
    for sequence, row in rows:
        params = sequence.params
        if params.temperature == 0 and params.repetition_penalty == 1:
            token = greedy[row]
        else:
            token = sample(logits[row], params, len(sequence.token_ids), sequence.token_ids)
        sampled[sequence] = Sampled(token, logprobs_of(logits[row], token, params))
    return sampled
    # end


def most_likely(logits: Tensor) -> list[int]:
    """The largest logit's token, for each row, with one wait for the device. logits: [n_rows, vocab]."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        tokens: list[int] = logits.numpy().argmax(axis=-1).tolist()  # ten times as fast as torch's on a CPU
        return tokens
    return logits.argmax(dim=-1).tolist()


def logprobs_of(logits: Tensor, token: int, params: SamplingParams) -> TokenLogprobs | None:
    """What the model itself thought of a token; None where the request doesn't ask. logits: [vocab]."""
    if params.logprobs is None:
        return None
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)  # [vocab]
    values, ids = logprobs.topk(min(params.logprobs, len(logprobs)))
    top = [(id, value) for id, value in zip(ids.tolist(), values.tolist(), strict=True) if math.isfinite(value)]
    return TokenLogprobs(token, float(logprobs[token]), top)
