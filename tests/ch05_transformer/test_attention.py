"""Exercises 5.4 and 5.5: judged by small cases by hand and torch's scaled_dot_product_attention."""

import math

import pytest
import torch
import torch.nn.functional as F

from chapters.ch05_transformer.transformer import attention, causal_mask
from chapters.judge import NO_RESULT, crash_means, exercise, expect, expect_close, expect_equal
from tests.ch05_transformer.oracle import likely, normal

# 5.4 causal_mask


@exercise("5.4")
def test_true_means_may_attend():
    got = causal_mask(3, 3)
    expect(isinstance(got, torch.Tensor), because=f"the mask is a tensor. {NO_RESULT}")
    expect_equal(list(got.shape), [3, 3], because="the mask has two dimensions, [L, S]: a row for each new token")
    expect_equal(
        list(causal_mask(2, 5).shape),
        [2, 5],
        because="2 new tokens of 5 in all make [L, S] = [2, 5]: a row for each new token, a column for every token",
    )
    expect_equal(
        got.dtype,
        torch.bool,
        because="the mask is bool, True = may attend; zeros and minus infinities are another convention",
    )
    expect(
        got.any(),
        because="nobody may attend to anything: with L = S there is no old token, but the new ones see one another",
    )
    expect(not got[2, 0] or not got[0, 2], because="the first token may attend to the last: the future is not masked")
    expect(
        bool(got[2, 0]),
        because="the last token may not attend to the first: True and False are swapped (True = may attend)",
    )
    expect_equal(
        got.diagonal().tolist(), [True] * 3, because="each token may attend to itself, too; the mask is off by one"
    )
    expect(not got[0, 1], because="the first token may attend to the second, which it should predict: off by one")
    expect_equal(
        got.tolist(),
        [[True, False, False], [True, True, False], [True, True, True]],
        because="token i may attend to tokens 0 to i, and to none after it",
    )


@exercise("5.4")
def test_the_last_of_all_tokens():
    expect_equal(
        causal_mask(2, 5).tolist(),
        [[True, True, True, True, False], [True] * 5],
        because="2 new tokens after 3 in the cache stand at positions 3 and 4, and see the cache too: the triangle "
        "touches the bottom right corner (diagonal=S - L). At the top left, the new tokens see almost nothing",
    )


@exercise("5.4")
def test_one_token_sees_all():
    expect_equal(
        causal_mask(1, 6).tolist(),
        [[True] * 6],
        because="a single new token is the last of all and may attend to all of them, itself included",
    )


@exercise("5.4")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (4, 4), (3, 9), (7, 8)])
def test_every_pair(L, S):
    want = [[key <= query for key in range(S)] for query in range(S - L, S)]
    expect_equal(
        causal_mask(L, S).tolist(), want, because="query i of L stands at position S - L + i; keys up to there are True"
    )


@exercise("5.4")
def test_on_the_device_it_was_asked_for():
    because = (
        "the mask is made on `device`, all of it: torch.arange(..., device=device). A model on a GPU needs it there"
    )
    with crash_means(because):
        got = causal_mask(2, 3, device="meta")  # a device that is there on every machine, and isn't the CPU
    expect_equal(got.device.type, "meta", because=because)


# 5.5 attention

WEIGHTS = [[[[0.731059, 0.268941]]]]
SOFTMAXES = {  # what usual mistakes make of it
    "the scale is missing: scores are multiplied by `scale` before the softmax": [[[[0.880797, 0.119203]]]],
    "the softmax runs over the queries; it runs over the keys, the last axis": [[[[1.0, 1.0]]]],
    "the scores were divided by `scale`": [[[[0.982014, 0.017986]]]],
    "the scale is head_dim ** -0.5 of your own; multiply by the argument": [[[[0.804430, 0.195570]]]],
    "the scale came in twice, with q and with k": [[[[0.622459, 0.377541]]]],
    "the scale came after the softmax; it belongs to the scores": [[[[0.440399, 0.059601]]]],
    "these are the scores themselves: their softmax is missing": [[[[1.0, 0.0]]]],
}


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, because: str = ""
) -> torch.Tensor:
    """The reader's attention, or the likely cause why it stopped."""
    heads = f"{q.shape[1]} query heads on {k.shape[1]} key heads"
    shapes = (
        "q is [batch, heads, L, head_dim] and k [batch, kv_heads, S, head_dim]: scores are q @ k.transpose(-1, -2), "
        f"and {heads} need k and v repeated, each head in its place, or the queries of a group put together"
    )
    with (
        crash_means(because or shapes),
        crash_means("the mask may be None; use it only when it isn't", TypeError, AttributeError),
    ):
        got = attention(q, k, v, mask, scale)
    expect(isinstance(got, torch.Tensor), because=f"the result is a tensor. {NO_RESULT}")
    return got


@exercise("5.5")
def test_by_hand():
    """One query, two keys with scores 1 and 0: weights e / (e + 1) and 1 / (e + 1)."""
    q = torch.tensor([2.0, 0.0]).view(1, 1, 1, 2)
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    got = attend(q, k, v, None, 0.5)
    expect_equal(list(got.shape), [1, 1, 1, 2], because="the result has the queries' shape [batch, heads, L, head_dim]")
    expect_close(
        got,
        WEIGHTS,
        because=likely(got, SOFTMAXES)
        + "The scores are (2, 0) * 0.5 = (1, 0), and softmax makes 0.731 and 0.269 of them",
    )


@exercise("5.5")
def test_the_softmax_runs_over_the_keys():
    q, k = normal(1, 1, 4, 8), normal(1, 1, 6, 8, seed=1)
    got = attend(q, k, torch.ones(1, 1, 6, 8, dtype=torch.float64), None, 1.0)
    expect_close(
        got,
        torch.ones(1, 1, 4, 8),
        because="each query's weights add up to 1 over the keys, so the mean of all ones is one: softmax over the last "
        "axis of [.., L, S]; or weights were lost after the softmax",
    )


@exercise("5.5")
def test_a_query_head_reads_its_groups_key_head():
    q, k = normal(1, 6, 1, 4), normal(1, 3, 5, 4, seed=1)
    v = torch.arange(3.0).double().view(1, 3, 1, 1).expand(1, 3, 5, 4)  # key head h holds nothing but h
    got = attend(q, k, v, None, 1.0)
    expect_close(
        got[0, :, 0, 0],
        [0, 0, 1, 1, 2, 2],
        because="6 query heads on 3 key heads: heads 0 and 1 read key head 0, heads 2 and 3 read 1, heads 4 and 5 read "
        "2. 0 1 2 0 1 2 comes of repeat or tile, where repeat_interleave (or a group axis) belongs",
    )


@exercise("5.5")
def test_what_is_masked_gets_no_weight():
    q, k = normal(1, 2, 3, 4), normal(1, 1, 3, 4, seed=1)
    v = torch.tensor([1.0, 10.0, 100.0]).double().view(1, 1, 3, 1).expand(1, 1, 3, 4)
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    got = attend(q, k, v, mask, 1.0)[0, :, 0]  # the first query's, by head
    if got.isnan().any():
        hint = "zero times infinity is not a number: set the scores with masked_fill or torch.where, don't multiply"
    elif float(got.max()) < 1:
        hint = "the weights were masked after the softmax, and what is left no longer adds up to 1"
    else:
        hint = (
            "what is masked keeps a weight: a score of 0 is an ordinary score, and minus infinity hides; or True and "
        )
        hint += "False are swapped (True = may attend)"
    expect_close(
        got,
        torch.ones(2, 4),
        because=f"{hint}. The first query may attend to the first key alone, so it gets the first value, whole",
    )


@exercise("5.5")
def test_nothing_is_changed_in_place():
    q, k, v = normal(1, 2, 2, 4), normal(1, 1, 2, 4, seed=1), normal(1, 1, 2, 4, seed=2)
    mask = torch.ones(2, 2, dtype=torch.bool).tril()
    before = [t.clone() for t in (q, k, v, mask)]
    attention(q, k, v, mask, 1 / math.sqrt(4))
    expect(
        all(torch.equal(a, b) for a, b in zip((q, k, v, mask), before, strict=True)),
        because="q, k, v or the mask was changed in place; every layer uses the mask, and k and v are the cache's",
    )


@exercise("5.5")
@pytest.mark.parametrize(("batch", "heads", "kv_heads", "L", "S"), [(1, 4, 4, 5, 5), (2, 6, 2, 3, 7), (3, 6, 1, 1, 9)])
def test_equal_to_torch(batch, heads, kv_heads, L, S):
    """All the ways: grouped or not, a batch, tokens in the cache, masks of several shapes, tensors not contiguous."""
    q = normal(batch, L, heads, 8).transpose(1, 2)
    k, v = normal(batch, kv_heads, S, 8, seed=1), normal(batch, S, kv_heads, 8, seed=2).transpose(1, 2)
    causal = torch.tensor([[key <= query for key in range(S)] for query in range(S - L, S)])
    by_row = normal(batch, 1, L, S, seed=3) > 0
    by_head = normal(batch, heads, L, S, seed=4) > 0
    by_row[..., 0] = by_head[..., 0] = True  # each query sees something
    for name, mask in (("no mask", None), ("[L, S]", causal), ("[batch, 1, L, S]", by_row), ("by head", by_head)):
        want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
        expect_close(
            attend(q, k, v, mask, 0.3, f"a mask may have any shape that broadcasts to [batch, heads, L, S]: {name}"),
            want,
            rtol=1e-5,
            atol=1e-6,
            because=f"not torch's scaled_dot_product_attention: batch {batch}, {heads} heads on {kv_heads}, "
            f"{L} queries and {S} keys, mask: {name}",
        )


@exercise("5.5")
def test_large_scores():
    q = torch.full((1, 1, 1, 4), 1e4)
    k = torch.tensor([1.0, -1.0]).view(1, 1, 2, 1).expand(1, 1, 2, 4)
    v = torch.tensor([[1.0], [2.0]]).expand(1, 1, 2, 4)
    expect_close(
        attention(q, k, v, None, 1.0),
        torch.ones(1, 1, 1, 4),
        because="a score of 40000 overflows exp in any dtype; torch.softmax subtracts the largest score first",
    )


@exercise("5.5")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    q, k, v = normal(1, 4, 2, 8, dtype=dtype), normal(1, 2, 300, 8, seed=1, dtype=dtype), normal(1, 2, 300, 8, seed=2)
    half = f"in {dtype} it stopped: the weights go back to v's dtype before they meet v"
    got = attend(q, k, v.to(dtype), None, 8**-0.5, half)
    expect_equal(
        got.dtype, dtype, because=f"{dtype} in, {dtype} out: softmax in float32 and its weights back in {dtype}"
    )
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.to(dtype).double(), enable_gqa=True)
    expect_close(
        got.double(),
        want,
        rtol=0.02,
        atol=1e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-5,
        because=f"300 keys in {dtype} are off by more than rounding: take the softmax in float32",
    )
    if dtype == torch.float64:
        expect_close(
            got,
            want,
            rtol=1e-10,
            because="float64 was narrowed to float32 on the way: float32 is the least, and float64 stays float64. "
            "torch.promote_types(q.dtype, torch.float32) is the wider of the two",
        )
    mask = torch.ones(2, 300, dtype=torch.bool).tril(298)
    got = attend(
        q, k, v.to(dtype), mask, 8**-0.5, f"a masked score must be one that {dtype} can hold: -math.inf, and not -1e9"
    )
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.to(dtype).double(), mask, enable_gqa=True)
    expect_close(
        got.double(),
        want,
        rtol=0.02,
        atol=1e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-5,
        because=f"with a mask, 300 keys in {dtype} are off by more than rounding: take the softmax in float32",
    )
