"""Exercise 5.8, what the batches of later chapters hand in: positions, masks, rows and caches that attend."""

import pytest
import torch
from torch import Tensor, nn

from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal
from tests.ch05_transformer import oracle
from tests.ch05_transformer.lively import CONFIG, EARLIER, expect_spared_head, ids, judge, model


def placed(built: nn.Module, tokens: Tensor, caches: list | None = None, **how: object) -> Tensor:
    """The reader's logits for a call with positions, or the likely cause why it stopped."""
    attending = caches is not None and not hasattr(caches[0], "length")
    with crash_means(
        "these caches have no `length`: they attend by themselves, and where positions are given, nobody need ask. "
        "`start` and caches[i] are all that is wanted"
        if attending
        else "with positions of [batch, length] the tables are [batch, length, head_dim / 2]; q and k have heads "
        "there, so the tables need an axis of one: cos[:, None]. A given mask is handed to the layers as it is"
    ):
        return built(tokens, caches, **how)


@exercise("5.8")
def test_given_positions_are_taken():
    built, tokens = model(), ids(2, 6)
    state, places = built.state_dict(), ([0, 1, 2, 3, 4, 5], [0, 2, 3, 9, 10, 30])
    want = [oracle.logits(state, CONFIG, tokens[k : k + 1], positions=places[k])[0] for k in range(2)]
    mask = torch.tril(torch.ones(6, 6, dtype=torch.bool))
    got = placed(built, tokens[1:], positions=torch.tensor(places[1]), mask=mask)
    ignored = "positions were given, and ignored: the tokens stand where the caller says, not one after another"
    counted = oracle.logits(state, CONFIG, tokens)
    judge(got, want[1][None], [(ignored, counted[1:])], because=f"positions [length]: {EARLIER}")
    got = placed(built, tokens, positions=torch.tensor(places), mask=mask)
    judge(got, torch.stack(want), [(ignored, counted)], because="positions [batch, length]: each row has its own")


@exercise("5.8")
def test_a_given_mask_is_the_only_one():
    built, tokens = model(), ids(2, 5)
    state, positions = built.state_dict(), torch.arange(5)
    forced = "a causal mask of its own was forced on: who gives positions gives the mask too, and None means all"
    causal, free = (oracle.logits(state, CONFIG, tokens, causal=causal) for causal in (True, False))
    got = placed(built, tokens, positions=positions, mask=None)
    judge(got, free, [(forced, causal)], because="positions and no mask: every token may attend to every other")

    rows, longest = [ids(1, n) for n in (5, 3)], 5  # two prompts, the shorter one padded on the left
    padded = torch.cat([torch.cat((torch.zeros(1, longest - row.shape[1], dtype=torch.int64), row), 1) for row in rows])
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    mask = (torch.ones(5, 5, dtype=torch.bool).tril() & real[:, None, None, :]) | torch.eye(5, dtype=torch.bool)
    places = (real.cumsum(1) - 1).clamp(min=0)  # [batch, length]
    got = placed(built, padded, positions=places, mask=mask)
    unmasked = oracle.logits(state, CONFIG, padded)[1:, 2:]
    wrong = [("the given mask was dropped, and the text sees the padding before it", unmasked)]
    for k, row in enumerate(rows):
        want = oracle.logits(state, CONFIG, row)
        because = "a prompt padded on the left, with its mask, must have the logits that it has alone"
        judge(got[k : k + 1, longest - row.shape[1] :], want, wrong if k else [], because=because)

    caches = [oracle.GrowingCache() for _ in range(2)]
    placed(built, padded[:, :4], caches, positions=places[:, :4], mask=mask[:, :, :4, :4])
    got = placed(built, padded[:, 4:], caches, positions=places[:, 4:], mask=real[:, None, None, :])
    for k, row in enumerate(rows):
        want = oracle.logits(state, CONFIG, row)[:, -1:]
        judge(got[k : k + 1], want, [], because="the same batch's last token, the others in caches of two rows")


@exercise("5.8")
def test_a_given_mask_needn_t_be_causal():
    built, tokens = model(), ids(2, 5)
    state, mask = built.state_dict(), torch.ones(5, 5, dtype=torch.bool)
    causal, free = (oracle.logits(state, CONFIG, tokens, causal=causal) for causal in (True, False))
    forced = "the given mask was narrowed to a causal one: it is taken as it is, and here all may see all"
    got = placed(built, tokens, positions=torch.arange(5), mask=mask)
    judge(got, free, [(forced, causal)], because="a mask of True alone: every token may attend to every other")


@exercise("5.8")
def test_rows():
    built, tokens = model(), ids(2, 6)
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    with crash_means(
        "rows are indices into length, as a tensor: ask `rows is None`, for a tensor of several numbers is neither "
        "true nor false; and cut after the layers, x[:, rows], for x[rows] would pick from the batch"
    ):
        got = built(tokens, rows=torch.tensor([4, 1]))
    expect(
        isinstance(got, Tensor) and got.shape[:2] != (2, 6),
        because="rows was given, and ignored: only the logits of those positions are wanted",
    )
    expect_equal(list(got.shape), [2, 2, 97], because="rows [n] gives [batch, n, vocab]: x[:, rows], before the head")
    expect_close(got, want[:, [4, 1]], rtol=1e-4, atol=1e-4, because="rows=[4, 1] wants positions 4 and 1, as given")
    expect_spared_head("rows", torch.tensor([4]))


class Attending:
    """A cache without a `length` that attends by itself; it remembers the shapes it was given."""

    def __init__(self) -> None:
        self.inner, self.shapes = oracle.GrowingCache(), []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.shapes.append([list(q.shape), list(k.shape)])
        k, v = self.inner.update(k, v)
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@exercise("5.8")
def test_caches_that_attend():
    built, tokens, caches = model(), ids(1, 7), [Attending() for _ in range(2)]
    parts = tokens.split([4, 3], dim=1), torch.arange(7).split([4, 3])
    got = torch.cat([placed(built, part, caches, positions=at) for part, at in zip(*parts, strict=True)], dim=1)
    expect_equal(
        [cache.shapes for cache in caches],
        [[[[1, 6, n, 8], [1, 2, n, 8]] for n in (4, 3)]] * 2,
        because="a cache with a method `attend` gets its layer's queries, keys and values, and layer i gets caches[i]",
    )
    want = oracle.logits(built.state_dict(), CONFIG, tokens)
    judge(got, want, [], because="with caches that attend by themselves, the logits must be the same")


def test_calls_that_cannot_be_answered():
    built, tokens, at, mask = model(), ids(2, 3), torch.arange(3), torch.ones(3, 3, dtype=torch.bool)
    caches = [oracle.GrowingCache() for _ in range(3)]
    for message, given, how in (
        ("a mask needs positions", tokens, {"mask": mask}),
        ("ids must be", tokens[0], {"positions": at}),
        ("ids must be", tokens[:, :0], {"positions": at[:0]}),
        ("3 caches for 2 layers", tokens, {"positions": at, "caches": caches}),
        ("positions must be", tokens, {"positions": at[:2]}),
        ("positions must be", tokens, {"positions": at[:, None]}),
    ):
        with pytest.raises(ValueError, match=message):
            built(given, **how)
