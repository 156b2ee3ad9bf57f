"""Exercise 12.6, the other answers to a prompt start: judged by the blocks, names and tokens that they get."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal, no_result
from tests.ch12_engine.scenes import ABORTED, RUNNING, WAITING, names, new_scheduler, new_sequence, run, survives


def family(scheduler: own.Scheduler, n_siblings: int, tokens: int = 6):
    """A parent whose prompt is computed, and its siblings, who wait for that."""
    parent = run(scheduler, new_sequence("p", tokens), computed=tokens)
    scheduler.blocks.publish(parent.block_table, parent.token_ids, parent.block_names, tokens)
    parent.siblings = [new_sequence(name, parent.token_ids) for name in "xyz"[:n_siblings]]
    scheduler.num_waiting += n_siblings
    return parent, list(parent.siblings)


def start(scheduler: own.Scheduler, parent) -> list:
    with survives("the parent's prompt is computed, and its siblings wait"):
        return scheduler._start_siblings(parent)


@exercise("12.6")
def test_blocks_are_shared():
    scheduler = new_scheduler()
    parent, (x, y) = family(scheduler, 2)
    start(scheduler, parent)
    expect_equal(
        x.block_table,
        parent.block_table,
        because="a sibling holds the parent's blocks, all of them: the last, half empty, too. What is in it needn't be "
        "computed twice, and whoever writes into it first gets a copy",
    )
    expect(
        x.block_table is not parent.block_table and x.block_table is not y.block_table,
        because="each sequence needs a table of its own: in one list, the next block of one becomes everybody's",
    )
    expect_equal(
        [scheduler.blocks.ref_counts[block] for block in parent.block_table],
        [3, 3],
        because="three sequences hold these blocks now, and the counts must say so (`share`): else the first that ends "
        "frees what the others read, and nobody copies before writing",
    )
    expect(
        x.num_computed_tokens == 6,
        because=f"the parent's 6 tokens are in those blocks: they are computed for the sibling too, and it says "
        f"{x.num_computed_tokens}",
    )


@exercise("12.6")
def test_names_are_its_own():
    scheduler = new_scheduler()
    parent, (x,) = family(scheduler, 1)
    start(scheduler, parent)
    expect_equal(x.block_names, parent.block_names, because="the full block has a name, and the sibling knows it")
    expect(
        x.block_names is not parent.block_names,
        because="the names need a list of their own: in one list, a block the parent fills would count as the "
        "sibling's",
    )


@exercise("12.6")
def test_tokens_are_its_own():
    scheduler = new_scheduler()
    parent, (x,) = family(scheduler, 1)
    parent.arrived = x.arrived = 5.0
    start(scheduler, parent)
    expect(
        x.token_ids is not parent.token_ids,
        because="the tokens are a list of its own: in one list, every token of one answer is in the other",
    )
    expect(
        x.arrived == 5.0,
        because="it arrived when its request did: with another arrival its urgency isn't the request's",
    )
    expect_equal(
        scheduler.blocks.asked_tokens,
        0,
        because="`match` wasn't asked for anything: counted as hits, a parent's blocks make the hit rate look better "
        "than the prefix cache is",
    )


@exercise("12.6")
def test_in_order_of_urgency():
    scheduler = new_scheduler()
    parent, (x,) = family(scheduler, 1)
    run(scheduler, new_sequence("q", arrived=9.0))
    start(scheduler, parent)
    expect_equal(
        names(scheduler.running),
        ["p", "x", "q"],
        because="x came with p, before q: self._run(sibling) puts it in its place. At the end of the list it would be "
        "the first that has to go",
    )


@exercise("12.6")
def test_sharing_needs_no_free_block():
    scheduler = new_scheduler(num_blocks=2)
    parent, _ = family(scheduler, 1)
    expect_equal(
        names(start(scheduler, parent)),
        ["x"],
        because="no block is free, and none is needed: x shares its parent's. A copy is made when one of them writes",
    )


@exercise("12.6")
def test_they_run():
    scheduler = new_scheduler()
    parent, (x, y) = family(scheduler, 2)
    got = start(scheduler, parent)
    expect(got is not None, because=no_result("those that start get a token of this step"))
    expect_equal(names(got), ["x", "y"], because="return those that start: each gets a token of this step")
    expect(x.status is RUNNING and x in scheduler.running, because="it runs now: self._run(sibling)")
    expect_equal(scheduler.num_waiting, 0, because="they don't wait any more: num_waiting counts one fewer for each")
    expect_equal(
        parent.siblings,
        [],
        because="the parent has no siblings to start any more: left in its list, they'd be started again with every "
        "token",
    )
    expect_equal(names(start(scheduler, parent)), [], because="a second time, there is nobody left to start")


@exercise("12.6")
def test_only_as_far_as_there_are_places():
    scheduler = new_scheduler(max_num_seqs=2)
    parent, (x, y, z) = family(scheduler, 3)
    got = start(scheduler, parent)
    expect_equal(
        names(scheduler.running),
        ["p", "x"],
        because="max_num_seqs is 2, and the parent has one of the places: one sibling starts",
    )
    expect_equal(
        names(got), ["x"], because="only those that start get a token now; y and z wait, and draw theirs later"
    )
    expect_equal(scheduler.num_waiting, 2, because="two still wait, as before: they were counted when the request came")
    first = scheduler._first_waiting()
    expect(
        first in (y, z) and len(scheduler._heap) == 2,
        because="whoever finds no place must be in the queue, or nobody ever starts it: self._enqueue",
    )
    expect(not y.block_table and y.status is WAITING, because="who waits holds no blocks")


@exercise("12.6")
def test_who_has_ended_does_not_start():
    scheduler = new_scheduler()
    parent, (x, y) = family(scheduler, 2)
    x.status = ABORTED
    scheduler.num_waiting -= 1
    got = start(scheduler, parent)
    expect_equal(names(got), ["y"], because="x was aborted while it waited: it must not come back to life")
    expect(
        x.status is ABORTED and not x.block_table and not scheduler._heap,
        because="whoever has ended is neither started nor queued",
    )
    expect_equal(scheduler.num_waiting, 0, because="x had stopped waiting already; only y does now")
