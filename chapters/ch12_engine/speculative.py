# Yours to finish. Generated from shared/inference/speculative.py (version b81f16d274b9).
"""Speculative decoding without a second model: guess that what came after these words before comes after them again.

A forward pass over nine tokens takes much less than nine over one, for each pass reads all the weights. So guesses are
cheap to check: one pass computes what the model says after each of them, and those that it would have said itself are
kept. After Leviathan et al. 2023 (section 2) and the prompt lookup of Saxena 2023; here a draw depends on (seed,
position) alone, so the answer is the plain loop's to the token, sampled ones too.
"""

from chapters import Todo
from collections.abc import Collection, Iterator, Sequence

import torch

from shared.inference.generate import PREFILL_CHUNK, check_prompt
from shared.inference.kv_cache import KVCache, new_caches
from shared.inference.sampling import SamplingParams, sample
from shared.model.transformer import Transformer


def propose(token_ids: Sequence[int], most: int = 8, longest: int = 3) -> list[int]:
    """At most `most` tokens that may come next: what followed the latest earlier occurrence of the last few tokens.

    `longest` tokens have to agree, or if they never occurred before, one fewer, down to one. None: no guess.

    >>> propose([7, 1, 2, 3, 9, 1, 2], most=2)  # 1, 2 stood there before; 3, 9 came after
    [3, 9]
    """
    for n in range(min(longest, len(token_ids) - 1), 0, -1):
        last = list(token_ids[-n:])
        for start in range(len(token_ids) - n - 1, -1, -1):
            if list(token_ids[start : start + n]) == last:
                return list(token_ids[start + n : start + n + most])
    return []


def verify(
    model: Transformer, caches: list[KVCache], token_ids: Sequence[int], draft: Sequence[int], params: SamplingParams
) -> list[int]:
    """The next tokens as the plain loop would choose them, from one forward pass: one at least, len(draft) + 1 at most.

    token_ids: everything so far; all but the last are in the caches. draft: a guess at what comes next. The draft's
    tokens are right as long as each is what the model chooses there; the first that it chooses otherwise is right too,
    and ends the list, for what was computed after it is of a text that isn't. If all are right, one more comes free.
    Afterwards the caches hold everything but the last of the returned tokens.
    """
    # exercise 12.10: one pass over the last token and the draft; choose row by row with `sample`, at its position and
    #   with the tokens before it, until a choice isn't the draft's; then rewind each cache by what was done in vain
    raise Todo("12.10")
    # end


@torch.inference_mode()
def generate_with_lookup(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    eos_ids: Collection[int] = frozenset(),
    most: int = 8,
) -> Iterator[list[int]]:
    """Yield the answer in pieces: the tokens of each pass. Joined they are what `generate` yields.

    most: so many tokens are guessed at a time. Ends, and refuses, as `generate` does.
    """
    if params.stop or params.n != 1 or params.logprobs is not None:
        raise ValueError("this yields the ids of one answer: stop texts, n and logprobs are the engine's business")
    if type(most) is not int or most < 0:
        raise ValueError(f"most must be a whole number of at least 0, not {most!r}")
    check_prompt(prompt_ids, model.config.vocab_size, model.config.max_position_embeddings)
    total = min(len(prompt_ids) + params.max_tokens, model.config.max_position_embeddings)
    weight = next(model.parameters())
    caches = new_caches(model.config, total, dtype=weight.dtype, device=weight.device)
    tokens = list(prompt_ids)
    for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
        chunk = tokens[start : min(start + PREFILL_CHUNK, len(tokens) - 1)]
        model(torch.tensor([chunk], device=weight.device), caches, last_only=True)
    while len(tokens) < total:
        draft = propose(tokens, min(most, total - len(tokens) - 1))
        chosen = verify(model, caches, tokens, draft, params)
        ends = [place for place, token in enumerate(chosen, 1) if token in eos_ids and not params.ignore_eos]
        chosen = chosen[: ends[0]] if ends else chosen
        tokens += chosen
        yield chosen
        if ends:
            return
