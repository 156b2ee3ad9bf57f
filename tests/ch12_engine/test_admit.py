"""Exercise 12.3, who waits is let in: judged by small scenes worked out by hand."""

import pytest

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from shared.inference.block_manager import block_name
from tests.ch12_engine.scenes import RUNNING, WAITING, names, new_scheduler, new_sequence, queued, run, survives, wait


def admit(scheduler: own.Scheduler, sequence, because: str) -> bool:
    with survives(because):
        return scheduler._admit(sequence)


def remember(scheduler: own.Scheduler, tokens: list[int]) -> list[int]:
    """Someone computed these tokens and is gone: their full blocks are free, and known by name."""
    table = scheduler.blocks.take(scheduler.blocks.blocks_for(len(tokens)))
    kept = list(table)
    scheduler.blocks.publish(table, tokens, [], len(tokens))
    scheduler.blocks.release(table)
    return kept


@exercise("12.3")
def test_the_first_who_waits_starts():
    scheduler = new_scheduler(num_blocks=6)
    a, b = wait(scheduler, new_sequence("a", 9)), wait(scheduler, new_sequence("b", 2))
    expect_equal(admit(scheduler, a, "a fits"), True, because="a takes 3 of 6 free blocks, so it can start: True")
    expect(len(a.block_table) == 3, because=f"9 tokens take 3 blocks of 4, and a's table holds {len(a.block_table)}")
    expect(
        scheduler.blocks.num_free == 3,
        because=f"3 of 6 blocks must be free now, and {scheduler.blocks.num_free} are: `take` hands them out",
    )
    expect(a.status is RUNNING and a in scheduler.running, because="a must run now: self._run(sequence)")
    expect(a.num_computed_tokens == 0, because="nothing of a was known, so nothing is computed yet")
    expect(scheduler.num_waiting == 1, because="one fewer waits: num_waiting is one less")
    expect(
        [entry[2] for entry in scheduler._heap] == [b],
        because="a is still in the heap: pop it, or it is there twice when it has to come back",
    )


@exercise("12.3")
def test_what_just_fits():
    scheduler = new_scheduler(num_blocks=2)
    a = wait(scheduler, new_sequence("a", 8))
    expect_equal(
        admit(scheduler, a, because="two blocks are needed, and two are free"),
        True,
        because="a's 8 tokens take two blocks of 4, and two are free: it fits. Whoever asks for one more than that "
        "lets one that fills the pool wait for ever",
    )


@exercise("12.3")
def test_the_order_of_those_who_wait():
    scheduler = new_scheduler()
    for name, arrived in zip("abcdefg", (0.0, 1.0, 5.0, 2.0, 3.0, 6.0, 7.0), strict=True):
        wait(scheduler, new_sequence(name, arrived=arrived))
    admit(scheduler, scheduler._first_waiting(), because="a fits")
    expect_equal(
        queued(scheduler), list("bdecfg"), because="a is out of the heap, and the others wait in order of urgency"
    )


@exercise("12.3")
def test_it_runs_in_its_place():
    scheduler = new_scheduler()
    for name, arrived in (("r", 1.0), ("s", 9.0)):
        run(scheduler, new_sequence(name, arrived=arrived))
    admit(scheduler, wait(scheduler, new_sequence("a", arrived=5.0)), because="a fits")
    expect_equal(
        names(scheduler.running),
        ["r", "a", "s"],
        because="a is more urgent than s, which runs already: `_run` puts it in its place. Appended at the end, it "
        "would be the first that has to go",
    )


@exercise("12.3")
def test_too_few_blocks_and_nothing_happens():
    scheduler = new_scheduler(num_blocks=4)
    run(scheduler, new_sequence("r", 8))
    known = remember(scheduler, list(range(4)))
    a = wait(scheduler, new_sequence("a", list(range(12))))
    wait(scheduler, new_sequence("b", 1))
    got = admit(
        scheduler,
        a,
        because="one known block and two new ones are needed, and two are free: the known one is free itself, "
        "so sharing it takes it from the free list. Count it, and answer False before anything is taken",
    )
    expect_equal(got, False, because="a needs more blocks than are free: it has to wait")
    expect(
        scheduler.blocks.num_free == 2 and not a.block_table,
        because="when it doesn't fit, nothing may be taken or shared: those blocks would be lost to everybody",
    )
    expect(
        scheduler.num_waiting == 2 and scheduler._first_waiting() is a and a.status is WAITING,
        because="who doesn't fit goes on waiting, at the head of the queue: taken out and put back, it would stand "
        "behind b, which is as urgent and came later",
    )
    expect(
        scheduler.blocks.ref_counts[known[0]] == 0, because="the known block is held by somebody, and nobody started"
    )


@exercise("12.3")
def test_known_blocks_are_shared():
    scheduler = new_scheduler(num_blocks=8)
    known = remember(scheduler, list(range(8)))
    a = wait(scheduler, new_sequence("a", list(range(11))))
    admit(scheduler, a, because="two blocks are known, and one more is needed")
    expect_equal(
        a.block_table[:2],
        known,
        because="the table begins with the blocks that `match` found, in their order: token 0 lies in the first",
    )
    expect(len(a.block_table) == 3, because=f"11 tokens lie in 3 blocks; the table has {len(a.block_table)}")
    expect_equal(
        [scheduler.blocks.ref_counts[block] for block in a.block_table],
        [1, 1, 1],
        because="each block of the table has one holder: the known ones are shared (`share` counts), the new ones "
        "taken",
    )
    expect_equal(a.num_computed_tokens, 8, because="what two known blocks hold is computed: 8 tokens; 3 are missing")
    expect_equal(a.cached_tokens, 8, because="the prefix cache spared it 8 tokens")
    first = block_name(scheduler.blocks.root, [0, 1, 2, 3])
    expect_equal(
        a.block_names,
        [first, block_name(first, [4, 5, 6, 7])],
        because="it must know the names of its full blocks (names_of): the next block's name is made from the last "
        "one's",
    )


@exercise("12.3")
def test_hits_are_counted():
    scheduler = new_scheduler(num_blocks=8)
    remember(scheduler, list(range(8)))
    admit(scheduler, wait(scheduler, new_sequence("a", list(range(11)))), because="two known blocks and a new one")
    expect_equal(
        (scheduler.blocks.hit_tokens, scheduler.blocks.asked_tokens),
        (8, 11),
        because="of a's 11 tokens 8 were found. `share` counts that, when its second argument says how many tokens "
        "`match` was asked for: without it the hit rate stays 0, however much is spared",
    )


@exercise("12.3")
def test_known_blocks_cost_nothing_twice():
    scheduler = new_scheduler(num_blocks=4)
    owner = run(scheduler, new_sequence("o", list(range(9))))
    scheduler.blocks.publish(owner.block_table, owner.token_ids, owner.block_names, 8)
    a = wait(scheduler, new_sequence("a", list(range(10))))
    got = admit(scheduler, a, because="two blocks are shared with o, which runs, and one is new: one is free")
    expect_equal(
        got,
        True,
        because="a shares two blocks with a running sequence, which costs none, and needs one new one, which is free: "
        "what is known must be taken from what is needed",
    )


@exercise("12.3")
def test_sharing_comes_before_taking():
    scheduler = new_scheduler(num_blocks=3)
    known = remember(scheduler, list(range(8)))
    other = scheduler.blocks.take(1)  # the block without a name
    scheduler.blocks.release(other)
    scheduler.blocks.share(other)  # somebody's; free are the two known ones, and then nothing
    scheduler.blocks.release(list(other))
    scheduler.blocks.publish(other := scheduler.blocks.take(1), [7, 7, 7, 7], [], 4)
    scheduler.blocks.release(other)  # named, and freed last: handed out last
    a = wait(scheduler, new_sequence("a", list(range(10))))
    admit(scheduler, a, because="two known blocks and a new one, and three are free")
    expect_equal(
        (a.block_table[:2], len(set(a.block_table))),
        (known, 3),
        because="`take` hands out the free block that wasn't used for longest, and that may be the very one `match` "
        "found: "
        "share what was found first, then take",
    )


@exercise("12.3")
def test_who_comes_back_needs_blocks_for_its_answer_too():
    scheduler = new_scheduler(num_blocks=4)
    a = new_sequence("a", 4)
    a.token_ids += [1, 2, 3, 4, 5]  # sampled before it was preempted
    known = remember(scheduler, a.token_ids[:8])
    wait(scheduler, a)
    admit(scheduler, a, because="two known blocks and a new one, and four are free")
    expect(
        len(a.block_table) == 3,
        because=f"a comes back with 9 tokens, 4 of the prompt and 5 of the answer, which lie in 3 blocks; its table "
        "has "
        f"{len(a.block_table)}",
    )
    expect_equal(
        (a.block_table[:2], a.num_computed_tokens),
        (known, 8),
        because="its answer's blocks may be in the prefix cache as well: match all its tokens, not the prompt alone",
    )


@exercise("12.3")
@pytest.mark.parametrize("length", [4, 8])
def test_a_fully_cached_prompt_still_computes_a_token(length):
    scheduler = new_scheduler(num_blocks=6)
    remember(scheduler, list(range(length)))
    a = wait(scheduler, new_sequence("a", list(range(length))))
    admit(scheduler, a, because="the prompt is cached to its last block")
    expect(
        a.num_missing >= 1,
        because="all of the prompt is cached, and yet its last token has to be computed: nobody kept its logits. "
        "`match` sees to that; what is computed is what match found, not the whole prompt",
    )
    expect_equal(a.num_computed_tokens, length - 4, because="all blocks but the last are found")
