"""Exercise 9.2: judged by small logits whose largest can be picked by hand."""

import math

import torch

from chapters.ch09_kv_cache import filters
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch09_kv_cache.words import likely, tensor, untouched

INF, NAN = math.inf, math.nan


TOP_2 = [-INF, 4.0, 3.0, -INF]
TOPS = {
    "what is dropped became 0, and a logit of 0 is an ordinary one: minus infinity can't be chosen": [
        0.0,
        4.0,
        3.0,
        0.0,
    ],
    "the smallest were kept": [1.0, -INF, -INF, 2.0],
    "k + 1 were kept": [-INF, 4.0, 3.0, 2.0],
    "k - 1 were kept: the k-th largest belongs to them": [-INF, 4.0, -INF, -INF],
    "the k largest stand in front: each belongs in its own place": [4.0, 3.0, -INF, -INF],
    "the first k were kept, whatever their size": [1.0, 4.0, -INF, -INF],
    "0 times infinity is no number: a mask is filled or added, not multiplied": [-INF, NAN, NAN, -INF],
    "these are probabilities: the filter gives logits": [0.0, 0.731059, 0.268941, 0.0],
}


def top_k(
    logits: torch.Tensor, k: int, because: str = "the k largest stay, in their places: scatter puts each back"
) -> torch.Tensor:
    with crash_means(because):
        got = filters.top_k_filter(logits, k)
    got = tensor(got, "logits [..., vocab]")
    expect_equal(
        list(got.shape), list(logits.shape), because="as many logits as before: dropped ones are minus infinity"
    )
    return got


@exercise("9.2")
def test_top_k_by_hand():
    got = top_k(torch.tensor([1.0, 4.0, 3.0, 2.0]), 2)
    expect_close(got, TOP_2, because=likely(got, TOPS) + "4 and 3 are the two largest; they stay, and where they were")


@exercise("9.2")
def test_top_k_of_small_numbers():
    got = top_k(torch.tensor([-5.0, -1.0, -3.0, 2.0]), 2)
    expect_close(got, [-INF, -1, -INF, 2], because="-1 is larger than -5: it is the size with its sign that counts")
    got = top_k(torch.tensor([0.0, -1.0, -2.0]), 2)
    expect(not got.isnan().any(), because="0 times infinity is no number: a logit of 0 became nan")
    expect_close(got, [0, -1, -INF], because="0 is larger than -1, and stays what it is")
    got = top_k(torch.tensor([1.0, 1.0000001, 0.5], dtype=torch.float64), 1)
    expect_close(
        got, [-INF, 1.0000001, -INF], rtol=1e-9, because="two logits that nearly are equal aren't: the larger stays"
    )


@exercise("9.2")
def test_top_k_with_equals():
    got = top_k(torch.tensor([1.0, 1.0, 2.0, 1.0, 0.0]), 2)
    n = int((got > -INF).sum())
    expect_equal(
        n,
        2,
        because=f"three logits are equal, and {n} tokens were kept of k = 2: a threshold lets all equals through, or "
        "none. Take the places that topk gives",
    )
    expect_close(got[2], 2.0, because="the largest is among the k largest")


@exercise("9.2")
def test_top_k_that_keeps_all():
    for k, meaning in ((0, "0 is all of them"), (4, "the whole vocabulary"), (9, "more than there are")):
        because = f"k = {k}: {meaning}, so nothing is dropped"
        expect_close(top_k(torch.tensor([1.0, 4.0, 3.0, 2.0]), k, because), [1, 4, 3, 2], because=because)


@exercise("9.2")
def test_top_k_of_rows():
    got = top_k(torch.tensor([[9.0, 8.0, 7.0], [1.0, 2.0, 3.0]]), 2)
    expect_close(got, [[9, 8, -INF], [-INF, 2, 3]], because="each row keeps its own k largest: over the last axis")


@exercise("9.2")
def test_top_k_keeps_dtype_and_argument():
    for dtype in (torch.bfloat16, torch.float64):
        got = top_k(torch.tensor([1.0, 4.0, 3.0, 2.0], dtype=dtype), 2)
        expect_equal(got.dtype, dtype, because="the logits keep their dtype")
    for k in (2, 0, 9):
        untouched(lambda x, k=k: filters.top_k_filter(x, k), torch.tensor([1.0, 4.0, 3.0, 2.0]), "logits")
