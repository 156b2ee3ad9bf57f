"""Exercises 11.3 and 11.4, when a batch is due: judged by times that can be worked out by hand."""

import math
import random

from chapters.ch11_batcher import batch_queue
from chapters.judge import NO_RESULT, exercise, expect, expect_close, expect_equal

# 11.3 batch_due_at


def due(arrivals: list[float], size: int, window: float) -> float:
    given = list(arrivals)
    got = batch_queue.batch_due_at(given, size, window)
    expect(got is not None, because=NO_RESULT)
    expect_equal(given, arrivals, because="the arrivals are the caller's, and only to be looked at")
    return got


@exercise("11.3")
def test_the_first_one_sets_the_clock():
    expect_equal(due([10.0], 8, 5.0), 15.0, because="a request alone waits for the window, and not for ever")
    expect_equal(
        due([10.0, 12.0, 14.0], 8, 5.0),
        15.0,
        because="the window is counted from the first arrival. Counted from the latest, it begins anew with every "
        "arrival, and the first one waits for as long as others keep coming",
    )


@exercise("11.3")
def test_a_full_batch_waits_for_nobody():
    expect_equal(due([10.0, 11.0, 12.0], 4, 5.0), 15.0, because="three of four are not a full batch")
    expect_equal(
        due([10.0, 11.0, 12.0, 13.0], 4, 5.0),
        13.0,
        because="four of four are here: the batch is due when the fourth came, and not when the window ends",
    )
    expect_equal(
        due([10.0, 11.0, 12.0, 13.0, 14.0, 14.5], 4, 5.0),
        13.0,
        because="the fourth made it full; those after it belong to the next batch and change nothing",
    )
    expect_equal(due([10.0], 1, 5.0), 10.0, because="a batch of one is full at once")


@exercise("11.3")
def test_whichever_comes_first():
    expect_equal(
        due([10.0, 11.0, 19.0], 3, 5.0),
        15.0,
        because="the window ended at 15, before the batch was full at 19: whichever comes first, so it's the minimum",
    )
    expect_equal(due([10.0, 11.0], 4, 0.0), 10.0, because="with no window a batch is due with its first arrival")
    expect_close(due([0.0001], 4, 0.0003), 0.0004, because="windows may be short: don't round")


@exercise("11.3")
def test_by_brute_force():
    rng = random.Random(0)
    for _ in range(200):
        arrivals = sorted(rng.randint(0, 40) / 4 for _ in range(rng.randint(1, 9)))
        size, window = rng.randint(1, 6), rng.randint(0, 20) / 4
        tick = next(
            t / 4 for t in range(200) if sum(a <= t / 4 for a in arrivals) >= size or t / 4 >= arrivals[0] + window
        )
        expect_equal(
            due(arrivals, size, window),
            tick,
            because=f"arrivals {arrivals}, size {size}, window {window}: watching a clock, a quarter of a second at a "
            "time, one sees it due at another time",
        )


# 11.4 adaptive_window


def window(waiting: int, size: int, max_wait_s: float) -> float:
    got = batch_queue.adaptive_window(waiting, size, max_wait_s)
    expect(got is not None, because=NO_RESULT)
    return got


@exercise("11.4")
def test_the_ends():
    expect_close(
        window(1, 8, 14.0),
        14.0,
        because="one that waits alone has the whole window to wait: seven of seven places are still free. (With "
        "size instead of size - 1 below, nobody ever gets all of it)",
    )
    expect_close(
        window(8, 8, 14.0),
        0.0,
        because="a full batch has nothing to wait for. A window that grows with the queue is the wrong way round",
    )
    got = window(20, 8, 14.0)
    expect(got >= 0, because="a window can't be negative: more may wait than fit into a batch")
    expect_close(got, 0.0, because="more wait than fit into a batch: nothing to wait for")


@exercise("11.4")
def test_equal_steps():
    expect_close(
        [window(n, 8, 14.0) for n in range(1, 9)],
        [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0, 0.0],
        because="the window falls in equal steps, by max_wait_s / (size - 1) for each one more who waits",
    )
    expect_close(window(2, 5, 8.0), 6.0, because="one of four places is taken: three quarters of the window are left")
    expect_close(window(2, 5, 0.0), 0.0, because="no window shrinks to no window")


@exercise("11.4")
def test_batches_of_one():
    for waiting in (1, 2, 5):
        try:
            got = window(waiting, 1, 8.0)
        except ZeroDivisionError:
            got = math.nan
        expect_close(
            got,
            0.0,
            because=f"in batches of one there is nobody to wait for: no window, and no division by zero, with "
            f"{waiting} waiting",
        )
