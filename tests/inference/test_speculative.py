"""Speculative decoding by look-up: the guesses, and an answer that is the plain loop's to the token."""

import random
from dataclasses import replace

import pytest

from shared.inference.generate import generate
from shared.inference.sampling import SamplingParams
from shared.inference.speculative import generate_with_lookup, propose
from tests.tiny import TINY, tiny_model

MODEL = tiny_model()


@pytest.mark.parametrize(
    ("tokens", "most", "want"),
    [
        ([7, 1, 2, 3, 9, 1, 2], 2, [3, 9]),
        ([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 8, [4, 9, 2, 3, 5, 1, 2, 3]),  # three tokens that agree beat two
        ([1, 2, 5, 1, 2, 6, 1, 2], 1, [6]),  # of several places the latest
        ([4, 4, 4], 8, [4]),  # it may overlap with itself
        ([1, 2, 3], 8, []),
        ([5], 8, []),
        ([5, 5], 0, []),
    ],
)
def test_propose(tokens, most, want):
    assert propose(tokens, most) == want


def test_the_answer_is_the_plain_loops():
    for seed in range(12):
        rng = random.Random(seed)
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 25),
            temperature=rng.choice([0.0, 0.5]),
            seed=seed,
            repetition_penalty=rng.choice([1.0, 1.2]),
            ignore_eos=rng.random() < 0.3,
        )
        want = list(generate(MODEL, prompt, params, eos_ids={7, 30}))
        pieces = list(generate_with_lookup(MODEL, prompt, params, eos_ids={7, 30}, most=rng.choice([0, 1, 8])))
        assert [token for piece in pieces for token in piece] == want
        assert all(pieces), "each pass gives a token at least"


def test_the_end_of_the_context():
    model = tiny_model(config=replace(TINY, max_position_embeddings=24))
    params = SamplingParams(max_tokens=100)
    pieces = list(generate_with_lookup(model, [1, 2, 1, 2, 1, 2], params))
    assert [t for piece in pieces for t in piece] == list(generate(model, [1, 2, 1, 2, 1, 2], params))


@pytest.mark.parametrize("params", [{"stop": ("x",)}, {"n": 2}, {"logprobs": 0}])
def test_what_generate_refuses_is_refused(params):
    with pytest.raises(ValueError, match="the engine's business"):
        next(generate_with_lookup(MODEL, [1], SamplingParams(**params)))


@pytest.mark.parametrize("most", [-1, 2.5])
def test_guesses_are_counted(most):
    with pytest.raises(ValueError, match="most must be a whole number"):
        next(generate_with_lookup(MODEL, [1], SamplingParams(), most=most))
