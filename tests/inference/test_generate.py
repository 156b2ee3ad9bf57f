"""The cached loop against the naive one, which computes the whole sequence for every token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.inference import generate as loop
from shared.inference.generate import generate
from shared.inference.sampling import SamplingParams, sample
from tests.tiny import TINY, tiny_model

PROMPT = [5, 17, 80, 3, 3, 41, 9]
EOS = 96


class Scripted(nn.Module):
    """Answers with `script`, and then EOS for ever."""

    def __init__(self, script: list[int], context: int = 200) -> None:
        super().__init__()
        self.config = replace(TINY, max_position_embeddings=context)
        self.weight = nn.Parameter(torch.zeros(1))
        self.script, self.steps = script, 0

    def forward(self, ids: Tensor, caches: list, last_only: bool) -> Tensor:
        nothing = torch.zeros(1, self.config.num_key_value_heads, ids.shape[1], self.config.head_dim)
        for cache in caches:
            cache.update(nothing, nothing)
        logits = torch.zeros(1, 1, self.config.vocab_size)
        logits[0, 0, self.script[self.steps] if self.steps < len(self.script) else EOS] = 100.0
        self.steps += 1
        return logits


@torch.inference_mode()
def naive(model, prompt, params):
    ids = list(prompt)
    for position in range(len(prompt), len(prompt) + params.max_tokens):
        ids.append(sample(model(torch.tensor([ids]))[0, -1], params, position, ids))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=20),
        SamplingParams(20, 1.0, 30, 0.95, seed=3),
        SamplingParams(20, repetition_penalty=1.3),
    ],
)
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_cached_equals_naive(monkeypatch, params, chunk):
    monkeypatch.setattr(loop, "PREFILL_CHUNK", chunk)  # a prompt shorter than a piece, a multiple of it, and neither
    model = tiny_model()
    for length in (1, 6, 7):
        assert list(generate(model, PROMPT[:length], params)) == naive(model, PROMPT[:length], params)


def test_every_token_is_computed_once():
    computed = []

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.config = tiny_model(), TINY

        def forward(self, ids, caches, last_only):
            computed.append(ids.shape[1])
            return self.inner(ids, caches, last_only)

    assert len(list(generate(Counting(), PROMPT, SamplingParams(max_tokens=5)))) == 5
    assert computed == [7, 1, 1, 1, 1]  # the last token is chosen, and never fed back


def test_resuming_gives_the_same_draws():
    """The answer so far, handed in as part of the prompt, goes on as if there had been no break."""
    model, params = tiny_model(), SamplingParams(max_tokens=20, temperature=1.2, seed=11)
    whole = list(generate(model, PROMPT, params))
    rest = list(generate(model, PROMPT + whole[:8], SamplingParams(max_tokens=12, temperature=1.2, seed=11)))
    assert whole[8:] == rest


def test_end_of_sequence():
    model = Scripted([7, 8])
    assert list(generate(model, [1, 2], SamplingParams(max_tokens=9), {EOS})) == [7, 8, EOS]
    assert list(generate(Scripted([7, 8]), [1, 2], SamplingParams(max_tokens=2), {EOS})) == [7, 8]
    ignoring = SamplingParams(max_tokens=5, ignore_eos=True)
    assert list(generate(Scripted([7, 8]), [1, 2], ignoring, {EOS})) == [7, 8, EOS, EOS, EOS]


def test_the_context_ends_the_answer():
    model = Scripted([65] * 100, context=20)
    assert len(list(generate(model, [1] * 15, SamplingParams(max_tokens=50)))) == 5
    assert len(list(generate(model, [1] * 19, SamplingParams(max_tokens=50)))) == 1


def test_prompts_that_cannot_be_served():
    model = Scripted([1], context=20)
    bad = (
        ([], "empty"),
        ([1] * 20, "context is 20"),
        ([0, 97], "outside 0 to 96: 97 at place 1"),
        ([-1], "outside 0 to 96: -1 at place 0"),
        ([5, 6.0], "outside 0 to 96: 6.0 at place 1"),
        ([True], "outside 0 to 96: True at place 0"),
        ("text", "list of token ids, not str"),
        (b"text", "list of token ids, not bytes"),
        (torch.tensor([1, 2]), "list of token ids, not Tensor"),
        (np.array([1, 2]), "list of token ids, not ndarray"),
        (None, "list of token ids, not NoneType"),
    )
    for prompt, message in bad:
        with pytest.raises(ValueError, match=message):
            next(generate(model, prompt, SamplingParams()))
    for unheeded in (SamplingParams(stop=("x",)), SamplingParams(n=2), SamplingParams(logprobs=0)):
        with pytest.raises(ValueError, match="stop texts, n and logprobs"):
            next(generate(model, [1], unheeded))
    with pytest.raises(ValueError, match="eos_ids must be a set or list of token ids, not 2"):
        next(generate(model, [1], SamplingParams(), 2))
    assert model.steps == 0


def test_cancelled_is_asked_before_every_step(monkeypatch):
    monkeypatch.setattr(loop, "PREFILL_CHUNK", 4)
    model, asked = tiny_model(), []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) == 6

    tokens = list(generate(model, list(range(10)), SamplingParams(max_tokens=50), cancelled=cancelled))
    assert len(tokens) == 3  # three pieces of the prompt, then two more steps


def test_inference_mode_does_not_leak_to_the_caller():
    for _ in generate(tiny_model(), PROMPT, SamplingParams(max_tokens=3)):
        assert not torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


def test_two_requests_may_be_interleaved():
    """Nothing of a request is kept in the model."""
    model, params = tiny_model(), SamplingParams(max_tokens=12)
    other = PROMPT[::-1]
    alone = list(generate(model, PROMPT, params)), list(generate(model, other, params))
    together = list(zip(generate(model, PROMPT, params), generate(model, other, params), strict=True))
    assert tuple(map(list, zip(*together, strict=True))) == alone


@pytest.mark.real
def test_cached_equals_naive_on_the_real_model(real_model, tokenizer):
    prompt, params = tokenizer.encode("The sky is blue because"), SamplingParams(max_tokens=5)
    assert list(generate(real_model, prompt, params)) == naive(real_model, prompt, params)
