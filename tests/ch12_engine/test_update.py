"""Exercise 12.7: judged by what a step's result changes, and what it must leave alone."""

import pytest

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from tests.ch12_engine.scenes import ABORTED, FINISHED, RUNNING, WAITING, new_scheduler, new_sequence, run, survives


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
