"""What an engine is asked for, at its start and with a request: is it possible? And how large may the pool be?"""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import torch

from shared.inference.generate import check_prompt
from shared.inference.paged_kv_cache import bytes_per_block
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import Scheduler
from shared.model.config import ModelConfig

DEFAULT_KV_BYTES = 2**30  # for keys and values on a CPU; on a GPU it's what is free
MAX_PRIORITY = 10**6  # as seconds, and even ten times as much, it is added to a clock without loss


def check_settings(
    context: int, max_model_len: int | None, num_blocks: int | None, kv_bytes: int | None, **sizes: int
) -> None:
    """Raise ValueError, with the setting's name, for what can't be. context: the model's. sizes: whole numbers, at
    least 1, or for max_waiting 0."""
    optional = {"max_model_len": max_model_len, "num_blocks": num_blocks, "kv_bytes": kv_bytes}
    for name, value in (sizes | {name: size for name, size in optional.items() if size is not None}).items():
        least = 0 if name == "max_waiting" else 1
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if max_model_len is not None and not 2 <= max_model_len <= context:
        raise ValueError(f"max_model_len must be from 2 to the model's context of {context}, not {max_model_len}")
    if num_blocks is not None and kv_bytes is not None:
        raise ValueError("num_blocks and kv_bytes both say how large the pool is; give one of them")
    if num_blocks is not None and num_blocks * sizes["block_size"] < 2:
        raise ValueError("num_blocks: one block of one token has no room for a prompt and an answer; give more")


def check_request(params: object, priority: object) -> None:
    """Raise ValueError for parameters that are none, and for a priority that can't be weighed."""
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params must be SamplingParams, not {params!r}")
    if params.seed + params.n > 2**63:
        raise ValueError(f"seed: {params.seed} leaves no seeds for {params.n} answers; the largest is 2**63 - 1")
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise ValueError(f"priority must be a whole number between {-MAX_PRIORITY:,} and {MAX_PRIORITY:,}")


def honoured(
    prompt_ids: SequenceOf[int], params: SamplingParams, priority: int, vocab_size: int, scheduler: Scheduler
) -> SamplingParams:
    """A request's parameters as they can be honoured: max_tokens ends with the context, or the pool. Raises ValueError,
    and says why, for what can't be served now or ever."""
    check_request(params, priority)
    check_prompt(prompt_ids, vocab_size, scheduler.max_model_len)
    blocks = scheduler.blocks
    room = min(scheduler.max_model_len, blocks.num_blocks * blocks.block_size) - len(prompt_ids)
    params = replace(params, max_tokens=min(params.max_tokens, max(room, 1)))
    scheduler.check_fits(len(prompt_ids), params.max_tokens, params.n)
    return params


def check_resumed(output_ids: SequenceOf[int], params: SamplingParams, vocab_size: int) -> None:
    """Raise ValueError for tokens that no answer can go on behind. One that they have ended, its text finds out."""
    if params.n != 1:
        raise ValueError(f"output_ids are those of one answer, and n is {params.n}; resume each answer by itself")
    if strange := [id for id in output_ids if type(id) is not int or not 0 <= id < vocab_size]:
        raise ValueError(f"output_ids: {strange[0]!r} is no token id; the vocabulary has {vocab_size}")


def free_bytes(device: torch.device) -> int:
    """How much memory may be set aside for keys and values."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(0.9 * free)
    return DEFAULT_KV_BYTES


def blocks_that_fit(
    config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device, kv_bytes: int | None, most: int
) -> int:
    """How many blocks the pool may have: as many as fit into kv_bytes, or what may be set aside, and `most` at most.

    Raises ValueError when not even one fits.
    """
    room = free_bytes(device) if kv_bytes is None else kv_bytes
    each = bytes_per_block(config, block_size, dtype)
    if room < each:
        raise ValueError(f"kv_bytes: {room} bytes hold no block of {block_size} tokens, which takes {each}")
    return min(most, room // each)
