"""Exercise 10.10: judged by attention over keys and values in one piece, written out in float64."""

import math
import random

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chapters.ch10_paged_kv_cache import attention_gather
from chapters.judge import NO_RESULT, crash_means, exercise, expect, expect_close, expect_equal

KV_HEADS, GROUP, SIZE, DIM = 2, 3, 4, 8
HEADS = KV_HEADS * GROUP
SCALE = 0.2  # and not 1 / sqrt(8)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Fresh(TorchDispatchMode):
    """Notes the bytes of the largest piece of memory that an operation makes."""

    largest, maker = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in known:
                size = each.untyped_storage().nbytes()
                if size > self.largest:
                    self.largest, self.maker = size, func.overloadpacket.__name__
        return out


class Case:
    """n sequences with blocks anywhere in a pool, as many queries each; the last query sees all of its length."""

    def __init__(self, lengths: list[int], queries: int = 1, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.lengths, self.queries, self.n = lengths, queries, len(lengths)
        self.n_blocks = max(-(-length // SIZE) for length in lengths)
        blocks = rng.sample(range(1, 40), self.n * self.n_blocks)
        used = [-(-length // SIZE) for length in lengths]
        self.tables = [blocks[i * self.n_blocks :][: used[i]] + [0] * (self.n_blocks - used[i]) for i in range(self.n)]
        self.keys, self.values = normal(40, KV_HEADS, SIZE, DIM, seed=1), normal(40, KV_HEADS, SIZE, DIM, seed=2)
        self.q = normal(self.n, queries, HEADS, DIM, seed=3).transpose(1, 2)  # as the model makes it: not contiguous
        self.rows = attention_gather.pool_rows(torch.tensor(self.tables), KV_HEADS)
        self.fresh = Fresh()
        self.room = torch.full((2, len(self.rows), SIZE * DIM), math.nan, dtype=torch.float64)

    def mask(self) -> Tensor:
        """[n, 1, group * queries, n_blocks * block_size]."""
        mask = torch.zeros(self.n, 1, GROUP * self.queries, self.n_blocks * SIZE, dtype=torch.float64)
        for i, length in enumerate(self.lengths):
            for row in range(GROUP * self.queries):
                mask[i, 0, row, length - self.queries + row % self.queries + 1 :] = -math.inf
        return mask

    def attend(self, masked: bool = True) -> Tensor:
        mask = self.mask() if masked else None
        own = {"q": self.q, "keys": self.keys, "values": self.values, "rows": self.rows, "mask": mask}
        given = {name: tensor.clone() for name, tensor in own.items() if tensor is not None}
        with (
            crash_means(
                f"the shapes don't fit together. keys seen as rows are [-1, block_size * head_dim]; gathered, they "
                f"are [n, kv_heads, length, head_dim]; the queries of a group are one matrix, [n, kv_heads, "
                f"group * queries, head_dim], and the mask is made for that: {list(self.mask().shape)} here. "
                "(q has its axes turned: where view fails, reshape copies)"
            ),
            self.fresh,
        ):
            got = attention_gather.gather_attention(self.q, self.keys, self.values, self.rows, mask, SCALE, self.room)
        expect(got is not None, because=NO_RESULT)
        expect(isinstance(got, Tensor), because=f"a tensor is wanted; yours is a {type(got).__name__}")
        for name, before in given.items():
            expect(torch.equal(before, own[name]), because=f"{name} was changed; it belongs to others: only read it")
        expect(
            got.dtype == self.q.dtype,
            because=f"q, keys and values are {self.q.dtype} here, and so is the result; yours is {got.dtype}",
        )
        return got

    def together(self, pool: Tensor, i: int) -> Tensor:
        """One sequence's keys or values in one piece: [kv_heads, length, head_dim]."""
        length = self.lengths[i]
        return torch.stack([pool[self.tables[i][p // SIZE], :, p % SIZE] for p in range(length)], dim=1)

    def want(self, scale: float = SCALE, masked: bool = True, head=lambda h: h // GROUP, of: str = "values") -> Tensor:
        """[n, heads, queries, head_dim], written out."""
        out = torch.zeros_like(self.q)
        for i, length in enumerate(self.lengths):
            k, v = self.together(self.keys, i), self.together(getattr(self, of), i)
            for h in range(HEADS):
                for j in range(self.queries):
                    end = length - self.queries + j + 1 if masked else length
                    weights = (k[head(h), :end] @ self.q[i, h, j] * scale).softmax(dim=0)
                    out[i, h, j] = weights @ v[head(h), :end]
        return out


def folded(case: Case, masked: bool, axis: int = 3, tokens_first: bool = False, causal: bool = False) -> Tensor:
    """Wrong in known ways: softmax over the queries (axis=2), rows read tokens first, or is_causal for the mask."""
    rows = [pool.reshape(-1, SIZE * DIM)[case.rows] for pool in (case.keys, case.values)]
    if tokens_first:
        k, v = (each.view(case.n, -1, KV_HEADS, DIM).transpose(1, 2) for each in rows)
    else:
        k, v = (each.view(case.n, KV_HEADS, -1, DIM) for each in rows)
    scores = case.q.reshape(case.n, KV_HEADS, -1, DIM) @ k.transpose(2, 3) * SCALE
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -math.inf)
    elif masked:
        scores = scores + case.mask()
    return (scores.softmax(dim=axis) @ v).reshape(case.q.shape)


def close(case: Case, because: str, masked: bool = True) -> None:
    got = case.attend(masked)
    causes = {
        "the scale is missing, or is SDPA's own: pass scale=scale": case.want(scale=DIM**-0.5, masked=masked),
        "the scale is there twice: once in q, once in SDPA": case.want(scale=SCALE**2, masked=masked),
        "scores are multiplied by scale; yours were divided by it": case.want(scale=1 / SCALE, masked=masked),
        "the weights belong to the keys, and so did what was added up: the second half of the room is for values": (
            case.want(of="keys", masked=masked)
        ),
        "query head h reads key head h // group: a group's heads are neighbours (0, 0, 0, 1, 1, 1 here), and here they "
        "were dealt out in turn": case.want(head=lambda h: h % KV_HEADS, masked=masked),
    }
    expect_equal(
        list(got.shape), [case.n, HEADS, case.queries, DIM], because="the result has the shape of q: unfold the groups"
    )
    causes["softmax goes over the keys, the last axis; yours goes over the queries"] = folded(case, masked, axis=2)
    causes["a row holds one head's tokens, so a head's rows come before the next head's: view(n, kv_heads, -1, …)"] = (
        folded(case, masked, tokens_first=True)
    )
    causes["is_causal's triangle stands in the top left, so the first query sees one token; the mask is given"] = (
        folded(case, masked, causal=True)
    )
    for cause, numbers in causes.items():
        if torch.allclose(got, numbers) and not torch.allclose(numbers, case.want(masked=masked)):
            because = cause
    expect_close(got, case.want(masked=masked), because=because, rtol=1e-9, atol=1e-12)


@exercise("10.10")
def test_twice_the_same():
    case = Case([8])
    expect(
        torch.allclose(case.attend(), case.attend(), equal_nan=True),
        because="called twice with the same numbers, and the results differ: SDPA's fifth argument by position is "
        "dropout_p; write scale=scale",
    )


@exercise("10.10")
def test_one_query_over_full_blocks():
    close(
        Case([8]),
        masked=False,
        because="one query, two full blocks, no mask: the plainest case. Are the rows copied to where k and v are then "
        "taken from, and does each head get its own?",
    )


@exercise("10.10")
def test_the_room_is_used():
    case = Case([8])
    case.attend()
    expect(
        not case.room.isnan().any(),
        because="the room wasn't filled: index_select without out= (or keys[...]) makes fresh memory for each layer, "
        "which costs more than the copy itself",
    )
    first = case.keys[case.tables[0][0], 0].flatten()
    expect_close(case.room[0, 0], first, because="room[0] holds the keys' rows, the first head's first block first")


@exercise("10.10")
def test_no_fresh_memory():
    case = Case([80])
    case.attend()
    half = case.room[0].nbytes
    expect(
        case.fresh.largest < half,
        because=f"`{case.fresh.maker}` makes fresh memory for each layer: {case.fresh.largest:,} bytes, where all keys "
        f"together are {half:,}. The rows go straight into the room (index_select with out=), and k and v are views "
        "of it; no copy by an index, no head repeated, and SDPA gets four axes (with three it makes copies itself)",
    )


@exercise("10.10")
def test_the_mask_counts():
    case = Case([6])
    got = case.attend()
    expect(
        not torch.allclose(got, Case([8]).want()),
        because="the last block is half empty, and what lies there was seen all the same: pass attn_mask=mask",
    )
    close(case, because="six tokens in two blocks: the mask hides the two places behind the end")


@exercise("10.10")
def test_sequences_stay_apart():
    close(
        Case([8, 8, 8]),
        because="three sequences, each with its own blocks: one reads another's, or their heads are mixed up. rows has "
        "all heads of the first sequence, then all heads of the second",
    )


@exercise("10.10")
def test_ragged_lengths():
    close(
        Case([9, 1, 4, 5]),
        because="lengths of 9, 1, 4 and 5: tables are filled up to three blocks, and the mask hides what isn't theirs",
    )


@exercise("10.10")
def test_a_chunk_of_queries():
    close(
        Case([10], queries=5),
        because="five queries of one sequence: a group's queries are put into one matrix, the first head's five first. "
        "q.reshape(n, kv_heads, group * queries, head_dim) does that; a transpose before it mixes heads and queries",
    )


@exercise("10.10")
def test_chunks_of_several_sequences():
    close(Case([10, 7], queries=3), because="several sequences with several queries each")


@exercise("10.10")
def test_random_shapes():
    rng = random.Random(0)
    for seed in range(10):
        queries = rng.choice([1, 1, 2, 4])
        case = Case([rng.randint(queries, 14) for _ in range(rng.randint(1, 2))], queries, seed)
        close(case, because=f"lengths {case.lengths}, {queries} queries each")
