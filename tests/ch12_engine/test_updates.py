"""Exercises 12.6 to 12.8: what a step's result changes, who starts with it, and how a sequence ends."""

import pytest

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal, no_result
from tests.ch12_engine.scenes import (
    ABORTED,
    FINISHED,
    RUNNING,
    WAITING,
    names,
    new_scheduler,
    new_sequence,
    queued,
    run,
    survives,
    wait,
)

# 12.6 _start_siblings


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


# 12.7 update


def update(scheduler: own.Scheduler, scheduled, sampled, because="a token is there for each that misses none") -> None:
    with survives(because):
        scheduler.update(own.Step(list(scheduled)), sampled)


@exercise("12.7")
def test_a_decode():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 5))
    before = list(a.token_ids)
    update(scheduler, [(a, 1)], {a: 77})
    expect_equal(a.token_ids, [*before, 77], because="the sampled token is the sequence's next: append it")
    expect_equal(
        a.num_computed_tokens,
        5,
        because="the step computed one token, the fifth. The sampled one is known and not computed: that is the next "
        "step's",
    )
    expect_equal(a.num_missing, 1, because="after a decode exactly one token is missing, the new one")


@exercise("12.7")
def test_a_piece_of_a_prompt():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 10), computed=2)
    update(
        scheduler,
        [(a, 5)],
        {},
        because="a has tokens missing after this step, so nothing was sampled for it: don't ask for its token",
    )
    expect_equal(
        a.num_computed_tokens,
        7,
        because="2 tokens were computed and the step computed 5 more, which makes 7 of 10",
    )
    expect_equal(len(a.token_ids), 10, because="nothing is sampled in the middle of a prompt")
    expect(
        scheduler.blocks.match(a.token_ids) == [],
        because="blocks of an unfinished prompt are not published yet: NaN in them would only show in the logits",
    )
    update(scheduler, [(a, 3)], {a: 7}, because="now nothing is missing")
    expect_equal(
        (a.num_computed_tokens, a.num_missing), (10, 1), because="2 + 5 + 3 tokens are computed, and one is new"
    )
    expect_equal(
        len(scheduler.blocks.match([*a.token_ids, 0, 0])),
        2,
        because="10 computed tokens fill two blocks of 4: publish them, or nobody is ever spared anything",
    )


@exercise("12.7")
def test_only_what_is_computed_is_published():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 7), n_blocks=2)
    update(scheduler, [(a, 1)], {a: 9})
    expect_equal(
        len(scheduler.blocks.match([*a.token_ids, 0])),
        1,
        because="7 tokens are computed, so one block of 4 is full. The sampled token would fill the second, and its "
        "keys "
        "and values aren't there yet: whoever found that block would read what somebody left in it",
    )
    update(scheduler, [(a, 1)], {a: 9})
    expect_equal(
        len(scheduler.blocks.match([*a.token_ids, 0])),
        2,
        because="now the eighth token is computed and the second block is full: blocks of the answer are published too",
    )


@exercise("12.7")
def test_the_names_are_kept():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 9), computed=0)
    update(scheduler, [(a, 9)], {a: 7})
    expect_equal(
        len(a.block_names),
        2,
        because="two blocks are full, and a must know their names: give `publish` its own list, a.block_names. With "
        "another list every step hashes all its blocks anew, and a chat of 4,000 tokens has many",
    )


@exercise("12.7")
def test_nobody_is_ended_here():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", 5))
    a.token_ids += [1] * (a.params.max_tokens - 1)
    a.block_table += scheduler.blocks.take(1)
    a.num_computed_tokens = len(a.token_ids) - 1
    update(scheduler, [(a, 1)], {a: 7})
    expect(
        a.status is RUNNING,
        because="a has its last token now, and yet it isn't ended here: the engine sends the token first, and ends the "
        "sequence then. One that has ended before is taken for one that was aborted, and its token is never sent",
    )


@exercise("12.7")
@pytest.mark.parametrize("status", [ABORTED, FINISHED, WAITING])
def test_who_ended_meanwhile_is_passed_over(status):
    scheduler = new_scheduler()
    a, b = (run(scheduler, new_sequence(name, 5)) for name in "ab")
    scheduler.running.remove(a)  # gone while the step ran
    scheduler.blocks.release(a.block_table)
    a.status = status
    how = {ABORTED: "was aborted", FINISHED: "was finished", WAITING: "was sent away"}[status] + " while the step ran"
    update(
        scheduler,
        [(a, 1), (b, 1)],
        {a: 7, b: 8},
        because=f"a {how}: its table is empty, so ask first whether it's RUNNING",
    )
    expect(
        (len(a.token_ids), a.num_computed_tokens) == (5, 4),
        because=f"a {how}: its blocks are somebody else's, and nothing may be entered for it. Ask whether it's RUNNING",
    )
    expect_equal(len(b.token_ids), 6, because=f"b comes after one that {how}, and goes on: `continue`, not `break`")


@exercise("12.7")
def test_siblings_draw_their_own():
    scheduler = new_scheduler()
    parent = run(scheduler, new_sequence("p", 6), computed=0)
    x, y = parent.siblings = [new_sequence(name, parent.token_ids) for name in "xy"]
    scheduler.num_waiting += 2
    update(scheduler, [(parent, 6)], {parent: 1, x: 2, y: 3})
    expect(
        len(x.token_ids) == 7,
        because="the siblings start here, from the same logits: each gets its first token now, like the parent",
    )
    expect_equal(
        [s.token_ids[-1] for s in (parent, x, y)],
        [1, 2, 3],
        because="each answer has drawn a token of its own, with a seed of its own: sampled[each]",
    )
    expect_equal(x.num_missing, 1, because="its prompt is computed, and its own first token is missing")


@exercise("12.7")
def test_siblings_start_with_the_last_piece_too():
    scheduler = new_scheduler()
    parent = run(scheduler, new_sequence("p", 6), computed=5)
    [x] = parent.siblings = [new_sequence("x", parent.token_ids)]
    scheduler.num_waiting += 1
    update(scheduler, [(parent, 1)], {parent: 1, x: 2})
    expect(
        x.status is RUNNING and x.token_ids[6:] == [2],
        because="the last piece of p's prompt was a single token, and x starts there all the same: a step of one token "
        "isn't always a decode",
    )


@exercise("12.7")
def test_a_sibling_without_a_place_gets_none():
    scheduler = new_scheduler(max_num_seqs=1)
    parent = run(scheduler, new_sequence("p", 6), computed=0)
    [x] = parent.siblings = [new_sequence("x", parent.token_ids)]
    scheduler.num_waiting += 1
    update(scheduler, [(parent, 6)], {parent: 1, x: 2})
    expect_equal(len(x.token_ids), 6, because="x found no place and waits: it draws this very token when it has one")


# 12.8 finish


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
