"""Exercise 9.5: judged by logits worked out by hand."""

import math

import torch

from chapters.ch09_kv_cache import filters
from chapters.judge import crash_means, exercise, expect_close, expect_equal
from tests.ch09_kv_cache.words import likely, tensor, untouched

INF = math.inf


LOGITS = [2.0, -1.0, 3.0, 3.0]
PENALTIES = {
    "negative logits were divided too, which makes them larger: they are multiplied": [1.0, -0.5, 1.5, 3.0],
    "multiplied where a positive logit is divided": [4.0, -2.0, 6.0, 3.0],
    "multiplied and divided the wrong way round": [4.0, -0.5, 6.0, 3.0],
    "a token that was there twice was penalised twice; once is enough": [0.5, -2.0, 1.5, 3.0],
    "every token was penalised, the one that wasn't there too": [1.0, -2.0, 1.5, 1.5],
    "only those that weren't there were penalised": [2.0, -1.0, 3.0, 1.5],
    "the penalty was subtracted": [0.0, -3.0, 1.0, 3.0],
    "subtracted once for each time, as a frequency penalty is": [-2.0, -3.0, 1.0, 3.0],
    "the logits of what was there are forbidden outright": [-INF, -INF, -INF, 3.0],
    "only the last token was penalised": [2.0, -1.0, 1.5, 3.0],
    "nothing happened: an index returns a copy, and scatter a new tensor": LOGITS,
    "log_softmax came first, and then all are negative": [-3.7394, -9.7394, -1.7394, -0.8697],
}


def penalise(logits: torch.Tensor, ids: list[int], penalty: float, because: str = "") -> torch.Tensor:
    with crash_means(because or "the logits of the ids that were there, divided or multiplied"):
        got = filters.apply_repetition_penalty(logits, ids, penalty)
    got = tensor(got, "logits [vocab]")
    expect_equal(list(got.shape), list(logits.shape), because="a logit for every token of the vocabulary, as before")
    return got


@exercise("9.5")
def test_penalty_by_hand():
    got = penalise(torch.tensor(LOGITS), [0, 1, 0, 2], 2.0)
    expect_close(
        got,
        [1.0, -2.0, 1.5, 3.0],
        because=likely(got, PENALTIES)
        + "Tokens 0, 1 and 2 were there: 2 / 2, -1 * 2, 3 / 2; token 3 wasn't, and stays",
    )


@exercise("9.5")
def test_a_penalty_below_one_favours():
    got = penalise(torch.tensor(LOGITS), [0, 1], 0.5)
    expect_close(got, [4.0, -0.5, 3.0, 3.0], because="a penalty of 0.5 makes 2 to 4 and -1 to -0.5: the same rule")
    for penalty in (3.0, 0.2):
        got = penalise(torch.tensor(LOGITS), [0, 1], penalty)
        want = [2 / penalty, -penalty, 3, 3]
        expect_close(got, want, because=f"a penalty of {penalty} is taken as it is: 2 / {penalty} and -1 * {penalty}")
    got = penalise(torch.tensor([5e-4, -5e-4]), [0, 1], 2.0)
    expect_close(got, [2.5e-4, -1e-3], because="small logits have a sign, too: 0.0005 is divided, -0.0005 multiplied")


@exercise("9.5")
def test_all_that_was_there():
    got = penalise(torch.tensor(LOGITS), [0] + [3] * 99, 2.0)
    expect_close(got, [1.0, -1.0, 3.0, 1.5], because="100 ids, and only the first is token 0: all of them count")
    got = penalise(torch.tensor(LOGITS), (0, 0, 1), 2.0, "ids may come as a tuple: any sequence")
    expect_close(got, [1.0, -2.0, 3.0, 3.0], because="ids may come as a tuple: any sequence")


@exercise("9.5")
def test_nothing_was_there_yet():
    because = "no token was there yet, and nothing is penalised (torch.tensor([]) is float: say dtype=torch.long)"
    expect_close(penalise(torch.tensor(LOGITS), [], 2.0, because), LOGITS, because=because)


@exercise("9.5")
def test_what_cannot_be_chosen_still_cannot():
    got = penalise(torch.tensor([0.0, -INF, 1.0]), [0, 1], 2.0)
    expect_close(
        got, [0.0, -INF, 1.0], because="0 stays 0, and minus infinity minus infinity: no nan, and no 0 in its place"
    )


@exercise("9.5")
def test_penalty_keeps_dtype_and_arguments():
    got = penalise(torch.tensor(LOGITS, dtype=torch.bfloat16), [0, 1], 2.0, "bf16 logits are welcome")
    expect_equal(got.dtype, torch.bfloat16, because="the logits keep their dtype")
    untouched(lambda x: filters.apply_repetition_penalty(x, [0, 1, 0], 2.0), torch.tensor(LOGITS), "logits")
    ids = [2, 0, 2, 1]
    filters.apply_repetition_penalty(torch.tensor(LOGITS), ids, 2.0)
    expect_equal(ids, [2, 0, 2, 1], because="the ids that were handed in have changed: they are the running sequence")
