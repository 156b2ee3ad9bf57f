"""The loop: one request, one token at a time, each computed once and remembered."""

import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from shared.inference.kv_cache import new_caches
from shared.inference.sampling import SamplingParams, sample
from shared.model.transformer import Transformer

# A long prompt is read in pieces: the attention scores of a piece are [heads, piece, prompt], and a request that has
# been cancelled is noticed after each.
PREFILL_CHUNK = 256


def check_prompt(prompt_ids: Sequence[int], vocab_size: int, max_model_len: int) -> None:
    """Raise ValueError when the prompt is no list of ids, is empty, leaves no room for an answer, or holds an id the
    model hasn't got."""
    if not isinstance(prompt_ids, Sequence) or isinstance(prompt_ids, str | bytes):
        kind = type(prompt_ids).__name__
        raise ValueError(f"the prompt must be a list of token ids, not {kind}; encode a text, take a tensor's tolist()")
    if not prompt_ids:
        raise ValueError("the prompt is empty: there is nothing to continue")
    if len(prompt_ids) >= max_model_len:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens, and the model's context is {max_model_len} tokens "
            "for the prompt and the answer together; shorten the prompt"
        )
    for place, id in enumerate(prompt_ids):
        if type(id) is not int or not 0 <= id < vocab_size:
            raise ValueError(
                f"the prompt holds token ids outside 0 to {vocab_size - 1}: {reprlib.repr(id)} at place {place}, from 0"
            )


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    eos_ids: Collection[int] = frozenset(),
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Yield the answer's token ids, each as soon as it is chosen.

    Ends after params.max_tokens, at the end of the model's context, or with a token of `eos_ids`, which is yielded too,
    as the last (unless params.ignore_eos). `cancelled` is asked before each step; True ends the answer there.
    Every token goes through the model once: the prompt in pieces of at most PREFILL_CHUNK, then each new token alone.
    Raises ValueError, when the first token is asked for, for a prompt that doesn't fit (see check_prompt), for eos_ids
    that are no collection, and for `stop`, `n` and `logprobs`, which need text or several answers: those are the
    engine's business.
    """
    if params.stop or params.n != 1 or params.logprobs is not None:
        raise ValueError("generate yields the ids of one answer: stop texts, n and logprobs are the engine's business")
    if not isinstance(eos_ids, Collection):
        raise ValueError(f"eos_ids must be a set or list of token ids, not {eos_ids!r}")
    check_prompt(prompt_ids, model.config.vocab_size, model.config.max_position_embeddings)
    total = min(len(prompt_ids) + params.max_tokens, model.config.max_position_embeddings)
    # exercise 9.9: caches for `total` tokens; then, for each position: feed what is new, sample, yield, maybe stop
    #   new is the whole prompt first, in pieces of PREFILL_CHUNK tokens, and then the last token alone; `cancelled` is
    #   asked before each call; caches are of the weights' dtype and device; the last token of all is never fed
    ids = list(prompt_ids)  # all tokens so far
    weight = next(model.parameters())
    caches = new_caches(model.config, total, dtype=weight.dtype, device=weight.device)
    new = torch.tensor([ids], device=weight.device)  # [1, length]
    for position in range(len(ids), total):
        for chunk in torch.split(new, PREFILL_CHUNK, dim=1):
            if cancelled():
                return
            logits = model(chunk, caches, last_only=True)  # [1, 1, vocab]
        token = sample(logits[0, -1], params, position, ids)
        ids.append(token)
        yield token
        if token in eos_ids and not params.ignore_eos:
            return
        new = torch.tensor([[token]], device=weight.device)  # [1, 1]
    # end
