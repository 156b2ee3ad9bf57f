"""What fails in a step of LLMEngine fails those requests alone that it fails for; the others' tokens stay the same."""

import random
from dataclasses import replace

import pytest
import torch

from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import GenerationError, RequestOutput
from shared.inference.sampling import SamplingParams
from tests.inference.small_engine import MODEL, SMALL, Hooked, alone, check_idle, drain, tokens
from tests.tiny import TINY, tiny_model

POISON = 96


@pytest.fixture(scope="module")
def poisoned_model():
    """A model that makes NaN of one token, and of everything that attends to it."""
    model = tiny_model(config=replace(TINY, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
        model.lm_head.weight[POISON] = 0.0  # and it never says it itself
    return model


@pytest.mark.parametrize("where", [0, 3, 4, 9])
def test_nan_fails_one_request_alone(poisoned_model, where, caplog):
    prompt = list(range(10, 20))
    sick = [*prompt[:where], POISON, *prompt[where:]]
    engine = LLMEngine(poisoned_model, **SMALL | {"num_blocks": 14})
    params = SamplingParams(max_tokens=12)
    others = [[1, 2, 3], prompt, [8] * 6]
    for round in range(3):  # the blocks it leaves are used again
        engine.add_request("sick", sick, params)
        for k, other in enumerate(others):
            engine.add_request(str(k), other, params)
        outputs = drain(engine)
        [failure] = outputs.pop("sick")
        assert isinstance(failure, GenerationError), round
        assert "not finite" in str(failure)
        assert [tokens(outputs[str(k)]) for k in range(3)] == [alone(p, params, poisoned_model) for p in others]
    assert "request sick failed" in caplog.text


@pytest.mark.parametrize("n", [1, 2])
def test_nan_left_behind_hurts_nobody(poisoned_model, n):
    """A prompt is read in pieces and aborted before its first token shows that it's sick. Its blocks go to others."""
    engine = LLMEngine(poisoned_model, **SMALL | {"num_blocks": 8})
    params = SamplingParams(max_tokens=9)
    for _ in range(3):
        engine.add_request("sick", [POISON] * 20, params)
        assert engine.step() == []
        engine.abort("sick")
        for k in range(n):
            engine.add_request(str(k), [k, k + 1], params)
        outputs = drain(engine)
        want = [alone([k, k + 1], params, poisoned_model) for k in range(n)]
        assert [tokens(outputs[str(k)]) for k in range(n)] == want


def test_a_model_that_raises_fails_those_it_raises_for():
    def refuse(ids):
        if 13 in ids[0].tolist():
            raise RuntimeError("unlucky")

    engine = LLMEngine(Hooked(refuse), **SMALL | {"num_blocks": 30})
    prompts = {"a": [1, 2], "unlucky": [5, 13, 6], "b": [3, 4, 5]}
    params = SamplingParams(max_tokens=6, n=2, temperature=1.0)
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params)
    outputs = drain(engine)
    assert [str(failure) for failure in outputs.pop("unlucky")] == ["RuntimeError: unlucky"]
    for name, got in outputs.items():
        for k in range(2):
            mine = [output for output in got if output.index == k]
            assert tokens(mine) == alone(prompts[name], replace(params, seed=k))


def test_a_failure_with_shared_blocks_copies_once():
    """n answers write their copies of one block in the step that fails: the second try must not undo the first."""
    turn = iter(range(1000))

    def refuse(ids):
        if next(turn) == 1:  # the step after the prompt, in which blocks are copied
            raise RuntimeError("once")

    engine = LLMEngine(Hooked(refuse), **SMALL | {"num_blocks": 30})
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0)
    answers = engine.generate([[1, 2, 3, 4, 5, 6]], params)
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5, 6], replace(params, seed=k)) for k in range(3)]


def test_a_copy_that_fails_is_made_again():
    engine = LLMEngine(MODEL, **SMALL | {"num_blocks": 30})
    copy, failures = engine.pool.copy_blocks, ["out of memory"]

    def fail_once(pairs):
        if pairs and failures:
            raise RuntimeError(failures.pop())
        copy(pairs)

    engine.pool.copy_blocks = fail_once
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0)
    answers = engine.generate([[1, 2, 3, 4, 5, 6]], params)
    assert [a.token_ids for a in answers] == [alone([1, 2, 3, 4, 5, 6], replace(params, seed=k)) for k in range(3)]
    assert not failures


class FailsLate(Hooked):
    """Computes and writes, and only then raises: in four of ten steps with several tokens."""

    def forward(self, ids, *args, **kwargs):
        logits = self.model(ids, *args, **kwargs)
        if ids.shape[1] > 1 and self.before(ids) < 0.4:
            raise RuntimeError("late")
        return logits


@pytest.mark.parametrize("seed", [87, 107, 111, 122, 123, 164, 176, 194])
def test_a_step_that_fails_after_writing(seed):
    """All are equally urgent. So a block that one was copied from can be another's in the same step, with new numbers
    in it by the time the step is tried again."""
    rng = random.Random(seed)
    engine = LLMEngine(
        FailsLate(lambda ids: rng.random()),
        **SMALL | {"num_blocks": rng.randint(6, 9), "max_num_seqs": 6, "max_num_batched_tokens": 40},
        clock=lambda: 0.0,
    )
    wanted = {}
    for k in range(3):
        prompt = [rng.randrange(90) for _ in range(rng.randint(2, 6))]
        wanted[str(k)] = prompt, SamplingParams(rng.randint(3, 10), n=rng.choice([1, 2, 3]), temperature=1.0, seed=k)
        engine.add_request(str(k), *wanted[str(k)])
    for name, outputs in drain(engine).items():
        prompt, params = wanted[name]
        for k in range(params.n):
            mine = [o for o in outputs if isinstance(o, RequestOutput) and o.index == k]
            want = alone(prompt, replace(params, seed=params.seed + k))
            assert tokens(mine) == (want if isinstance(outputs[-1], RequestOutput) else want[: len(mine)])


def test_generate_says_which_prompt_failed(poisoned_model):
    engine = LLMEngine(poisoned_model, **SMALL)
    with pytest.raises(GenerationError) as failure:
        engine.generate([[1], [2], [3, POISON]], SamplingParams(max_tokens=4))
    assert failure.value.__notes__ == ["while answering prompts[2]"]
    check_idle(engine)
