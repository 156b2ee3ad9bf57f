"""Exercise 9.9: judged by what the loop feeds, by sums worked out in plain Python, and by the naive loop."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from chapters.ch09_kv_cache import generate as loop
from chapters.judge import Rejected, crash_means, exercise, expect, expect_equal
from shared.inference.sampling import SamplingParams, sample
from tests.ch09_kv_cache.words import Adder, adder_answer
from tests.tiny import TINY, tiny_model

PROMPT = [5, 17, 80, 3, 3, 41, 9]


def run(model, prompt, params, eos_ids=frozenset(), because: str = "", **settings) -> list[int]:
    with causes(), crash_means(because or "feed the prompt into empty caches, then each new token alone"):
        got = loop.generate(model, list(prompt), params, eos_ids, **settings)
        expect(hasattr(got, "__next__"), because="generate yields its tokens, one by one: it is a generator")
        return list(got)


CAUSES = {
    "StopIteration": "a generator ends with `return`: Python turns a StopIteration raised in one into an error",
    "CacheFull": "more was stored than there is room for: each of the model's layers has a cache of its own, there is "
    "one step for each place from len(prompt) to `total`, and only what is new is fed",
}


@contextmanager
def causes() -> Iterator[None]:
    """What a crash's own message says about its cause goes before what is said about any crash."""
    try:
        yield
    except Rejected as error:
        cause = next((why for words, why in CAUSES.items() if words in error.detail), None)
        if cause is None:
            raise
        raise Rejected(error.detail, cause) from error


def adder(n: int = 6, **settings) -> tuple[Adder, list[int]]:
    model = Adder()
    return model, run(model, PROMPT, SamplingParams(max_tokens=n), **settings)


@exercise("9.9")
def test_each_token_is_fed_once():
    model, got = adder()
    expect(
        any(start >= 0 for start in model.starts), because="the model was called without caches: that is the naive loop"
    )
    lengths = [len(ids) for ids in model.fed]
    expect(
        not (len(lengths) > 1 and lengths[1] > 1),
        because=f"the second call was fed {lengths[1] if len(lengths) > 1 else 0} tokens. The cache holds the prompt "
        "already: only the new token is fed. Fed again, everything stands in the cache twice, and the answer is "
        "garbled",
    )
    expect(
        len(model.starts) < 2 or model.starts[1] > 0,
        because="the second call found empty caches: they are made once, before the loop, not in it",
    )
    expect(
        lengths != [7] + [1] * 6,
        because="one call too many: the last token is chosen and never fed, since nobody asks what comes after it",
    )
    expect_equal(lengths, [7, 1, 1, 1, 1, 1], because="the prompt of 7 in the first call, then each new token alone")
    expect_equal(
        got, adder_answer(PROMPT, 6), because="other tokens than those the model found best: each call's last row"
    )
    expect_equal(
        [ids[0] for ids in model.fed[1:]], got[:-1], because="what is fed next is the token that was chosen last"
    )


@exercise("9.9")
def test_tokens_come_one_by_one():
    model = Adder()
    tokens = loop.generate(model, list(PROMPT), SamplingParams(max_tokens=6))
    next(tokens)
    expect_equal(
        len(model.fed),
        1,
        because="the first token was yielded after more than one call: yield each as soon as it's chosen",
    )


@exercise("9.9")
def test_the_callers_prompt():
    prompt = list(PROMPT)
    list(loop.generate(Adder(), prompt, SamplingParams(max_tokens=3)))
    expect_equal(prompt, PROMPT, because="the caller's prompt has grown: append to a copy of it")


@exercise("9.9")
def test_end_of_sequence():
    want = adder_answer(PROMPT, 6)
    third = {want[2]}
    _, got = adder(eos_ids=third)
    expect(
        len(got) != 2,
        because="the end token is generated, so it is yielded too, as the last one: yield first, then stop",
    )
    expect(len(got) != 6, because="the answer goes on after an end token: return once it has been yielded")
    expect_equal(got, want[:3], because="the end token was the third one: three tokens, and no more")
    for others in ({0, 96}, {0}, {96}):
        _, got = adder(eos_ids=frozenset(third | others - set(want)))
        expect_equal(got, want[:3], because="the answer ends with any of the end tokens, and there may be several")
    _, got = adder(eos_ids={80})
    expect_equal(
        got, want, because="80 stands in the prompt, as end tokens do in every chat: only one of the answer ends it"
    )
    ignoring = run(Adder(), PROMPT, SamplingParams(max_tokens=6, ignore_eos=True), third)
    expect_equal(ignoring, want, because="with ignore_eos the answer goes on after an end token")


@exercise("9.9")
def test_the_context_ends_the_answer():
    model = Adder(context=10)
    got = run(
        model, PROMPT, SamplingParams(max_tokens=50), because="the answer ends with the model's context: up to `total`"
    )
    expect_equal(len(got), 3, because="a context of 10 leaves room for 3 tokens after a prompt of 7: up to `total`")


@exercise("9.9")
def test_caches_of_the_right_size():
    model, _ = adder()
    expect_equal(
        {13 if capacity == 12 else capacity for capacity in model.capacities},
        {13},
        because="caches have room for `total` = 7 + 6 tokens (or one fewer: the last is never fed). The model's whole "
        "context is memory that other requests need",
    )
    model = Adder(dtype=torch.bfloat16)
    run(model, PROMPT, SamplingParams(max_tokens=3), because="the weights are bf16, and the caches aren't")
    expect_equal(model.dtypes, {torch.bfloat16}, because="caches have the weights' dtype: a bf16 model's are bf16")


@exercise("9.9")
def test_only_the_last_row_is_asked_for():
    model, _ = adder()
    expect(
        all(call["last_only"] for call in model.settings),
        because="last_only=True spares the head, the largest product of all, at every other position of the prompt",
    )
    expect(
        all(set(call) == {"last_only"} for call in model.settings),
        because="positions and mask follow from the caches' length: leave them to the model",
    )


@exercise("9.9")
@pytest.mark.parametrize(("chunk", "lengths"), [(3, [3, 3, 1]), (7, [7]), (4, [4, 3])])
def test_a_long_prompt_in_pieces(monkeypatch, chunk, lengths):
    monkeypatch.setattr(loop, "PREFILL_CHUNK", chunk)
    model, got = adder(3)
    expect_equal(
        [len(ids) for ids in model.fed],
        [*lengths, 1, 1],
        because=f"a prompt of 7 in pieces of at most {chunk}: {lengths}. All at once, the scores are prompt by prompt "
        "large",
    )
    because = "the same answer, however the prompt is cut; a token is chosen only after the last piece"
    expect_equal(got, adder_answer(PROMPT, 3), because=because)


@exercise("9.9")
def test_cancelled_is_asked_before_each_call(monkeypatch):
    monkeypatch.setattr(loop, "PREFILL_CHUNK", 3)
    asked, model = [], Adder()

    def cancelled() -> bool:
        asked.append(len(model.fed))
        return len(asked) == 6

    got = run(model, PROMPT, SamplingParams(max_tokens=20), cancelled=cancelled)
    expect(bool(asked), because="cancelled was never asked: whoever has left would be answered to the end")
    expect_equal(
        asked,
        [0, 1, 2, 3, 4, 5],
        because="cancelled is asked before each call of the model, each piece of the prompt too",
    )
    expect_equal(
        len(got), 3, because="three pieces of the prompt and two more calls make three tokens, and then it ends"
    )


@exercise("9.9")
def test_position_and_penalty():
    """Each draw belongs to a position of the sequence, and the penalty knows the prompt and the answer."""
    seen = []

    def spy(logits, params, position, token_ids=()):
        seen.append((position, list(token_ids)))
        return sample(logits, params, position, token_ids)

    original, loop.sample = loop.sample, spy
    try:
        _, got = adder(3)
    finally:
        loop.sample = original
    want = adder_answer(PROMPT, 3)
    positions = [position for position, _ in seen]
    expect(bool(seen), because="sample was never asked: it decides which token follows the logits, not the loop")
    expect_equal(
        positions,
        [7, 8, 9],
        because="the first answer token stands at position 7, behind a prompt of 7: positions count from the start of "
        "the sequence. Then an answer that was interrupted goes on with the same draws",
    )
    expect_equal(
        [ids for _, ids in seen],
        [PROMPT, PROMPT + want[:1], PROMPT + want[:2]],
        because="the repetition penalty needs all tokens so far, the prompt and the answer: hand them to sample each "
        "time",
    )


@exercise("9.9")
def test_sample_is_asked_once_a_token(monkeypatch):
    """In pieces, logits of a piece before the last are nobody's."""
    asked = []

    def spy(logits, params, position, token_ids=()):
        asked.append(position)
        return sample(logits, params, position, token_ids)

    monkeypatch.setattr(loop, "PREFILL_CHUNK", 3)
    monkeypatch.setattr(loop, "sample", spy)
    _, got = adder(3)
    expect_equal(
        asked, [7, 8, 9], because="three pieces of the prompt, three tokens, three draws: not one for each piece"
    )
    expect(all(type(token) is int for token in got), because="what is yielded are ids, plain ints")


@exercise("9.9")
def test_two_answers_at_once():
    """Two requests to one model, a token of each in turn."""
    model = Adder()
    because = (
        "two requests to one model, a token of each in turn, and their answers mix: each has caches of its own, which "
        "the model doesn't keep"
    )
    prompts = ([5, 17, 80], [60, 2])
    loops = [loop.generate(model, list(prompt), SamplingParams(max_tokens=4)) for prompt in prompts]
    with crash_means(because):
        got = list(zip(*zip(*loops, strict=True), strict=True))
    for prompt, answer in zip(prompts, got, strict=True):
        expect_equal(list(answer), adder_answer(prompt, 4), because=because)


@exercise("9.9")
def test_a_long_answer():
    got = run(Adder(context=400), PROMPT, SamplingParams(max_tokens=300))
    expect_equal(len(got), 300, because="300 tokens were asked for, and the context has room for them")


@exercise("9.9")
@pytest.mark.parametrize(
    "params", [SamplingParams(10), SamplingParams(10, 1.1, 30, 0.95, repetition_penalty=1.2, seed=3)]
)
def test_equal_to_the_naive_loop(params):
    model = tiny_model()
    ids = list(PROMPT)
    with torch.inference_mode():
        for position in range(len(PROMPT), len(PROMPT) + 10):
            ids.append(sample(model(torch.tensor([ids]))[0, -1], params, position, ids))
    got = run(model, PROMPT, params, because=f"a float64 model of {TINY.num_hidden_layers} layers: caches of its dtype")
    expect_equal(got, ids[len(PROMPT) :], because="not the tokens of the naive loop, which computes everything anew")
