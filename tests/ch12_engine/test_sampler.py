"""Exercise 12.9: judged by `sample`, one sequence by itself, which is what a batch must not change."""

import pytest
import torch

from chapters.ch12_engine import sampler
from chapters.judge import exercise, expect, expect_close, expect_equal, no_result
from shared.inference.sampling import SamplingParams, sample
from shared.inference.sequence import Sequence
from tests.ch12_engine.scenes import survives

VOCAB = 50


def logits_of(n_rows: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(n_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def sequence(tokens: list[int], n_output: int = 0, **params) -> Sequence:
    made = Sequence("s", tokens[: len(tokens) - n_output], SamplingParams(**params))
    made.token_ids += tokens[len(tokens) - n_output :]
    return made


def draw(logits, rows) -> dict:
    before, lengths = logits.clone(), [len(s.token_ids) for s, _ in rows]
    with survives("each sequence gets its token, and its log-probabilities where it asks for them"):
        got = sampler.sample_rows(logits, rows)
    expect(got is not None, because=no_result("a dict from each sequence to what was Sampled for it"))
    expect(isinstance(got, dict), because=f"a dict by sequence is asked for, and this is a {type(got).__name__}")
    expect(len(got) == len(rows), because=f"{len(rows)} sequences are to be sampled, and there are {len(got)} results")
    for one in got.values():
        expect(
            isinstance(one, sampler.Sampled),
            because=f"each gets Sampled(token, logprobs), and this is {one!r}",
        )
    expect(
        bool((logits == before).all()),
        because="the logits were changed: siblings share a row, and the next one draws from what is left in it. Its "
        "log-probabilities are the model's, too. `sample` takes the penalty off a copy",
    )
    expect(
        [len(s.token_ids) for s, _ in rows] == lengths,
        because="a sequence got longer: the token is only returned, and `update` appends it; it would be there twice",
    )
    return got


def tokens(logits, *sequences) -> list[int]:
    got = draw(logits, [(s, row) for row, s in enumerate(sequences)])
    return [got[s].token_id for s in sequences]


@exercise("12.9")
def test_greedy():
    logits = logits_of(3)
    got = tokens(logits, *(sequence([1, 2, 3]) for _ in range(3)))
    expect_equal(got, logits.argmax(-1).tolist(), because="at temperature 0 it's the likeliest token of the own row")


@exercise("12.9")
def test_each_by_its_own_parameters():
    logits = logits_of(1).expand(4, VOCAB)
    settings = [{}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.5, "seed": 2}, {"temperature": 3.0, "top_k": 5}]
    sequences = [sequence([1, 2, 3], **each) for each in settings]
    got = tokens(logits, *sequences)
    want = [sample(logits[0], s.params, 3, s.token_ids) for s in sequences]
    expect_equal(
        got,
        want,
        because="four requests with four settings are in the batch, and each must be drawn by its own: its "
        "temperature, its "
        "filters, its seed. A generator common to all makes an answer depend on who else is there",
    )


@exercise("12.9")
def test_the_position_is_the_sequences_own():
    logits = logits_of(1).expand(40, VOCAB)
    for n_prompt, n_output in ((5, 0), (5, 3), (12, 4)):
        sequences = [
            sequence(list(range(n_prompt + n_output)), n_output, temperature=2.0, seed=seed) for seed in range(40)
        ]
        got = tokens(logits, *sequences)
        for position, because in (
            (n_prompt + n_output - 1, "that is the position of the last token; the new one comes after it"),
            (n_output, "that counts from the answer's start; positions count from the prompt's, as `generate` has it"),
            (0, "that is one position for all tokens, and each would be drawn with the same number"),
        ):
            wrong = [sample(logits[0], s.params, position) for s in sequences]
            if got == wrong and position != n_prompt + n_output:
                expect(False, because=f"{len(got)} draws are those of position {position}: {because}")
        want = [sample(logits[0], s.params, n_prompt + n_output) for s in sequences]
        expect_equal(
            got,
            want,
            because=f"a sequence of {n_prompt + n_output} tokens draws the next at position {n_prompt + n_output}, "
            "wherever "
            "in the batch it stands: only then is its answer the same in any company, and after a preemption",
        )


@exercise("12.9")
def test_siblings_have_their_seeds():
    logits = logits_of(1).expand(20, VOCAB)
    sequences = [sequence([1, 2, 3], temperature=2.0, seed=seed) for seed in range(20)]
    for index, each in enumerate(sequences):
        each.index = index
    want = [sample(logits[0], s.params, 3) for s in sequences]
    expect_equal(
        tokens(logits, *sequences),
        want,
        because="a sequence's seed is in its own params: for the k-th of n answers the engine has added k already",
    )


@exercise("12.9")
def test_a_low_temperature_is_one():
    logits = torch.zeros(20, VOCAB)
    sequences = [sequence([1, 2, 3], temperature=0.01, seed=seed) for seed in range(20)]
    want = [sample(logits[0], s.params, 3) for s in sequences]
    expect_equal(
        tokens(logits, *sequences),
        want,
        because="a temperature of 0.01 isn't 0: where many tokens are as likely it draws among them, and greedy[row] "
        "is always the first",
    )


@exercise("12.9")
def test_a_row_for_several():
    logits = logits_of(2)
    a, b, c = (sequence([1, 2, 3], temperature=2.0, seed=seed) for seed in (7, 8, 9))
    got = draw(logits, [(a, 1), (b, 1), (c, 0)])
    want = [sample(logits[row], s.params, 3) for s, row in ((a, 1), (b, 1), (c, 0))]
    expect_equal(
        [got[s].token_id for s in (a, b, c)],
        want,
        because="the number that comes with a sequence is its row: siblings that start together share one, so the rows "
        "can't be counted along",
    )


@exercise("12.9")
def test_the_penalty_sees_all_tokens():
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 7], logits[0, 9] = 3.0, 2.9, 2.8
    plain = sequence([1, 4], repetition_penalty=2.0)
    expect_equal(
        tokens(logits, plain),
        [7],
        because="the request has a repetition penalty, and token 4 is in its prompt: greedy means the largest logit "
        "after "
        "the penalty, so it can't be taken from the batch's argmax",
    )
    answered = sequence([1, 4, 7], n_output=1, repetition_penalty=2.0)
    expect_equal(
        tokens(logits, answered),
        [9],
        because="tokens 4 and 7 are there already, one in the prompt and one in the answer: the penalty is for both",
    )


@exercise("12.9")
def test_the_penalty_holds_for_old_tokens_and_draws():
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 7] = 3.0, 2.9
    expect_equal(
        tokens(logits, sequence([4, *range(20, 40)], repetition_penalty=2.0)),
        [7],
        because="token 4 stands 20 tokens back, and the penalty is for every token so far, not for the latest",
    )
    expect_equal(
        tokens(logits, sequence([1, 7], repetition_penalty=0.5)),
        [7],
        because="a penalty below 1 makes repetition likelier: it's a penalty too, and only 1 is none",
    )
    rows = logits_of(1).expand(20, VOCAB)
    sequences = [sequence(list(range(25)), temperature=2.0, seed=seed, repetition_penalty=9.0) for seed in range(20)]
    expect_equal(
        tokens(rows, *sequences),
        [sample(rows[0], s.params, 25, s.token_ids) for s in sequences],
        because="the penalty holds at every temperature: `sample` needs the tokens so far when it draws, too",
    )


@exercise("12.9")
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_logprobs_are_the_models(temperature):
    logits = logits_of(2, seed=3)
    asks = sequence([1, 2], temperature=temperature, seed=5, logprobs=3, repetition_penalty=1.3)
    silent = sequence([1, 2], temperature=temperature, seed=6)
    modest = sequence([1, 2], temperature=temperature, seed=7, logprobs=0)
    want = logits[1].log_softmax(-1)
    got = draw(logits, [(silent, 0), (asks, 1), (modest, 1)])
    expect(got[silent].logprobs is None, because="who doesn't ask for log-probabilities gets None")
    logprobs = got[asks].logprobs
    expect(logprobs is not None, because="it asks for log-probabilities: Sampled(token, logprobs_of(…))")
    expect_equal(logprobs.token_id, got[asks].token_id, because="they are those of the token that was chosen")
    expect_close(
        logprobs.logprob,
        want[logprobs.token_id].item(),
        because="it's the log-softmax of its row as the model gave it: before temperature, penalty and filters",
    )
    values, ids = want.topk(3)
    expect_equal([id for id, _ in logprobs.top], ids.tolist(), because="the three likeliest, the likeliest first")
    expect_close([value for _, value in logprobs.top], values.tolist(), because="with the model's log-probabilities")
    few = got[modest].logprobs
    expect(
        few is not None and few.top == [],
        because="0 asks for the chosen token's log-probability and no others; None asks for none at all",
    )
