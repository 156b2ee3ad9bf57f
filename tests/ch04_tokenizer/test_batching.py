"""Exercises 4.7 and 4.8: judged by small batches made by hand, by torch's own padding, and by properties."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence

from chapters.ch04_tokenizer import batching
from chapters.judge import NO_RESULT, exercise, expect, expect_equal, expect_parts

# 4.7 length_buckets


def buckets(lengths: list[int], batch_size: int) -> list[list[int]]:
    given = list(lengths)
    got = batching.length_buckets(given, batch_size)
    expect(got is not None, because=NO_RESULT)
    expect(
        given == lengths, because="the caller's lengths were changed: lengths.sort() sorts the list that was handed in"
    )
    expect(isinstance(got, list), because=f"a list of batches is wanted; yours is a {type(got).__name__}")
    for batch in got:
        expect(
            isinstance(batch, list), because=f"batches are lists of indices; yours are of type {type(batch).__name__}"
        )
    return got


@exercise("4.7")
def test_nobody_is_left_out():
    batches = buckets([7, 3, 5, 4, 6], batch_size=2)
    expect_equal(
        [len(batch) for batch in batches],
        [2, 2, 1],
        because="five sequences make two full batches and one of a single sequence; a last batch that isn't full must "
        "not be dropped",
    )


@exercise("4.7")
def test_buckets_hold_indices():
    got = buckets([90, 20, 80, 10, 30], batch_size=2)
    expect_equal(
        got,
        [[3, 1], [4, 2], [0]],
        because="batches hold the indices of the sequences, the shortest first: that is number 3, of length 10. "
        "Numbers in plain order mean that nothing was sorted, or that they are places in the sorted list; then, as "
        "with lengths in place of indices, nobody can tell which answer belongs to whom",
    )


@exercise("4.7")
def test_neighbours_in_length():
    lengths = [random.Random(0).randint(1, 500) for _ in range(64)]
    batches = buckets(lengths, batch_size=8)
    flat = [lengths[i] for batch in batches for i in batch]
    expect(
        flat == sorted(flat),
        because="the sequences must come in order of length, for only neighbours in length share "
        "a batch without padding",
    )


@exercise("4.7")
def test_each_sequence_once():
    lengths = [5, 5, 1, 5, 5, 5, 1]
    batches = buckets(lengths, batch_size=3)
    expect_equal(
        sorted(i for batch in batches for i in batch),
        list(range(7)),
        because="each sequence is in one batch, once; lengths.index(n) finds the first of equals every time",
    )
    expect_equal(
        batches,
        [[2, 6, 0], [1, 3, 4], [5]],
        because="equally long ones keep their order, and a batch is as full as it can be",
    )


@exercise("4.7")
def test_few_and_none():
    expect_equal(buckets([7], batch_size=8), [[0]], because="one sequence makes one batch")
    expect_equal(buckets([], batch_size=8), [], because="no sequences make no batches")


@exercise("4.7")
def test_order_can_be_restored():
    rng = random.Random(0)
    for _ in range(50):
        texts = ["x" * rng.randint(0, 20) + str(i) for i in range(rng.randint(0, 30))]
        batches = buckets(list(map(len, texts)), rng.randint(1, 7))
        results = [[texts[i].upper() for i in batch] for batch in batches]
        back: list[str | None] = [None] * len(texts)
        for batch, row in zip(batches, results, strict=True):
            for i, result in zip(batch, row, strict=True):
                back[i] = result
        expect_equal(
            back,
            [text.upper() for text in texts],
            because="results put back by the batches' indices must stand beside their questions",
        )


# 4.8 pad


def padded(batch: list[list[int]], pad_id: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    given = [list(row) for row in batch]
    got = batching.pad(given, pad_id, side)
    expect_parts(got, ("ids", "mask"), because="two tensors are wanted: the ids, and the mask that says which are real")
    for name, part in zip(("ids", "mask"), got, strict=True):
        expect(
            isinstance(part, torch.Tensor),
            because=f"the {name} come as a tensor [batch, longest]; yours are of type {type(part).__name__}",
        )
    expect(
        given == batch,
        because="the caller's sequences were changed: row += [...] and row.append(...) work in place, on the list "
        "that was handed in",
    )
    return got


@exercise("4.8")
def test_a_rectangle():
    ids, _ = padded([[5, 6, 7], [8], [1, 2]], pad_id=9)
    expect_equal(
        ids.tolist(),
        [[5, 6, 7], [8, 9, 9], [1, 2, 9]],
        because="shorter rows are filled up with pad_id, which is 9 here and not 0, to the length of the longest",
    )


@exercise("4.8")
def test_the_mask_marks_what_is_real():
    _, mask = padded([[5, 6, 7], [8], [1, 2]], pad_id=9)
    expect_equal(
        mask.tolist(),
        [[True, True, True], [True, False, False], [True, True, False]],
        because="the mask is True where a sequence has its ids and False on padding; without it the model takes "
        "padding for text",
    )


@exercise("4.8")
def test_the_pad_id_may_be_a_real_token():
    _, mask = padded([[2, 5, 2], [2]], pad_id=2)
    expect_equal(
        mask.tolist(),
        [[True, True, True], [True, False, False]],
        because="id 2 is real here as well as padding (many models pad with their end token): make the mask from "
        "the lengths, not from ids != pad_id",
    )


@exercise("4.8")
def test_left_padding():
    ids, mask = padded([[5, 6, 7], [8]], pad_id=0, side="left")
    expect_equal(
        ids.tolist(),
        [[5, 6, 7], [0, 0, 8]],
        because='with side="left" the padding comes first and every row ends with its last real id',
    )
    expect_equal(
        mask.tolist(),
        [[True, True, True], [False, False, True]],
        because='with side="left" the mask is False on the left',
    )


@exercise("4.8")
def test_types():
    ids, mask = padded([[5], [6, 7]], pad_id=0)
    expect_equal(
        (ids.dtype, mask.dtype),
        (torch.int64, torch.bool),
        because="ids are int64, as an embedding takes them; the mask is bool, so that ~mask and masked_fill work",
    )


@exercise("4.8")
def test_equal_to_torch():
    rng = random.Random(0)
    for _ in range(20):
        rows = [[rng.randint(0, 9) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(1, 6))]
        for side in ("right", "left"):
            ids, mask = padded(rows, pad_id=3, side=side)
            tensors = [torch.tensor(row) for row in rows]
            want = pad_sequence(tensors, batch_first=True, padding_value=3, padding_side=side)
            ones = pad_sequence([torch.ones_like(t) for t in tensors], batch_first=True, padding_side=side)
            expect_equal(ids, want, because=f"ids are not those of torch's pad_sequence, side={side}")
            expect_equal(mask, ones.bool(), because=f"the mask is not that of the real ids, side={side}")


@exercise("4.8")
def test_an_empty_sequence():
    for side in ("right", "left"):
        ids, mask = padded([[], [4, 5]], pad_id=0, side=side)
        expect_equal(
            (ids.tolist(), mask.tolist()),
            ([[0, 0], [4, 5]], [[False, False], [True, True]]),
            because=f"an empty sequence is a row of padding, all masked, with side={side!r} too. The slice [-n:] of a "
            "row is its last n columns, but for n = 0 it is all of them: count from the front, longest - n",
        )
