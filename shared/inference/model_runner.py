"""From a step of the scheduler to logits: the step's tokens as one flat batch, once through the model."""

from typing import Any

import torch
from torch import Tensor

from shared.inference.attention import Chunk
from shared.inference.native_weights import with_native_weights
from shared.inference.paged_kv_cache import KVPool
from shared.inference.step import Step
from shared.model.transformer import Transformer


class ModelRunner:
    """Runs a model over a pool. It remembers nothing between steps: what a request has computed lies in its blocks.

    model: anything that is called like `Transformer`. With the native backend its products run on native kernels too.
    """

    def __init__(self, model: Any, pool: KVPool, backend: Any) -> None:
        self.model, self.pool, self.backend = model, pool, backend
        if backend.name == "native" and isinstance(model, Transformer):
            self.model = with_native_weights(model, backend.kernels)

    @torch.inference_mode()
    def run(self, step: Step) -> Tensor:
        """Compute the step's tokens, and store their keys and values.

        Returns logits [n, vocab]: a row for each scheduled sequence that has nothing missing after the step, in their
        order. Several chunks and single tokens go through the linear layers together, so that a step in which one
        prompt is read and thirty answers go on is one product of many rows, and not thirty-one of few.
        """
        self.pool.copy_blocks(step.copies)
        ids: list[int] = []
        chunks, rows = [], []
        for sequence, n in step.scheduled:
            start = sequence.num_computed_tokens
            ids += sequence.token_ids[start : start + n]
            chunks.append(Chunk(start, n, sequence.block_table))
            if n == sequence.num_missing:
                rows.append(len(ids) - 1)  # its last token: nothing else of the head is wanted
        attention = self.backend.begin(self.pool, chunks)
        device = self.pool.keys.device
        logits: Tensor = self.model(
            torch.tensor([ids], device=device),
            attention.layers,
            positions=attention.positions,
            rows=torch.tensor(rows, dtype=torch.long, device=device),
        )
        return logits[0]  # [n, vocab]
