"""The Triton kernel against the reference: on a GPU as it is, elsewhere by Triton's interpreter, where there is one."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from shared.inference.attention import BackendUnavailable, Chunk, make_backend
from shared.inference.attention_gather import GatherBackend
from shared.inference.paged_kv_cache import KVPool
from tests.tiny import TINY

CONFIG = replace(TINY, num_attention_heads=9, num_key_value_heads=3, head_dim=16)  # three heads to a key
BLOCK = 4
CHUNKS = [Chunk(0, 1, [7]), Chunk(3, 1, [2]), Chunk(4, 1, [5, 9]), Chunk(12, 1, [1, 3, 4, 6]), Chunk(2, 6, [0, 8])]


def difference(device: str) -> float:
    """The largest difference from the reference, over a step of single tokens and a piece of a prompt."""
    from shared.inference.attention_triton import TritonStep

    generator = torch.Generator().manual_seed(0)
    tokens = sum(chunk.n for chunk in CHUNKS)
    q, k, v = (torch.randn(1, tokens, heads, 16, generator=generator).transpose(1, 2).to(device) for heads in (9, 3, 3))
    outs = []
    for name in ("reference", "triton"):
        pool = KVPool(CONFIG, 10, BLOCK, device=device)
        pool.keys.copy_(torch.randn(pool.keys.shape, generator=torch.Generator().manual_seed(1)))
        pool.values.copy_(torch.randn(pool.values.shape, generator=torch.Generator().manual_seed(2)))
        if name == "triton":  # TritonBackend itself insists on a GPU
            step = TritonStep(GatherBackend(CONFIG, BLOCK, torch.float32, device), pool, CHUNKS)
        else:
            step = make_backend(name, CONFIG, BLOCK, torch.float32, device).begin(pool, CHUNKS)
        outs.append(step.layers[1].attend(q, k, v, 0.25))
    return float((outs[0] - outs[1]).abs().max())


@pytest.mark.gpu
def test_on_the_gpu():
    assert difference("cuda") < 1e-5
    make_backend("triton", CONFIG, BLOCK, torch.bfloat16, "cuda")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton isn't installed; it comes with CUDA")
def test_by_the_interpreter():
    code = "from tests.inference.test_triton import difference; assert difference('cpu') < 1e-5"
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([".", *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_a_gpu_it_says_so():
    with pytest.raises(BackendUnavailable, match="CUDA device"):
        make_backend("triton", CONFIG, BLOCK, torch.float32, "cpu")
