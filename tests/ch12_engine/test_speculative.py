"""Exercise 12.10: judged by the plain loop, in float64, whose answer speculation must not change by a token."""

import random

import torch

from chapters.ch12_engine import speculative
from chapters.judge import exercise, expect, expect_equal, no_result
from shared.inference.generate import generate
from shared.inference.kv_cache import new_caches
from shared.inference.sampling import SamplingParams
from tests.ch12_engine.scenes import survives
from tests.tiny import TINY, tiny_model

MODEL = tiny_model()
GREEDY = SamplingParams(max_tokens=12)
PROMPT = [5, 9, 2, 44, 17]


class Counting:
    """The model, and how many passes it made."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def parameters(self):
        return MODEL.parameters()

    def __call__(self, ids, caches, *args, **kwargs):
        self.passes.append(ids.shape[1])
        return MODEL(ids, caches, *args, **kwargs)


def plain(params: SamplingParams = GREEDY) -> list[int]:
    return list(generate(MODEL, PROMPT, params))


@torch.inference_mode()
def check(draft: list[int], params: SamplingParams = GREEDY, tokens: list[int] = PROMPT):
    """verify's answer, the caches after it, and the passes it took."""
    caches, model = new_caches(TINY, 64, dtype=torch.float64), Counting()
    MODEL(torch.tensor([tokens[:-1]]), caches)
    with survives("all but the last token are in the caches, and there is room for the draft"):
        got = speculative.verify(model, caches, list(tokens), list(draft), params)
    expect(got is not None, because=no_result("a list of the tokens that come next"))
    expect(isinstance(got, list), because=f"verify returns a list of tokens, and this is a {type(got).__name__}")
    return got, caches, model.passes


@exercise("12.10")
def test_without_a_draft():
    got, caches, _ = check([])
    expect_equal(
        got, plain()[:1], because="no guess: one pass over the last token gives the next one, as in the plain loop"
    )
    expect_equal([c.length for c in caches], [5, 5, 5], because="the prompt's 5 tokens are in the caches, and no more")


@exercise("12.10")
def test_a_right_draft():
    want = plain()
    got, caches, passes = check(want[:4])
    expect_equal(
        got,
        want[:5],
        because="all four guesses are what the model says, and the row after the last gives a fifth token for nothing",
    )
    expect_equal(
        passes, [5], because="the last token and four guesses go through the model in one pass, or nothing is won"
    )
    expect_equal(
        [c.length for c in caches],
        [9, 9, 9],
        because="the prompt and four guesses are in the caches: all but the last of the five new tokens",
    )


@exercise("12.10")
def test_a_draft_that_goes_wrong():
    want = plain()
    wrong = (want[2] + 1) % TINY.vocab_size
    got, caches, _ = check([want[0], want[1], wrong, want[3]])
    causes = {
        (want[0], want[1], wrong, want[3]): "the guesses were returned as they are, unchecked",
        tuple(want[:2]): "what the model says in place of the wrong guess is right, and belongs to the answer",
    }
    because = (
        "two guesses are right, the third isn't, and what the model says in its place is right too: three tokens. What "
        "was computed after the wrong guess is about another text"
    )
    expect_equal(got, want[:3], because=causes.get(tuple(got), because))
    expect_equal(
        [c.length for c in caches],
        [7, 7, 7],
        because="the caches must hold everything but the last new token, in every layer: 5 of the prompt and two right "
        "guesses. The keys of the wrong guess and what followed are to be forgotten (rewind), all of them and no more",
    )


@exercise("12.10")
def test_a_draft_that_is_wrong_at_once():
    want = plain()
    got, caches, _ = check([(want[0] + 1) % TINY.vocab_size, want[1]])
    expect_equal(got, want[:1], because="the first guess is wrong: the model's own token, and nothing after it")
    expect_equal([c.length for c in caches], [5, 5, 5], because="both guesses are to be forgotten: rewind by two")


@exercise("12.10")
def test_sampled_tokens_are_the_same_too():
    for seed in range(6):
        params = SamplingParams(max_tokens=8, temperature=1.0, seed=seed)
        want = plain(params)
        got, _, _ = check(want[:5], params)
        expect_equal(
            got,
            want[:6],
            because="each row is drawn with `sample`, at the position its token will have: a draw depends on seed and "
            "position alone, so the right guess is the very token the plain loop would draw",
        )


@exercise("12.10")
def test_the_penalty_sees_the_guesses():
    for penalty in (1.5, 3.0):
        params = SamplingParams(max_tokens=8, repetition_penalty=penalty)
        want = plain(params)
        got, _, _ = check(want[:5], params)
        expect_equal(
            got,
            want[:6],
            because="a penalty looks at all tokens before: the prompt, and what was accepted in this pass as well",
        )


@exercise("12.10")
def test_the_whole_loop():
    rng = random.Random(0)
    for seed in range(6):
        prompt = [rng.randrange(4) for _ in range(rng.randint(2, 20))]
        params = SamplingParams(max_tokens=20, temperature=0.3 * (seed % 2), seed=seed)
        want = list(generate(MODEL, prompt, params))
        with survives("the loop around it was given to you"):
            got = [token for piece in speculative.generate_with_lookup(MODEL, prompt, params) for token in piece]
        expect_equal(got, want, because="the answer must be the plain loop's, token for token")
    expect(len(want) == 20, because="the answer must be as long as max_tokens")
