"""Static batching: requests of different lengths in one rectangle, padded on the left, from first token to last.

The weights are read once a step for all rows. The price: a row that ends early keeps its place, and computes for
nobody, until the longest one ends. Chapter 12 mends that.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.data.batching import length_buckets, pad
from shared.inference.generate import PREFILL_CHUNK, check_prompt
from shared.inference.kv_cache import new_caches
from shared.inference.sampling import SamplingParams, for_each, sample
from shared.model.transformer import Transformer, causal_mask

PAD_ID = 0  # never looked at: any id would do

Params = SamplingParams | Sequence[SamplingParams]  # one for all requests, or one for each
Cancelled = Callable[[], bool]


class _Left(Exception):
    """The batch was cancelled; it goes through decode_rows, and no further."""


@dataclass
class Row:
    """One request of a batch. token_ids: the prompt, then the answer as it grows; it ends at `limit` tokens in all."""

    token_ids: list[int]
    params: SamplingParams
    limit: int


def batch_layout(real: Tensor) -> tuple[Tensor, Tensor]:
    """Where each token of a left-padded batch stands, and whom it may attend to.

    real: bool [batch, length], False = padding. Returns positions, int64 [batch, length]: 0, 1, 2, … for each row's
    real tokens, 0 for padding; and mask, bool [batch, 1, length, length], the 1 for the heads: row i, column j is True
    where token i may attend to token j. A real token attends to the real tokens up to itself. Padding attends to itself
    at least (what it computes is never looked at): a softmax over nothing would be nan, and nan spreads.

    >>> positions, mask = batch_layout(torch.tensor([[False, True, True]]))
    >>> positions, mask[0, 0].int()
    (tensor([[0, 0, 1]]), tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]], dtype=torch.int32))
    """
    # exercise 11.1: count each row's real tokens; then causal, and real columns only, and each sees itself
    positions = (real.cumsum(dim=1) - 1).clamp(min=0)  # [batch, length]
    length = real.shape[1]
    mask = causal_mask(length, length, real.device) & real[:, None, None, :]  # [batch, 1, length, length]
    return positions, mask | torch.eye(length, dtype=torch.bool, device=real.device)
    # end


def decode_rows(
    rows: Sequence[Row], logits: Tensor, step: Callable[[list[int]], Tensor], eos_ids: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Generate all rows to their ends: yield (row, token id), each token as soon as it is chosen, rows in order.

    logits: [batch, vocab], after the prompts. step takes one token for every row, in order, and returns the next
    logits; it needs a token of ended rows too, whatever it is, for they keep their place. A row ends with its `limit`
    or with a token of eos_ids, yielded as its last (unless its params say ignore_eos). No step is computed for nobody.

    sample(logits[k], params, position, token_ids) chooses row k's token; its position is the row's own length so far,
    so that a request draws the same numbers in a batch as alone.
    """
    # exercise 11.2: sample for the rows that go on, append and yield, drop those that end; then one step for all rows
    live = list(range(len(rows)))
    while live:
        for k in live:
            row = rows[k]
            token = sample(logits[k], row.params, len(row.token_ids), row.token_ids)
            row.token_ids.append(token)
            yield k, token
        live = [k for k in live if not _ended(rows[k], eos_ids)]
        if live:
            logits = step([row.token_ids[-1] for row in rows])  # [batch, vocab]
    # end


def _ended(row: Row, eos_ids: Collection[int]) -> bool:
    """Whether the row's latest token was its last."""
    return len(row.token_ids) >= row.limit or (row.token_ids[-1] in eos_ids and not row.params.ignore_eos)


@torch.inference_mode()
def run_batch(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: Params,
    eos_ids: Collection[int] = frozenset(),
    cancelled: Cancelled = lambda: False,
) -> Iterator[tuple[int, int]]:
    """One static batch: yield (index of the prompt, token id) as they come. Any number of prompts, in one rectangle.

    Each answer has the tokens that `generate` gives for it alone. An answer ends after its max_tokens, at the end of
    the model's context, or with a token of eos_ids. `cancelled` is asked before each step; True ends all answers there.
    Raises ValueError as generate does, before anything is computed.
    """
    rows = _rows(model, prompts, params, eos_ids)
    if not rows:
        return
    weight = next(iter(model.parameters()), torch.zeros(()))  # int8 models have float norms, and that is what is kept
    ids, real = pad([row.token_ids for row in rows], PAD_ID, side="left")  # [batch, longest]
    ids, real = ids.to(weight.device), real.to(weight.device)
    longest = ids.shape[1]
    most_new = max(row.limit - len(row.token_ids) for row in rows)
    caches = new_caches(model.config, longest + most_new, len(rows), weight.dtype, weight.device)
    seen = torch.cat((real, real.new_ones(len(rows), most_new)), dim=1)[:, None, None]  # [batch, 1, 1, capacity]

    def compute(ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        if cancelled():
            raise _Left
        logits: Tensor = model(ids, caches, last_only=True, positions=positions, mask=mask)  # [batch, 1, vocab]
        return logits[:, -1]

    def step(tokens: list[int]) -> Tensor:
        new = torch.tensor(tokens, device=weight.device)[:, None]  # [batch, 1]
        positions = torch.tensor([len(row.token_ids) - 1 for row in rows], device=weight.device)[:, None]
        return compute(new, positions, seen[..., : caches[0].length + 1])

    try:
        yield from decode_rows(rows, _prefill(ids, real, compute), step, eos_ids)
    except _Left:
        return


def _prefill(ids: Tensor, real: Tensor, compute: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Read the prompts, some columns at a time; return the logits after the last, [batch, vocab]."""
    positions, mask = batch_layout(real)
    logits = torch.empty(0)
    for start in range(0, ids.shape[1], PREFILL_CHUNK):
        end = min(start + PREFILL_CHUNK, ids.shape[1])
        logits = compute(ids[:, start:end], positions[:, start:end], mask[:, :, start:end, :end])
    return logits


def static_batch(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: Params,
    batch_size: int = 8,
    sort: bool = True,
    eos_ids: Collection[int] = frozenset(),
    cancelled: Cancelled = lambda: False,
) -> Iterator[tuple[int, int]]:
    """Answer all prompts in static batches, one batch after the other; yield (index of the prompt, token id).

    sort: batches of neighbours in max_tokens, so that rows end together; False: batches as they come. Otherwise as
    run_batch. Raises ValueError for a batch_size below 1, too.
    """
    every = for_each(params, len(prompts))
    _rows(model, prompts, every, eos_ids)  # what is wrong in the last batch is heard of before the first
    lengths = [one.max_tokens for one in every] if sort else [0] * len(prompts)  # equal ones keep their order
    for indices in length_buckets(lengths, batch_size):
        group = [prompts[i] for i in indices], [every[i] for i in indices]
        for k, token in run_batch(model, *group, eos_ids, cancelled):
            yield indices[k], token


def answers(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: Params,
    eos_ids: Collection[int] = frozenset(),
    cancelled: Cancelled = lambda: False,
) -> list[list[int]]:
    """One static batch, and all its answers at the end, in order: what the batcher runs. `cancelled`: see run_batch."""
    found: list[list[int]] = [[] for _ in prompts]
    for k, token in run_batch(model, prompts, params, eos_ids, cancelled):
        found[k].append(token)
    return found


def check_params(params: SamplingParams) -> None:
    """Raise ValueError for what a static batch can't do: it gives each prompt one answer, and nothing but token ids."""
    for name, value, plain in (("stop", params.stop, ()), ("n", params.n, 1), ("logprobs", params.logprobs, None)):
        if value != plain:
            raise ValueError(f"{name}: a static batch gives one answer of token ids; {name}={value!r} needs the engine")


def _rows(model: Transformer, prompts: Sequence[Sequence[int]], params: Params, eos_ids: Collection[int]) -> list[Row]:
    """The rows before the first step. Raises ValueError for what can't be answered."""
    if not isinstance(eos_ids, Collection):
        raise ValueError(f"eos_ids must be a set or list of token ids, not {eos_ids!r}")
    context = model.config.max_position_embeddings
    rows = []
    for prompt, one in zip(prompts, for_each(params, len(prompts)), strict=True):
        check_prompt(prompt, model.config.vocab_size, context)
        check_params(one)
        rows.append(Row(list(prompt), one, min(len(prompt) + one.max_tokens, context)))
    return rows
