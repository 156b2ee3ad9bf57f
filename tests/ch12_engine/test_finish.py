"""Exercise 12.8: judged by what a sequence leaves behind when it ends."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from tests.ch12_engine.scenes import ABORTED, FINISHED, names, new_scheduler, new_sequence, queued, run, survives, wait


def finish(scheduler: own.Scheduler, sequence, *status) -> None:
    with survives("a sequence may be ended at any time, and more than once"):
        scheduler.finish(sequence, *status)


@exercise("12.8")
def test_one_that_runs():
    scheduler = new_scheduler(num_blocks=6)
    a = run(scheduler, new_sequence("a", 5))
    run(scheduler, new_sequence("b", 5))
    finish(scheduler, a)
    expect_equal(names(scheduler.running), ["b"], because="a doesn't run any more, and b, which comes after it, does")
    expect(
        scheduler.blocks.num_free == 4 and not a.block_table,
        because=f"b holds 2 of 6 blocks, so 4 must be free, and {scheduler.blocks.num_free} are: blocks leak when they "
        "aren't released, and after some thousand requests there are none",
    )
    expect(a.status is FINISHED, because="its status says that it's finished")
    expect_equal(scheduler.num_waiting, 0, because="a wasn't waiting: num_waiting is as it was")


@exercise("12.8")
def test_one_that_waits():
    scheduler = new_scheduler()
    a, b = wait(scheduler, new_sequence("a")), wait(scheduler, new_sequence("b"))
    finish(scheduler, a, ABORTED)
    expect(a.status is ABORTED, because="the caller says how it ended: `status`")
    expect_equal(scheduler.num_waiting, 1, because="one fewer waits, or the queue is full one day with nobody in it")
    expect(
        len(scheduler._heap) == 2,
        because="leave it in the heap: to search 10,000 who wait for each caller who leaves costs more than the "
        "step. It's "
        "recognised by its status when it comes up",
    )
    expect(scheduler._first_waiting() is b, because="b is the first who waits now")


@exercise("12.8")
def test_a_second_time_nothing_happens():
    scheduler = new_scheduler()
    a, b = run(scheduler, new_sequence("a")), wait(scheduler, new_sequence("b"))
    for sequence in (a, b):
        finish(scheduler, sequence)
        finish(scheduler, sequence, ABORTED)
    expect_equal(
        scheduler.num_waiting,
        0,
        because="b was ended twice, as when its caller leaves at its last token: the second time nothing may happen",
    )
    expect(
        (a.status, b.status) == (FINISHED, FINISHED),
        because="both were finished, one that ran and one that waited, and to be aborted afterwards changes nothing",
    )


@exercise("12.8")
def test_what_it_computed_is_still_known():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 9))
    before = list(a.token_ids)
    scheduler.blocks.publish(a.block_table, a.token_ids, a.block_names, 8)
    finish(scheduler, a)
    expect_equal(a.token_ids, before, because="the caller reads its tokens after the end: they stay")
    expect_equal(
        len(scheduler.blocks.match(before)),
        2,
        because="a's two full blocks are free, and still known by their names: the next turn of its chat finds them. "
        "`release` is enough; who forgets names empties the prefix cache",
    )


@exercise("12.8")
def test_siblings_of_one_that_waits():
    scheduler = new_scheduler()
    parent = wait(scheduler, new_sequence("p", 5))
    [x] = parent.siblings = [new_sequence("x", parent.token_ids)]
    scheduler.num_waiting += 1
    finish(scheduler, parent, ABORTED)
    expect_equal(
        queued(scheduler),
        ["x"],
        because="p was aborted before it ran, and x waited for it: it must be queued, whether p runs or waits",
    )


@exercise("12.8")
def test_siblings_go_on():
    scheduler = new_scheduler()
    parent = run(scheduler, new_sequence("p", 5), computed=2)
    x, y = parent.siblings = [new_sequence(name, parent.token_ids) for name in "xy"]
    scheduler.num_waiting += 2
    finish(scheduler, x, ABORTED)
    finish(scheduler, parent, ABORTED)
    expect(
        y in [entry[2] for entry in scheduler._heap],
        because="y waited for the parent's prompt, and nobody computes that any more: it must be queued, to do it "
        "itself",
    )
    expect_equal(len(scheduler._heap), 1, because="x had ended before: it's neither queued nor started")
    expect_equal(scheduler.num_waiting, 1, because="y waits, as it did before: it is counted once")
    expect_equal(parent.siblings, [], because="whoever has ended starts nobody")
