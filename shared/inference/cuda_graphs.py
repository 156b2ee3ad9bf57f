"""A decode step on a GPU as one recorded launch: the hundreds of kernels of a step, replayed without Python.

A small model's decode step takes a GPU less time than it takes Python to ask for it. A CUDA graph remembers the
launches, with the addresses they read and write. So every size of batch gets its own recording and its own inputs,
which each step fills in; a batch in between is filled up to the next size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shared.inference.attention import Chunk
from shared.inference.attention_singles import SinglesStep
from shared.inference.model_runner import ModelRunner
from shared.inference.paged_kv_cache import KVPool
from shared.inference.step import Step

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
INPUTS = ("positions", "slots", "blocks", "offsets", "tokens", "tables", "lengths")  # of a step, on the device

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


def record_cuda_graph(compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Record what `compute` launches. Returns a function that does it again, and the tensor its result is in."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once before: libraries set things up that must not be recorded
        compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compute()
    return graph.replay, result


@dataclass(frozen=True)
class Recording:
    """One size of batch: the tensors that each step fills in, the launches, and the place its logits come out at."""

    ids: Tensor  # [1, bucket]
    step: SinglesStep
    replay: Callable[[], None]
    logits: Tensor  # [1, bucket, vocab]


class GraphRunner(ModelRunner):
    """Replays steps in which every sequence computes one token; the others run as in ModelRunner.

    backend: one whose steps are SinglesSteps. max_blocks: the longest table of a sequence in a replayed step. Logits of
    a replayed step are good until the next: a recording has one place for them.
    """

    def __init__(
        self, model: Any, pool: KVPool, backend: Any, max_blocks: int, record: Record = record_cuda_graph
    ) -> None:
        super().__init__(model, pool, backend)
        self.max_blocks, self.record = max_blocks, record
        self.recordings: dict[int, Recording] = {}

    @torch.inference_mode()
    def run(self, step: Step) -> Tensor:
        """As ModelRunner's. The first step of a size is recorded, and takes longer."""
        n = len(step.scheduled)
        alike = all(count == 1 == sequence.num_missing for sequence, count in step.scheduled)
        longest = max(len(sequence.block_table) for sequence, _ in step.scheduled)
        if not alike or n > BUCKETS[-1] or longest > self.max_blocks:
            return super().run(step)
        self.pool.copy_blocks(step.copies)
        bucket = next(size for size in BUCKETS if size >= n)
        sequences = [sequence for sequence, _ in step.scheduled]
        sequences += [sequences[0]] * (bucket - n)  # the first one again: it writes the same numbers to the same place
        ids = torch.tensor([[sequence.token_ids[-1] for sequence in sequences]], device=self.pool.keys.device)
        chunks = [Chunk(s.num_computed_tokens, 1, s.block_table) for s in sequences]
        room = [0] * self.max_blocks
        chunks[0] = replace(chunks[0], block_table=[*chunks[0].block_table, *room][: self.max_blocks])
        now = self.backend.begin(self.pool, chunks)  # one table is as long as can be, so all are filled up to that
        if bucket not in self.recordings:
            rows = torch.arange(bucket, device=ids.device)
            replay, logits = self.record(lambda: self.model(ids, now.layers, positions=now.positions, rows=rows))
            self.recordings[bucket] = Recording(ids, now, replay, logits)
        recording = self.recordings[bucket]
        recording.ids.copy_(ids)
        for name in INPUTS:
            getattr(recording.step, name).copy_(getattr(now, name))
        recording.replay()
        return recording.logits[0, :n]


def make_runner(model: Any, pool: KVPool, backend: Any, max_model_len: int) -> ModelRunner:
    """The runner that suits a backend: steps of the Triton kernel can be recorded, so they are."""
    if backend.name == "triton":
        return GraphRunner(model, pool, backend, max_blocks=-(-max_model_len // pool.block_size))
    return ModelRunner(model, pool, backend)
