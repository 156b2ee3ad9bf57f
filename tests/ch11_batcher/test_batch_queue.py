"""Exercises 11.5 and 11.6: judged by who stands in the queue, who is refused, and who goes together."""

import asyncio
import contextlib
import math
from dataclasses import dataclass

from chapters.ch11_batcher import batch_queue
from chapters.judge import NO_RESULT, exercise, expect, expect_close, expect_equal, expect_raises
from shared.inference.outputs import QueueFull

# 11.5 BatchQueue.add


@dataclass(eq=False)
class Asking:
    arrived: float = 0.0
    length: int = 8

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)
        expect(False, because=f"the queue knows two things of a request, `arrived` and `length`; you ask for `{name}`")


def queue_of(n: int, **policy) -> batch_queue.BatchQueue:
    """A queue with n waiting, put there without the reader's add."""
    queue = batch_queue.BatchQueue(batch_queue.BatchPolicy(**policy))
    queue._waiting.update((Asking(), None) for _ in range(n))
    return queue


@exercise("11.5")
def test_in_order():
    queue = queue_of(0, max_waiting=4)
    asking = [Asking(arrived=float(k)) for k in range(3)]
    for one in asking:
        queue.add(one)
    expect_equal(len(queue), 3, because="three were added, and three wait")
    expect(list(queue._waiting) == asking, because="they wait in the order in which they came")
    expect(
        queue.discard(asking[1]) and len(queue) == 2,
        because="somebody who waits was discarded, and discard said that nobody was there: it looks for the value "
        "None, self._waiting[request] = None",
    )
    fresh = queue_of(0, max_waiting=1)
    with contextlib.suppress(QueueFull):
        fresh.add(asking[0])
    expect_equal(len(fresh), 1, because="max_waiting=1 has room for one: the last place is to be given away, too")


@exercise("11.5")
def test_the_bound():
    for bound in (1, 4):
        queue = queue_of(bound, max_waiting=bound)
        before = list(queue._waiting)
        with expect_raises(
            QueueFull,
            because=f"{bound} wait and {bound} may: the next one is refused. A queue without a bound only fills, and "
            "everybody in it waits longer and longer",
        ):
            try:
                queue.add(Asking())
            except asyncio.QueueFull:
                expect(
                    False, because="this QueueFull is asyncio's; shared.inference.outputs has the one that says when"
                )
        expect(
            list(queue._waiting) == before,
            because="who was refused must not wait, and nobody may be pushed out to make room: those who wait were "
            "promised "
            "an answer",
        )


def refusal(n: int, size: int, batch_s: float) -> float:
    queue = queue_of(n, max_waiting=n, max_batch_size=size)
    queue.batch_s = batch_s
    try:
        queue.add(Asking())
    except QueueFull as error:
        return error.retry_after_s
    return math.nan


@exercise("11.5")
def test_when_to_come_back():
    got = refusal(16, 4, 2.0)
    expect(got != 1.0, because="QueueFull takes the seconds: without them, everybody is told to come back in 1 s")
    expect(got != 34.0, because="that is batch_s for each request; they are served max_batch_size at a time")
    expect_close(
        got,
        10.0,
        because="16 wait in batches of 4, that is 4 batches; one more is running. Five batches of 2 s are 10 s",
    )
    expect_close(
        refusal(9, 8, 2.0),
        6.0,
        because="9 in batches of 8 take two batches, the second for one of them: round up. And one is running",
    )
    expect_close(
        refusal(16, 4, 0.25),
        1.25,
        because="5 batches of a quarter of a second: a fraction of a second is an answer, too",
    )


# 11.6 BatchQueue.groups


def groups(lengths: list[int], **policy) -> list[tuple[int, list[int]]]:
    """The reader's groups, each request by its number."""
    queue = batch_queue.BatchQueue(batch_queue.BatchPolicy(**policy))
    asking = [Asking(arrived=float(k), length=length) for k, length in enumerate(lengths)]
    queue._waiting.update(dict.fromkeys(asking))
    got = queue.groups()
    expect(got is not None, because=NO_RESULT)
    expect_equal(len(queue), len(lengths), because="groups only looks: nobody leaves the queue")
    found = []
    for group in got:
        expect(
            isinstance(group, tuple | list)
            and len(group) == 2
            and isinstance(group[0], int)
            and isinstance(group[1], tuple | list),
            because="each group is (how many at most, [the requests]); buckets as they are would be (number, requests)",
        )
        for one in group[1]:
            expect(one in asking, because="groups holds the requests themselves, not their lengths")
        found.append((group[0], [asking.index(one) for one in group[1]]))
    return sorted(found, key=lambda group: group[1])


@exercise("11.6")
def test_no_edges():
    expect_equal(groups([]), [], because="nobody waits: no groups, and no empty ones")
    expect_equal(
        groups([5, 500, 50], max_batch_size=4),
        [(4, [0, 1, 2])],
        because="without edges and without long_from all are in one group, in the order in which they came, and not of "
        "length",
    )


@exercise("11.6")
def test_edges():
    policy = {"max_batch_size": 4, "edges": (8, 16)}
    expect_equal(
        groups([8], **policy) + groups([8, 9], **policy),
        [(4, [0]), (4, [0]), (4, [1])],
        because="a request of 8 tokens is in the bucket up to 8, and one of 9 in the next: the edge itself belongs to "
        "the lower bucket, bisect_left",
    )
    expect_equal(
        groups([20, 3, 12, 8, 17, 16], **policy),
        [(4, [0, 4]), (4, [1, 3]), (4, [2, 5])],
        because="up to 8: numbers 1 and 3; up to 16: 2 and 5; above: 0 and 4, who may not be forgotten. In each bucket "
        "in order of arrival, not of length",
    )
    expect_equal(groups([20, 12], **policy), [(4, [0]), (4, [1])], because="a bucket in which nobody waits is no group")


@exercise("11.6")
def test_the_long_ones_apart():
    policy = {"max_batch_size": 4, "edges": (8, 16), "long_from": 100}
    got = groups([5, 200, 9, 100, 99], **policy)
    expect(
        (4, [1, 3]) not in got,
        because="the long ones are apart, and would still share a batch of 4: they run alone, so their group's size is "
        "1",
    )
    expect(
        [sorted(members) for _, members in got if 4 in members] == [[4]],
        because="99 tokens are fewer than long_from = 100, and 100 are not: long_from itself is long, and 99 is in the "
        "last bucket",
    )
    expect_equal(
        got,
        [(4, [0]), (1, [1, 3]), (4, [2]), (4, [4])],
        because="long_from tokens or more: a bucket of their own, with batches of one, whatever the edges say",
    )
    got = groups([5, 200, 300], max_batch_size=4, long_from=100)
    expect_equal(got, [(4, [0]), (1, [1, 2])], because="long_from works without edges, too")


@exercise("11.6")
def test_take_what_is_due():
    queue = batch_queue.BatchQueue(batch_queue.BatchPolicy(max_batch_size=2, max_wait_s=5.0, edges=(8,), long_from=100))
    asking = [Asking(float(k), length) for k, length in enumerate((50, 4, 5, 6, 500))]
    queue._waiting.update(dict.fromkeys(asking))
    order = []
    while len(queue):
        at = queue.due_at()
        order.append((at, [asking.index(one) for one in queue.take()]))
    expect_equal(
        order,
        [(2.0, [1, 2]), (4.0, [4]), (5.0, [0]), (8.0, [3])],
        because="with your groups, the queue should serve the full bucket at 2, the long one as it comes at 4, and "
        "then those whose windows end at 5 and 8 (if 11.3 passes, look at groups)",
    )
