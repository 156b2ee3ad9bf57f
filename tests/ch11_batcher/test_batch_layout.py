"""Exercise 11.1: judged by layouts written out by hand, and by logits of one row alone."""

import torch
from torch import Tensor

from chapters.ch11_batcher import static_batch
from chapters.judge import exercise, expect, expect_close, expect_equal, expect_parts
from shared.model.transformer import attention
from tests.tiny import tiny_model

REAL = torch.tensor([[False, False, True, True], [True, True, True, True]])


def layout(real: Tensor) -> tuple[Tensor, Tensor]:
    got = static_batch.batch_layout(real)
    expect_parts(got, ("positions", "mask"), because="two tensors are wanted: positions, and the mask")
    positions, mask = got
    kinds = [type(part).__name__ for part in got]
    expect(kinds == ["Tensor"] * 2, because=f"two tensors are wanted, and these are {' and '.join(kinds)}")
    expect(
        positions.dtype != torch.bool and positions.dim() <= 2,
        because="positions come first, [batch, length], and the mask second: are they swapped?",
    )
    return positions, mask


@exercise("11.1")
def test_positions():
    positions, _ = layout(REAL)
    expect(
        not torch.equal(torch.as_tensor(positions).expand(2, 4), torch.arange(4).expand(2, 4)),
        because="these are the columns: padding was counted. A row's first real token stands at 0, whatever is before "
        "it",
    )
    expect(
        positions.clamp(min=0).tolist() != [[0, 0, 0, 0], [0, 0, 1, 1]],
        because="counted down the batch, from row to row: each row's tokens are along the last axis, dim=1",
    )
    expect_equal(
        positions.tolist(),
        [[0, 0, 0, 1], [0, 1, 2, 3]],
        because="each row's real tokens are counted from 0, and padding stands at 0: no position is below that. "
        "cumsum counts the first one as 1",
    )
    expect_equal(positions.dtype, torch.int64, because="positions are whole numbers, int64")


@exercise("11.1")
def test_the_mask_has_an_axis_for_the_heads():
    _, mask = layout(REAL)
    expect_equal(
        list(mask.shape),
        [2, 1, 4, 4],
        because="the mask is [batch, 1, length, length]: without the 1 in the place of the heads, row k of the batch "
        "would be taken for head k",
    )
    expect_equal(mask.dtype, torch.bool, because="the mask is bool, True = may attend")


@exercise("11.1")
def test_no_row_of_the_mask_is_empty():
    _, mask = layout(REAL)
    q = torch.ones(2, 2, 4, 2)
    out = attention(q, q, q, mask.expand(2, 1, 4, 4), 1.0)
    expect(
        not out.isnan().any(),
        because="attention gives nan: some padding may see nobody, and a softmax over nothing is 0 / 0. Let "
        "each token see itself",
    )


@exercise("11.1")
def test_whom_a_token_may_see():
    _, mask = layout(REAL)
    mask = mask.expand(2, 1, 4, 4)
    text = mask[0, 0, 2:]
    expect(
        not text[:, :2].any(),
        because="a real token sees padding: the columns (the last axis) say who is looked at, so padding is masked "
        "there, real[:, None, None, :]",
    )
    expect(not mask[1, 0].triu(1).any(), because="tokens see what comes after them: the mask must be causal, too")
    expect_equal(
        text.tolist(),
        [[False, False, True, False], [False, False, True, True]],
        because="a real token sees itself and the real ones before it",
    )
    expect_equal(
        mask[1, 0].tolist(), torch.ones(4, 4).tril().bool().tolist(), because="a row without padding is just causal"
    )
    try:
        where = {part.device.type for part in layout(REAL.to("meta"))}
    except RuntimeError as error:  # a loop over the elements is slow and right; without elements it can't run
        where = {"meta" if "meta tensor" in str(error) else f"nowhere: {error}"}
    expect_equal(sorted(where), ["meta"], because="positions and mask belong where `real` is: pass real.device on")


@exercise("11.1")
def test_the_model_agrees():
    model = tiny_model()
    prompts = [[5, 6, 7, 8, 9], [11], [3, 1, 4]]
    ids = torch.tensor([[0] * (5 - len(p)) + p for p in prompts])
    real = torch.tensor([[False] * (5 - len(p)) + [True] * len(p) for p in prompts])
    positions, mask = layout(real)
    got = model(ids, positions=positions, mask=mask)
    for row, prompt in enumerate(prompts):
        want = model(torch.tensor([prompt]))[0]
        expect_close(
            got[row, 5 - len(prompt) :],
            want,
            because=f"prompt {row} has other logits in the batch than alone: look at the mask and at the positions",
        )
