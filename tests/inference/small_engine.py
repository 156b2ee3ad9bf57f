"""A small LLMEngine to be judged: what a request gets alone, a way to its end, and that nothing is left behind."""

from dataclasses import replace

from torch import nn

from shared.inference.generate import generate
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError, RequestOutput
from shared.inference.sampling import SamplingParams
from tests.tiny import tiny_model

MODEL = tiny_model()
SMALL = {"block_size": 4, "num_blocks": 16, "max_num_seqs": 4, "max_num_batched_tokens": 9, "attention": "gather"}


def alone(prompt: list[int], params: SamplingParams, model=MODEL, eos_ids=frozenset()) -> list[int]:
    return list(generate(model, prompt, replace(params, n=1, logprobs=None, stop=()), eos_ids))


def drain(engine: LLMEngine) -> dict[str, list[RequestOutput | GenerationError]]:
    """Step until nothing is left: all outputs, by request."""
    outputs: dict[str, list] = {}
    for _ in range(1000):
        if not engine.has_unfinished:
            check_idle(engine)
            return outputs
        for request_id, output in engine.step():
            outputs.setdefault(request_id, []).append(output)
    raise AssertionError("no end")


def check_idle(engine: LLMEngine) -> None:
    assert engine.blocks.num_free == engine.blocks.num_blocks, "blocks leaked"
    engine.blocks.check([])
    assert not engine.scheduler.running
    assert engine.scheduler.num_waiting == 0


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


class Hooked(nn.Module):
    """The tiny model; `before` is called in each pass with the ids, and may abort requests, or raise."""

    def __init__(self, before, model=MODEL) -> None:
        super().__init__()
        self.model, self.config, self.before = model, model.config, before

    def forward(self, ids, *args, **kwargs):
        self.before(ids)
        return self.model(ids, *args, **kwargs)
