"""Replayed steps against ordinary ones: the buckets and inputs on the CPU, with a recording that isn't one; the graph
itself on a GPU."""

import pytest
import torch

from shared.inference.block_manager import BlockManager
from shared.inference.cuda_graphs import GraphRunner, record_cuda_graph
from shared.inference.model_runner import ModelRunner
from shared.inference.native import NativeUnavailable, load
from shared.inference.paged_kv_cache import KVPool
from shared.inference.sampling import SamplingParams
from shared.inference.scheduler import Scheduler
from shared.inference.sequence import Sequence
from tests.tiny import TINY, tiny_model


def record_a_call(compute):
    """What a CUDA graph does, without one: the same inputs, read anew, and the same place for the result."""
    result = compute().clone()
    return (lambda: result.copy_(compute())), result


def run(make_runner, backend_name, device="cpu", dtype=torch.float32, n_tokens=12):
    """Seven prompts whose answers have different lengths, so that the batch shrinks from bucket to bucket."""
    from shared.inference.attention import make_backend

    model = tiny_model(dtype=dtype).to(device)
    pool = KVPool(TINY, 64, 4, dtype, device)
    runner = make_runner(model, pool, make_backend(backend_name, TINY, 4, dtype, device))
    scheduler = Scheduler(BlockManager(64, 4), max_num_seqs=8, max_num_batched_tokens=16)
    sequences = [
        Sequence(str(i), [(i * 7 + k) % 97 for k in range(3 + i)], SamplingParams(max_tokens=n_tokens - i))
        for i in range(7)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.running or scheduler.num_waiting:
        step = scheduler.schedule()
        ready = [s for s, n in step.scheduled if n == s.num_missing]
        tokens = runner.run(step).argmax(dim=-1).tolist()
        scheduler.update(step, dict(zip(ready, tokens, strict=True)))
        for sequence in ready:
            if sequence.num_output_tokens == sequence.params.max_tokens:
                scheduler.finish(sequence)
    return [sequence.output_ids for sequence in sequences], runner


def test_replayed_steps_give_the_same_tokens():
    try:
        load(8, 4)
    except NativeUnavailable as why:
        pytest.skip(str(why))
    want, _ = run(ModelRunner, "gather")
    got, runner = run(lambda *parts: GraphRunner(*parts, max_blocks=16, record=record_a_call), "native")
    assert got == want
    assert set(runner.recordings) == {1, 2, 4, 8}  # seven, six and five go into eight, three into four


def test_tables_longer_than_what_was_recorded_run_as_ever():
    try:
        load(8, 4)
    except NativeUnavailable as why:
        pytest.skip(str(why))
    want, _ = run(ModelRunner, "native")
    got, runner = run(lambda *parts: GraphRunner(*parts, max_blocks=3, record=record_a_call), "native")
    assert got == want
    assert runner.recordings


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton"])
def test_a_recorded_graph_gives_the_same_tokens(backend):
    want, _ = run(ModelRunner, "gather", "cuda")
    got, runner = run(lambda *parts: GraphRunner(*parts, max_blocks=16, record=record_cuda_graph), backend, "cuda")
    assert got == want
    assert runner.recordings
