"""Loops and samplers that are wrong in ways people meet, to be diagnosed. The first of each kind is right.

A loop takes a model, a prompt and a number of tokens, and returns the answer's ids, greedily. A sampler takes logits
[vocab], a temperature and a top-p, and returns the probabilities [vocab] that it would draw from. None of these is used
by anything that answers somebody.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.inference.diagnosis import Loop, Sampler
from shared.inference.filters import probabilities, top_p_filter
from shared.inference.kv_cache import KVCache, new_caches
from shared.model.transformer import Transformer, causal_mask


def caches_for(model: Transformer, capacity: int) -> list[KVCache]:
    """Empty caches of the weights' dtype, a layer each, with room for `capacity` tokens."""
    return new_caches(model.config, capacity, dtype=next(model.parameters()).dtype)


def right(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The whole prompt into empty caches, then each new token alone."""
    caches, answer, new = caches_for(model, len(prompt_ids) + max_tokens), [], list(prompt_ids)
    for _ in range(max_tokens):
        token = int(model(torch.tensor([new]), caches)[0, -1].argmax())
        answer.append(token)
        new = [token]
    return answer


def overwritten(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """One name for all tokens and for those to be fed next."""
    caches, generated = caches_for(model, len(prompt_ids) + max_tokens), list(prompt_ids)
    for _ in range(max_tokens):
        token = int(model(torch.tensor([generated]), caches)[0, -1].argmax())
        generated = [token]
    return generated


def fed_again(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The naive loop, with caches handed in."""
    n = len(prompt_ids)
    caches, ids = caches_for(model, (n + max_tokens) * max_tokens), list(prompt_ids)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor([ids]), caches)[0, -1].argmax()))
    return ids[n:]


def forgetful(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """Only what is new is fed, and the caches are made anew for each step."""
    answer, new = [], list(prompt_ids)
    for _ in range(max_tokens):
        token = int(model(torch.tensor([new]), caches_for(model, len(new)))[0, -1].argmax())
        answer.append(token)
        new = [token]
    return answer


def shared_between_requests(
    model: Transformer,
    prompt_ids: Sequence[int],
    max_tokens: int,
    caches: list[KVCache] = [],  # noqa: B006
) -> list[int]:
    """A default value is made once, and every call gets the same list."""
    if not caches:
        caches.extend(caches_for(model, min(512, model.config.max_position_embeddings)))
    answer, new = [], list(prompt_ids)
    for _ in range(max_tokens):
        token = int(model(torch.tensor([new]), caches)[0, -1].argmax())
        answer.append(token)
        new = [token]
    return answer


def counted_from_zero(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """Every call's tokens get the positions 0, 1, 2, …, whatever the caches hold."""
    caches, answer, new = caches_for(model, len(prompt_ids) + max_tokens), [], list(prompt_ids)
    for _ in range(max_tokens):
        positions = torch.arange(len(new))
        mask = causal_mask(len(new), caches[0].length + len(new))
        token = int(model(torch.tensor([new]), caches, positions=positions, mask=mask)[0, -1].argmax())
        answer.append(token)
        new = [token]
    return answer


def without_mask(model: Transformer, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """Positions given, and no mask with them: in the prompt every token sees those after it."""
    caches, answer, new = caches_for(model, len(prompt_ids) + max_tokens), [], list(prompt_ids)
    for _ in range(max_tokens):
        positions = caches[0].length + torch.arange(len(new))
        token = int(model(torch.tensor([new]), caches, positions=positions)[0, -1].argmax())
        answer.append(token)
        new = [token]
    return answer


def zero_taken_for_missing(
    model: Transformer, prompt_ids: Sequence[int], max_tokens: int, temperature: float = 0.0
) -> list[int]:
    """`temperature or 1.0`: asked for 0, it draws at 1."""
    temperature = temperature or 1.0
    caches, answer, new = caches_for(model, len(prompt_ids) + max_tokens), [], list(prompt_ids)
    generator = torch.Generator().manual_seed(0)
    for _ in range(max_tokens):
        probs = probabilities(model(torch.tensor([new]), caches)[0, -1], temperature)
        token = int(torch.multinomial(probs, 1, generator=generator))
        answer.append(token)
        new = [token]
    return answer


LOOPS: tuple[Loop, ...] = (right, overwritten, fed_again, forgetful, shared_between_requests, counted_from_zero,
                           without_mask, zero_taken_for_missing)  # fmt: skip


def right_sampler(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Temperature first, then top-p among what it has made of the logits."""
    return top_p_filter(probabilities(logits, temperature), top_p)


def divides_by_zero(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Nothing is done about a temperature of 0: infinity minus infinity is no number."""
    return top_p_filter((logits / temperature).softmax(dim=-1), top_p)


def multiplies(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Times the temperature where it should be divided. At 0 and at 1 nobody sees it."""
    return top_p_filter(probabilities(logits, 1 / temperature if temperature else 0.0), top_p)


def exponential_first(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """exp before the largest logit is subtracted: infinity over infinity when the temperature is small."""
    if temperature == 0:
        return probabilities(logits, 0.0)
    weights = (logits.float() / temperature).exp()
    return top_p_filter(weights / weights.sum(), top_p)


def cut_off(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """A temperature above 2 is taken for 2, without a word."""
    return top_p_filter(probabilities(logits, min(temperature, 2.0)), top_p)


def filter_first(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """top-p chooses among the probabilities at temperature 1, and the temperature comes after."""
    kept = top_p_filter(probabilities(logits, 1.0), top_p) > 0
    return probabilities(logits.masked_fill(~kept, -math.inf), temperature)


SAMPLERS: tuple[Sampler, ...] = (right_sampler, divides_by_zero, multiplies, exponential_first, cut_off, filter_first)
