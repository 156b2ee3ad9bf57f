"""How much memory the server sets aside for keys and values, and what that holds."""

import os
from contextlib import suppress
from pathlib import Path

import torch

from shared.inference.paged_kv_cache import bytes_per_block
from shared.measure.memory import MB
from shared.model.config import ModelConfig
from shared.serving.engines.engine import EngineLimits
from shared.serving.settings import SettingError

BLOCK_SIZE = 16
TOKENS_EACH = 512  # prompt and answer of a usual request in a chat
LEAST_TOKENS = 256  # with less, a short question gets half an answer
CPU_SHARE = 0.25  # of the memory available: others use this computer too
CONTEXT_SHARE = 0.5  # so much may go into one request of the full context, which a chat may grow into
GPU_SHARE = 0.85  # of what the model has left free: activations and CUDA's own buffers need some
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def pool_size(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, max_num_seqs: int, kv_memory: int | None = None
) -> int:
    """How many blocks of BLOCK_SIZE tokens to set aside: kv_memory megabytes of them, or a sensible number.

    On a GPU that is most of what is free, if requests can fill it. On a CPU it is enough for max_num_seqs usual
    requests, but at most a quarter of the memory available; or for one request of the full context, if that is more
    and takes at most half. Raises SettingError when kv_memory is too little for a chat, or more than there is.
    """
    each = bytes_per_block(config, BLOCK_SIZE, dtype)
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory()
    if kv_memory is not None:
        least = -(-min(LEAST_TOKENS, config.max_position_embeddings) // BLOCK_SIZE)
        if kv_memory * MB < least * each:
            raise SettingError(
                f"--kv-memory {kv_memory}: with this model a chat of {least * BLOCK_SIZE} tokens takes "
                f"{least * each / MB:.1f} MB, so give at least {-(-least * each // MB)}"
            )
        if free is not None and kv_memory * MB > free:
            raise SettingError(f"--kv-memory {kv_memory}: only {free / MB:,.0f} MB are available")
        return kv_memory * MB // each
    context = -(-config.max_position_embeddings // BLOCK_SIZE)
    usual = -(-max_num_seqs * TOKENS_EACH // BLOCK_SIZE)
    if free is None:
        return max(usual, context)
    if on_gpu:
        return max(min(max_num_seqs * context, int(GPU_SHARE * free) // each), 1)
    return max(min(usual, int(CPU_SHARE * free) // each), min(context, int(CONTEXT_SHARE * free) // each), 1)


def available_memory() -> int | None:
    """Bytes that can be had without pushing anyone out, within the limit of a container; None where nobody says."""
    available = _available_to_the_system()
    with suppress(OSError, ValueError):  # no container, or one without a limit: "max"
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        left = max(limit - used + _reclaimable(), 0)
        return left if available is None else min(available, left)
    return available


def _reclaimable() -> int:
    """What a container's use has of files that are kept in memory only until somebody needs the room."""
    with suppress(OSError, StopIteration):
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("inactive_file ")).split()[1])
    return 0


def _available_to_the_system() -> int | None:
    with suppress(OSError, StopIteration):  # Linux's own estimate, which counts caches as free
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):  # macOS says only how much there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def describe(limits: EngineLimits) -> str:
    """One line: the attention backend, and what the pool holds."""
    tokens, length = limits.num_blocks * limits.block_size, limits.max_model_len
    megabytes = limits.num_blocks * limits.bytes_per_block / MB
    return (
        f"Attention: {limits.attention}. KV cache: {limits.num_blocks:,} blocks of {limits.block_size} tokens = "
        f"{tokens:,} tokens, {megabytes:,.0f} MB; {tokens / length:.1f} requests of {length:,} tokens fit."
    )
