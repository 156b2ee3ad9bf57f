"""Exercise 6.9: judged by what a division into parts must be."""

from chapters.ch06_training import distributed
from chapters.judge import exercise, expect_equal


@exercise("6.9")
def test_by_hand():
    batch = [9, 4, 7, 1, 3, 8]
    expect_equal(
        distributed.share_of_rank(batch, 0, world=3),
        [9, 4],
        because="process 0 of three gets the first two of six windows, a list of neighbours in the batch. If it is "
        "[9, 1], that is every third of them: a stride, not a slice",
    )
    expect_equal(
        [distributed.share_of_rank(batch, rank, world=3) for rank in range(3)],
        [[9, 4], [7, 1], [3, 8]],
        because="three processes get two windows each, in the order of the batch. If all three lists are the same, "
        "every "
        "process trains on the same data, and three do the work of one",
    )


@exercise("6.9")
def test_each_window_once():
    for n, world in ((8, 2), (12, 4), (5, 1), (6, 6)):
        batch = [100 + i * i for i in range(n)]
        parts = [distributed.share_of_rank(batch, rank, world) for rank in range(world)]
        expect_equal(
            sorted(i for part in parts for i in part),
            batch,
            because=f"{world} processes and a batch of {n}: together the parts must be the batch, each window in one "
            "of "
            "them, with none left out at the end and none twice",
        )
        expect_equal(
            {len(part) for part in parts},
            {n // world},
            because="all parts are equally long, or DDP's mean over the processes weighs windows differently",
        )


@exercise("6.9")
def test_an_order_that_is_not_sorted():
    parts = [distributed.share_of_rank([5, 2, 9, 0], rank, world=2) for rank in (0, 1)]
    expect_equal(parts, [[5, 2], [9, 0]], because="the shares hold the batch's own numbers, not places in it, unsorted")
