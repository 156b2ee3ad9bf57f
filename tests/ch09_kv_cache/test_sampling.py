"""Exercise 9.6: judged by where the parts of the stretch from 0 to 1 begin and end, and by draws that must agree."""

import math
import random

import numpy as np
import pytest
import torch

from chapters.ch09_kv_cache import sampling
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from shared.inference.sampling import uniform
from tests.ch09_kv_cache.words import expect_kind

LOGITS = torch.tensor([0.2, 0.5, 0.3]).log()
PARTS = "with probabilities 0.2, 0.5 and 0.3 token 0 has the part from 0 to 0.2, token 1 up to 0.7, token 2 the rest"
SEED = "(seed, position) alone decides the draw: uniform(params.seed, position)"


def hot(**changes) -> sampling.SamplingParams:
    return sampling.SamplingParams(**({"temperature": 1.0} | changes))


def sample(logits, params, position=3, token_ids=(), because=PARTS) -> int:
    with crash_means(because):
        got = sampling.sample(logits, params, position, token_ids)
    expect_kind(got, object, "a token's id, an int")
    kind = type(got).__name__
    expect(type(got) is int, because=f"a token is a plain int, and this is a {kind}: int(...) around what torch gives")
    return got


def at(monkeypatch, draw: float) -> list[tuple[int, int]]:
    """Let every draw be this number; returns what it is asked for."""
    asked = []

    def fixed(seed: int, position: int) -> float:
        asked.append((seed, position))
        return draw

    monkeypatch.setattr(sampling, "uniform", fixed)
    return asked


@exercise("9.6")
def test_greedy():
    logits = torch.tensor([0.1, 2.0, -1.0, 1.9])
    for params in (sampling.SamplingParams(seed=5), hot(top_k=1, seed=5)):
        got = [sample(logits, params, position, because="greedy is the largest logit") for position in range(10)]
        expect_equal(
            got, [1] * 10, because="temperature 0, or top_k 1, is greedy: the largest logit, at every position"
        )


@exercise("9.6")
def test_greedy_needs_no_distribution(monkeypatch):
    asked = at(monkeypatch, 0.5)
    monkeypatch.setattr(
        sampling, "candidates", lambda *_: asked.append("candidates") or (torch.tensor([1]), torch.ones(1))
    )
    sample(torch.tensor([0.0, 2.0]), sampling.SamplingParams())
    expect_equal(
        asked,
        [],
        because="greedy needs neither a distribution over the whole vocabulary nor a draw: the argmax, first of all. "
        "Most requests of a busy server are greedy",
    )


@exercise("9.6")
def test_the_draw_is_that_of_seed_and_position(monkeypatch):
    asked = at(monkeypatch, 0.5)
    sample(LOGITS, hot(seed=7), position=42)
    expect(
        bool(asked),
        because="uniform was never asked: torch's and Python's generators have a state that everything else in the "
        f"process changes. {SEED}",
    )
    expect_equal(
        asked,
        [(7, 42)],
        because=f"{SEED}, once, with these two as they are. Added up, seed 7 at position 42 would be seed 8 at 41; and "
        "the position counts from the start of the sequence, as the caller gives it",
    )


DRAWS = (0.1, 0.19, 0.21, 0.45, 0.69, 0.71, 0.99)
TOKENS = [0, 0, 1, 1, 1, 2, 2]
MIRRORED = {
    "these are the parts of 1 - draw: the stretch was walked from its other end. ": [2, 2, 2, 1, 1, 1, 0],
    "sorted by probability, downwards: then two tokens that are nearly equally likely would swap their parts with the "
    "last digit of a logit. In the order of the ids. ": [1, 1, 1, 1, 2, 2, 0],
    "sorted by probability, upwards: then two tokens that are nearly equally likely would swap their parts with the "
    "last digit of a logit. In the order of the ids. ": [0, 0, 2, 2, 1, 1, 1],
}


@exercise("9.6")
def test_the_parts(monkeypatch):
    got = []
    for draw in DRAWS:
        at(monkeypatch, draw)
        got.append(sample(LOGITS, hot()))
    cause = next((cause for cause, tokens in MIRRORED.items() if got == tokens), "")
    expect_equal(got, TOKENS, because=f"the tokens for draws of {', '.join(map(str, DRAWS))}. {cause}{PARTS}")


@exercise("9.6")
def test_a_part_begins_with_its_left_end(monkeypatch):
    """Powers of two, so that sums are exact."""
    logits = torch.tensor([-torch.inf, 0.25, 0.25, 0.5, -torch.inf])
    logits[1:4] = logits[1:4].log()
    for draw, want in ((0.0, 1), (0.25, 2), (0.5, 3)):
        at(monkeypatch, draw)
        because = (
            f"a draw of exactly {draw} is the left end of token {want}'s part. The first whose cumulative sum is "
            "*above* the draw: searchsorted(..., right=True). Otherwise a draw of 0 gives a token that can't be chosen"
        )
        expect_equal(sample(logits, hot(), because=because), want, because=because)


@exercise("9.6")
def test_rounding_leaves_no_gap_at_the_end(monkeypatch):
    """The sum may be below 1, here much more than by rounding."""
    monkeypatch.setattr(sampling, "candidates", lambda *_: (torch.tensor([4, 9]), torch.tensor([0.4, 0.4])))
    for draw, want in ((0.95, 9), (0.55, 9), (0.45, 4)):
        at(monkeypatch, draw)
        because = (
            f"the probabilities sum to 0.8 (as rounding may have it, only less so), and a draw of {draw} fell in the "
            "wrong part, or behind the last one: multiply the draw by the last cumulative sum"
        )
        got = sample(torch.zeros(10), hot(), because=because)
        expect(got in (4, 9), because="that is a place among the candidates: the token is ids[place]")
        expect_equal(got, want, because=because)


@exercise("9.6")
def test_sums_in_float64(monkeypatch):
    monkeypatch.setattr(
        sampling,
        "candidates",
        lambda *_: (torch.tensor([4, 6, 9]), torch.tensor([0.5, 1e-10, 0.5 - 1e-10], dtype=torch.float64)),
    )
    at(monkeypatch, 0.5 + 0.5e-10)
    because = "a part that is 1e-10 wide: float32 hasn't the digits for its edges. Add up in the probabilities' float64"
    expect_equal(sample(torch.zeros(10), hot()), 6, because=because)


@exercise("9.6")
def test_the_token_and_not_its_place(monkeypatch):
    at(monkeypatch, 0.9)
    got = sample(torch.tensor([0.0, 5.0, 1.0, 5.0, 1.0]), hot(top_k=2))
    expect_equal(
        got, 3, because="of five tokens two are candidates, ids 1 and 3. The draw chose the second: that is token 3"
    )


@exercise("9.6")
def test_the_penalty():
    logits = torch.tensor([2.0, 1.9, -5.0])
    got = sample(logits, sampling.SamplingParams(repetition_penalty=1.5), token_ids=[0, 0, 2])
    expect_equal(
        got,
        1,
        because="token 0 was there, and 2 / 1.5 is less than 1.9: the penalty comes before the greedy choice too, and "
        "gets token_ids",
    )
    params = hot(repetition_penalty=1.5, seed=1)
    draws = [sample(logits, params, position, [0, 0, 2]) for position in range(400)]
    weights = np.exp([2.0 / 1.5, 1.9, -7.5])
    expect_close(
        draws.count(0) / 400,
        weights[0] / weights.sum(),
        atol=0.08,
        rtol=0,
        because="the penalty changes the distribution that is drawn from, not only the greedy choice",
    )
    at_one = sample(torch.tensor([2.0, 1.9]), sampling.SamplingParams(), token_ids=[0])
    expect_equal(at_one, 0, because="a repetition penalty of 1 changes nothing")


@exercise("9.6")
def test_the_penalty_comes_before_the_filters():
    logits = torch.tensor([2.0, 1.9, 1.8])
    got = {sample(logits, hot(top_k=2, repetition_penalty=2.0), i, [0]) for i in range(40)}
    expect_equal(
        sorted(got),
        [1, 2],
        because="penalised, token 0 has a logit of 1, and the two largest are 1 and 2: the penalty comes before "
        "candidates(), which chooses by what it is given",
    )
    favoured = sample(torch.tensor([1.9, 2.0]), sampling.SamplingParams(repetition_penalty=0.7), token_ids=[0])
    expect_equal(favoured, 0, because="1.9 / 0.7 is more than 2: a penalty below 1 is one, too")


@exercise("9.6")
def test_generators_are_left_alone():
    torch.manual_seed(123)
    random.seed(123)
    before = torch.initial_seed(), torch.get_rng_state().tolist(), random.getstate()
    sample(LOGITS, hot(seed=7))
    expect(
        (torch.initial_seed(), torch.get_rng_state().tolist(), random.getstate()) == before,
        because="sample has seeded, or used, a generator of the whole process: other requests draw from it. " + SEED,
    )


@exercise("9.6")
def test_nothing_else_decides():
    """The same draws in any order, whatever other generators do, as an engine that batches and restarts needs it."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0))
    first = [sample(logits, hot(seed=7), i) for i in range(30)]
    torch.manual_seed(1)
    random.seed(1)
    backwards = [sample(logits, hot(seed=7), i) for i in reversed(range(30))][::-1]
    expect_equal(backwards, first, because=f"the same positions in another order gave other tokens: {SEED}")
    expect(
        len(set(first)) > 10, because="every position has the same draw: the position is part of it, not the seed alone"
    )
    other = [sample(logits, hot(seed=8), i) for i in range(30)]
    expect(other != first, because="two seeds gave the same 30 tokens: the seed is part of the draw")
    expect(
        other[:-1] != first[1:], because="seed 8 draws what seed 7 draws one place later: don't add the two, give both"
    )


@exercise("9.6")
def test_exact_draws():
    """Position by position, what plain Python makes of the same numbers."""
    rng = random.Random(3)
    logits = [rng.gauss(0, 2) for _ in range(50)]
    weights = np.exp(np.array(logits) / 0.8)
    edges = np.cumsum(weights / weights.sum())
    for position in range(60):
        want = int(np.searchsorted(edges, uniform(11, position), side="right"))
        got = sample(torch.tensor(logits, dtype=torch.float64), hot(temperature=0.8, seed=11), position)
        expect_equal(got, want, because=f"position {position}: the draw uniform(11, {position}) falls in another part")


def plainly(logits: list[float], params: sampling.SamplingParams, seen: set[int], draw: float) -> int:
    """The whole way from logits to a token, in plain Python, step by step as it is told."""
    penalty = params.repetition_penalty
    logits = [(x / penalty if x > 0 else x * penalty) if i in seen else x for i, x in enumerate(logits)]
    ranked = sorted(range(len(logits)), key=lambda i: -logits[i])[: params.top_k or len(logits)]
    weights = {i: math.exp((logits[i] - max(logits)) / params.temperature) for i in ranked}
    total, kept, mass = math.fsum(weights.values()), [], 0.0
    for i in ranked:
        kept.append(i)
        mass += weights[i] / total
        if mass >= params.top_p:
            break
    kept = sorted(i for i in kept if weights[i] >= params.min_p * weights[ranked[0]])
    edges = np.cumsum([weights[i] for i in kept])
    return kept[int(np.searchsorted(edges, draw * edges[-1], side="right"))]


@exercise("9.6")
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.2},
        {"temperature": 1.2, "top_k": 5},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 4.0, "top_p": 0.25},
        {"temperature": 1.1, "min_p": 0.1},
        {"temperature": 1.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "top_k": 8, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 0.7},
    ],
    ids=str,
)
def test_exact_draws_with_settings(settings):
    rng = random.Random(5)
    logits = [rng.gauss(0, 2) for _ in range(30)]
    params, seen = hot(**settings, seed=11), [3, 8, 8, 21, *range(10)]
    for position in range(40):
        want = plainly(logits, params, set(seen), uniform(11, position))
        got = sample(torch.tensor(logits, dtype=torch.float64), params, position, seen)
        because = f"{settings}, position {position}: each setting is taken as it is; penalty, greedy?, candidates, draw"
        expect_equal(got, want, because=because)
