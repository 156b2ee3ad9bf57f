"""Exercises 0.1 and 0.2: the greedy choice and the naive loop, against a model one can work out by hand."""

from itertools import islice

import torch

from chapters.ch00_baseline import baseline
from chapters.judge import exercise, expect, expect_equal
from tests.ch00_baseline.fake import VOCAB, FakeModel, continuation

PROMPT = (3, 1, 4)  # each test hands over a list of its own: a wrong answer may append to it


@exercise("0.1")
def test_last_row_decides():
    logits = torch.tensor([[[0.0, 9.0, 1.0], [7.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])  # [1, 3, 3]
    because = (
        "the successor of the last token is scored in the last row; the rows before it score tokens you already have"
    )
    expect_equal(baseline.next_token(logits), 2, because=because)


@exercise("0.1")
def test_an_early_peak_is_not_a_token():
    logits = torch.tensor([[[0.0, 90.0, 1.0, 5.0], [4.0, 1.0, 3.0, 2.0]]])  # [1, 2, 4]
    because = "take the largest number of the last row alone, along the vocabulary's axis, not of the whole tensor"
    expect_equal(baseline.next_token(logits), 0, because=because)


@exercise("0.1")
def test_random_logits():
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 7):
        logits = torch.randn(1, length, 30, generator=generator)
        last = logits[0, length - 1].tolist()
        because = "the result is the index, in the vocabulary, of the last row's largest number"
        expect_equal(baseline.next_token(logits), last.index(max(last)), because=because)


@exercise("0.1")
def test_negative_logits():
    logits = torch.tensor([[[-5.0, -2.0, -9.0]]])
    expect_equal(baseline.next_token(logits), 1, because="logits may all be negative; the largest still wins")


@exercise("0.1")
def test_plain_int():
    got = baseline.next_token(torch.tensor([[[0.0, 1.0]]]))
    because = "return a plain int: the id goes into lists, sets and JSON; int(…) makes one of a tensor"
    expect_equal(type(got).__name__, "int", because=because)


@exercise("0.2")
def test_it_yields():
    got = baseline.generate_naive(FakeModel(), list(PROMPT), 2)
    because = (
        "without a `yield` in its body this is a plain function, and gives back None: hand each token out, yield token"
    )
    expect(got is not None, because=because)
    because = (
        f"the result is a {type(got).__name__}, given back when all the work is done: hand each token out as soon as it"
        " is known, with `yield token` inside the loop, and no `return` of tokens"
    )
    expect(hasattr(got, "__next__"), because=because)


@exercise("0.2")
def test_every_token_sees_all_before_it():
    got = list(islice(baseline.generate_naive(FakeModel(), list(PROMPT), 6), 20))
    because = "the same token again and again: the model is asked the same each time; append each new token to the ids"
    expect(len(set(got)) > 1, because=because)
    because = "every new token depends on the prompt and on all tokens generated so far: run the model on all of them"
    expect_equal(got[:6], continuation(PROMPT, 6), because=because)


@exercise("0.2")
def test_number_of_tokens():
    for n in (1, 5):
        got = list(islice(baseline.generate_naive(FakeModel(), list(PROMPT), n), 20))
        because = f"max_new_tokens={n} without an EOS gives that many tokens, new ones only: not one more, not one less"
        expect_equal(len(got), n, because=because)


@exercise("0.2")
def test_whole_sequence_each_time():
    model = FakeModel()
    list(islice(baseline.generate_naive(model, list(PROMPT), 4), 20))
    because = (
        "the model is called once a token, with 3, 4, 5, then 6 ids; is each new token appended before the next call?"
    )
    expect_equal(model.lengths, [3, 4, 5, 6], because=because)


@exercise("0.2")
def test_no_tokens_wanted():
    model = FakeModel()
    got = list(islice(baseline.generate_naive(model, list(PROMPT), 0), 20))
    expect_equal(
        (got, model.lengths), ([], []), because="max_new_tokens=0 gives nothing, and needs no call of the model"
    )


@exercise("0.2")
def test_eos_ends_the_answer():
    want = continuation(PROMPT, 8)
    eos = want[3]
    model = FakeModel()
    got = list(islice(baseline.generate_naive(model, list(PROMPT), 8, {eos}), 20))
    because = "the EOS token is generated like the others, so it is yielded too, as the last: yield it, then stop"
    expect(got != want[: want.index(eos)], because=because)
    expect_equal(got, want[: want.index(eos) + 1], because="the EOS token says that the answer is over: stop after it")
    expect_equal(len(model.lengths), want.index(eos) + 1, because="after an EOS token the model is not called again")


@exercise("0.2")
def test_eos_in_the_prompt_is_no_end():
    got = list(islice(baseline.generate_naive(FakeModel(), list(PROMPT), 3, {PROMPT[-1]}), 20))
    because = "only a generated EOS ends the answer; chat prompts are full of them"
    expect_equal(got, continuation(PROMPT, 3), because=because)


@exercise("0.2")
def test_tokens_come_one_by_one():
    model = FakeModel()
    first = next(iter(baseline.generate_naive(model, list(PROMPT), 5)))
    expect_equal(first, continuation(PROMPT, 1)[0], because="the first thing that comes out is the first new token")
    because = "yield each token as soon as it is known: whoever wants only the first must not wait for five"
    expect_equal(len(model.lengths), 1, because=because)


@exercise("0.2")
def test_callers_list_is_left_alone():
    prompt = list(PROMPT)
    list(islice(baseline.generate_naive(FakeModel(), prompt, 3), 20))
    expect_equal(prompt, list(PROMPT), because="the caller's prompt_ids has grown: append to a copy, list(prompt_ids)")


@exercise("0.2")
def test_no_notes_for_gradients():
    model = FakeModel()
    list(islice(baseline.generate_naive(model, list(PROMPT), 2), 20))
    because = "torch kept notes for a backward pass that never comes: call the model inside torch.inference_mode()"
    expect(not any(model.recorded), because=because)


@exercise("0.2")
def test_inference_mode_does_not_leak():
    tokens = iter(baseline.generate_naive(FakeModel(), list(PROMPT), 3))
    next(tokens)
    because = "between two tokens the caller's code runs: leave inference_mode before you yield"
    expect(not torch.is_inference_mode_enabled(), because=because)


@exercise("0.2")
def test_prompt_may_be_a_tuple():
    got = list(islice(baseline.generate_naive(FakeModel(), PROMPT, 4, (VOCAB,)), 20))
    expect_equal(got, continuation(PROMPT, 4), because="a prompt is any sequence of ids; make a list of it first")
