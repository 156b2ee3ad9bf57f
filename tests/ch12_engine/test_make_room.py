"""Exercise 12.5, room for more tokens: judged by who has to go for it."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from tests.ch12_engine.scenes import WAITING, names, new_scheduler, new_sequence, queued, run, survives


def make_room(scheduler: own.Scheduler, sequence, n: int) -> tuple[bool, own.Step]:
    step = own.Step()
    with survives("blocks can be had, if others give up theirs"):
        return scheduler._make_room(sequence, n, step), step


def crowded(num_blocks: int = 4) -> tuple[own.Scheduler, list]:
    """a, b, c and d hold a full block each; there are no more."""
    scheduler = new_scheduler(num_blocks=num_blocks)
    return scheduler, [run(scheduler, new_sequence(name, 5, arrived=i), 4, 1) for i, name in enumerate("abcd")]


@exercise("12.5")
def test_there_is_room():
    scheduler, (a, *_) = crowded(num_blocks=5)
    got, step = make_room(scheduler, a, 1)
    expect_equal(names(step.preempted), [], because="a block is free: nobody has to go")
    expect_equal(got, True, because="there was room, so a goes on: True")
    expect(len(a.block_table) == 2, because="a's fifth token needs a second block: _grow takes it")


@exercise("12.5")
def test_the_least_urgent_goes():
    scheduler, (a, *_) = crowded()
    got, step = make_room(scheduler, a, 1)
    causes = {
        (
            "a",
        ): "the most urgent was sent away, or the one that asked; the least urgent, the last that runs, goes first",
        ("d", "c", "b"): "one was enough: try again after each",
        ("b", "c", "d"): "one was enough: try again after each",
        (): "nobody is entered in step.preempted: whoever reads the step must see who left",
    }
    expect_equal(
        names(step.preempted),
        ["d"],
        because=causes.get(tuple(names(step.preempted)), "d is the least urgent, the last of self.running"),
    )
    expect_equal(got, True, because="with d's block a goes on: True")
    expect_equal(names(scheduler.running), ["a", "b", "c"], because="d goes, and nobody else")


@exercise("12.5")
def test_who_goes_waits():
    scheduler, (a, _, _, d) = crowded()
    make_room(scheduler, a, 1)
    expect(
        d.status is WAITING,
        because=f"d is to come back, and its status says {d.status.value}: self._preempt(victim). Out of the list and "
        "its blocks released is half of it; and `finish` ends its answer here",
    )
    expect(
        queued(scheduler) == ["d"] and scheduler.num_waiting == 1,
        because="d is in no queue, so it never runs again, and its caller waits for ever: self._preempt(victim)",
    )


@exercise("12.5")
def test_a_shared_block_needs_a_copy():
    scheduler = new_scheduler(num_blocks=2)
    a = run(scheduler, new_sequence("a", 3), 2, 1)
    b = run(scheduler, new_sequence("b", 3, arrived=1.0), 2, 0)
    b.block_table = scheduler.blocks.share(a.block_table)  # two answers to one prompt
    run(scheduler, new_sequence("c", 3, arrived=2.0), 2, 1)
    got, step = make_room(scheduler, a, 1)
    expect_equal(
        (got, names(step.preempted)),
        (True, ["c"]),
        because="a's next token goes into a block that b reads as well, so a needs a copy, and no block is free for "
        "it: `_grow` says False then. Count nothing yourself, ask `_grow`",
    )
    expect(
        step.copies and a.block_table != b.block_table,
        because="a and b would write into one block: `_grow` takes the copy, and answers True when it has",
    )


@exercise("12.5")
def test_as_many_as_it_takes():
    scheduler, (a, *_) = crowded()
    a.token_ids += [0] * 8
    got, step = make_room(scheduler, a, 9)
    expect_equal(
        (got, names(step.preempted)),
        (True, ["d", "c", "b"]),
        because="9 more tokens need three more blocks, so three have to go, the least urgent first: `while`, not "
        "`if`, and "
        "all n tokens, not the first",
    )
    expect(len(a.block_table) == 4, because="13 tokens lie in 4 blocks")


@exercise("12.5")
def test_the_last_one_goes_itself():
    scheduler, (_, _, _, d) = crowded()
    got, step = make_room(scheduler, d, 1)
    expect_equal(
        (names(step.preempted), names(scheduler.running)),
        (["d"], ["a", "b", "c"]),
        because="d is the least urgent itself: it gives up its blocks and queues again. To keep them while it can't "
        "go on "
        "would block others, and in the end everybody",
    )
    expect_equal(got, False, because="d is gone, and can't go on in this step: False")


@exercise("12.5")
def test_urgency_and_not_age():
    scheduler = new_scheduler(num_blocks=3, ageing_s=10.0)
    first = run(scheduler, new_sequence("u", 5, arrived=9.0, priority=-2), 4, 1)  # urgency -11
    for name, arrived in (("a", 0.0), ("b", 1.0)):
        run(scheduler, new_sequence(name, 5, arrived=arrived), 4, 1)
    _, step = make_room(scheduler, first, 1)
    expect_equal(
        names(step.preempted),
        ["b"],
        because="self.running is in order of urgency: its last one goes. u arrived last and is the most urgent all "
        "the same",
    )


@exercise("12.5")
def test_among_equals_the_last():
    scheduler = new_scheduler(num_blocks=4)
    a, *_ = [run(scheduler, new_sequence(name, 5, arrived=1.0), 4, 1) for name in "abcd"]
    got, step = make_room(scheduler, a, 1)
    expect_equal(
        (got, names(step.preempted)),
        (True, ["d"]),
        because="all are as urgent, and the order among them is that of self.running: its last one goes. `max` takes "
        "the first of equals, which is one that was given its tokens already",
    )
