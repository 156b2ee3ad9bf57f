"""Static batches: the same tokens as one request at a time, exactly, on a tiny float64 model; and on the real one."""

import dataclasses
import random

import pytest
import torch

from shared.inference.generate import generate
from shared.inference.sampling import SamplingParams
from shared.inference.static_batch import answers, batch_layout, run_batch, static_batch
from shared.model.int8 import quantize_int8
from tests.tiny import TINY, tiny_model

MODEL = tiny_model()
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(97) for _ in range(n)] for n in (1, 17, 5, 30, 5, 2, 11)]


def alone(prompts, params, model=MODEL, eos_ids=frozenset()):
    return [list(generate(model, p, one, eos_ids)) for p, one in zip(prompts, params, strict=True)]


def gathered(found, n):
    lists = [[] for _ in range(n)]
    for k, token in found:
        lists[k].append(token)
    return lists


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_the_tokens_of_one_at_a_time(batch_size, sort):
    params = [SamplingParams(max_tokens=n) for n in (9, 1, 4, 12, 4, 7, 2)]
    got = gathered(static_batch(MODEL, PROMPTS, params, batch_size, sort), len(PROMPTS))
    assert got == alone(PROMPTS, params)


def test_sampled_tokens_and_end_tokens():
    params = [SamplingParams(max_tokens=12, temperature=1.3, top_k=20, seed=s, ignore_eos=s == 3) for s in range(7)]
    eos_ids = frozenset(range(0, 97, 7))
    want = alone(PROMPTS, params, eos_ids=eos_ids)
    assert any(len(one) < 12 for one in want)
    assert answers(MODEL, PROMPTS, params, eos_ids) == want


def test_one_params_for_all():
    params = SamplingParams(max_tokens=3)
    assert answers(MODEL, PROMPTS[:2], params) == alone(PROMPTS[:2], [params] * 2)


def test_prompts_that_are_read_in_pieces_and_the_end_of_the_context():
    model = tiny_model(config=dataclasses.replace(TINY, max_position_embeddings=320, num_hidden_layers=2))
    rng = random.Random(1)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (313, 10, 260)]
    params = [SamplingParams(max_tokens=20)] * 3
    want = alone(prompts, params, model)
    assert list(map(len, want)) == [7, 20, 20]  # the first one ends with the context, the others' columns go beyond it
    assert answers(model, prompts, params) == want


def test_tokens_come_as_they_are_chosen():
    """Both rows' first tokens are here after the prompts were read, and no step was computed."""
    calls = []

    class Counting:
        config, parameters = MODEL.config, MODEL.parameters

        def __call__(self, *given, **named):
            calls.append(given[0].shape)
            return MODEL(*given, **named)

    found = run_batch(Counting(), PROMPTS[:2], SamplingParams(max_tokens=3))
    assert [next(found)[0], next(found)[0]] == [0, 1]
    assert calls == [(2, 17)]
    assert len(list(found)) == 4
    assert calls == [
        (2, 17),
        (2, 1),
        (2, 1),
    ]  # three tokens for each, two steps; an ended row would be fed all the same


def test_nothing_to_do():
    assert list(static_batch(MODEL, [], SamplingParams())) == []
    assert answers(MODEL, [], []) == []


@pytest.mark.parametrize(
    ("prompts", "params", "word"),
    [
        ([[1], []], SamplingParams(), "empty"),
        ([[1], [97]], SamplingParams(), "outside"),
        ([[1], [2] * 256], SamplingParams(), "context"),
        ([[1]], SamplingParams(stop=("x",)), "stop"),
        ([[1]], SamplingParams(n=2), "n:"),
        ([[1]], SamplingParams(logprobs=1), "logprobs"),
        ([[1], [2]], [SamplingParams()], "1 params for 2 prompts"),
        ([[1], [2]], [SamplingParams(), None], "params must be"),
        ([[1]], None, "params must be"),
        ([1, 2], SamplingParams(), "a list of token ids"),
        ([[1.5]], SamplingParams(), "outside"),
    ],
)
def test_what_is_refused(prompts, params, word):
    with pytest.raises(ValueError, match=word):
        next(static_batch(MODEL, prompts, params))


def counting(calls):
    """The tiny model, which counts its calls."""

    class Counting:
        config, parameters = MODEL.config, MODEL.parameters

        def __call__(self, *given, **named):
            calls.append(given[0].shape)
            return MODEL(*given, **named)

    return Counting()


def test_end_tokens_that_are_no_collection():
    with pytest.raises(ValueError, match="eos_ids"):
        next(static_batch(MODEL, [[1]], SamplingParams(), eos_ids=3))


def test_what_is_wrong_in_the_last_batch_is_refused_before_the_first():
    calls = []
    with pytest.raises(ValueError, match="outside"):
        next(static_batch(counting(calls), [[1], [2], [97]], SamplingParams(), batch_size=1, sort=False))
    assert calls == []


def test_a_batch_that_is_cancelled_ends_before_its_next_step():
    """After three steps, of 20: what was chosen by then stays, and no later batch begins."""
    params, calls = SamplingParams(max_tokens=20), []
    found = answers(counting(calls), PROMPTS[:2], params, cancelled=lambda: len(calls) == 3)
    assert found == [one[:3] for one in alone(PROMPTS[:2], [params] * 2)]
    assert len(calls) == 3
    calls.clear()
    got = list(static_batch(counting(calls), PROMPTS[:3], params, 1, cancelled=lambda: len(calls) >= 3))
    assert [k for k, _ in got] == [0, 0, 0]
    assert answers(counting(calls), PROMPTS[:2], params, cancelled=lambda: True) == [[], []]
    assert len(calls) == 3


def test_a_batch_size_below_one():
    with pytest.raises(ValueError, match="batch_size"):
        next(static_batch(MODEL, [[1]], SamplingParams(), batch_size=0))


def test_sorting_saves_steps():
    """Rows that end together: unsorted, each batch stays for its longest answer."""

    def steps(sort):
        count = 0

        class Counting:
            config, parameters = MODEL.config, MODEL.parameters

            def __call__(self, *given, **named):
                nonlocal count
                count += 1
                return MODEL(*given, **named)

        params = [SamplingParams(max_tokens=n) for n in (1, 10, 1, 10)]
        list(static_batch(Counting(), PROMPTS[:4], params, batch_size=2, sort=sort))
        return count

    assert (steps(True), steps(False)) == (1 + 10, 10 + 10)


def test_padding_is_a_mask_and_not_an_id():
    """Whatever stands in the padding, and even nan in its logits, changes nothing."""
    real = torch.tensor([[False, False, True], [True, True, True]])
    positions, mask = batch_layout(real)
    outputs = [
        MODEL(torch.tensor([[a, b, 7], [1, 2, 3]]), positions=positions, mask=mask) for a, b in ((0, 0), (9, 96))
    ]
    assert torch.equal(outputs[0][0, 2], outputs[1][0, 2])
    assert not outputs[0].isnan().any()


def test_an_int8_model():
    int8 = quantize_int8(tiny_model(dtype=torch.float32))
    params = [SamplingParams(max_tokens=n) for n in (9, 1, 4, 12, 4, 7, 2)]
    assert answers(int8, PROMPTS, params) == alone(PROMPTS, params, int8)


@pytest.mark.real
def test_the_real_model(real_model, tokenizer):
    texts = ("The capital of France is", "One, two, three, four, five,", "Water")
    prompts = [tokenizer.encode(text) for text in texts]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 4, 3)]
    assert answers(real_model, prompts, params) == alone(prompts, params, real_model)
