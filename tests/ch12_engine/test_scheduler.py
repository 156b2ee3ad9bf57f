"""Exercises 12.1 to 12.5: urgency, the one rule, admission, preemption. Judged by small scenes worked out by hand."""

import pytest

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from shared.inference.block_manager import BlockManager, block_name
from tests.ch12_engine.scenes import (
    RUNNING,
    WAITING,
    given,
    names,
    new_scheduler,
    new_sequence,
    queued,
    run,
    survives,
    wait,
)

# 12.1 urgency


def urgency(scheduler: own.Scheduler, sequence):
    with survives("any sequence has an urgency: it takes its arrival, its priority, and the scheduler's ageing_s"):
        return scheduler.urgency(sequence)


@exercise("12.1")
def test_the_example():
    scheduler = new_scheduler(ageing_s=10.0)
    got = urgency(scheduler, new_sequence("a", arrived=100.0, priority=2))
    causes = {
        100.0: "the priority weighs nothing: arrived 100, and 2 units of 10 s more",
        2.0: "the arrival weighs nothing, so that whoever has a high number waits for ever",
        20.0: "the arrival weighs nothing, so that whoever has a high number waits for ever",
        80.0: "a higher number means less urgent, that is later: the priority's seconds are added",
        100.2: "a unit of priority weighs ageing_s seconds: multiply",
        110.0: "every unit of priority weighs ageing_s, 10 s, so two weigh 20",
    }
    because = "urgency is one number in seconds: 100 + 2 * 10"
    if isinstance(got, tuple):
        because = "urgency is one number, not a pair: as pairs, a priority of 1 waits as long as anyone with 0 comes"
    expect_equal(got, 120.0, because=causes.get(got, because) if isinstance(got, int | float) else because)


@exercise("12.1")
def test_waiting_makes_urgent():
    scheduler = new_scheduler(ageing_s=10.0)
    old, new = new_sequence("a", arrived=0.0, priority=1), new_sequence("b", arrived=11.0, priority=0)
    expect(
        urgency(scheduler, old) < urgency(scheduler, new),
        because="whoever has waited 11 s longer comes before one unit of priority, which weighs 10: else it never "
        "would",
    )
    newer = new_sequence("c", arrived=9.0, priority=0)
    expect(
        urgency(scheduler, newer) < urgency(scheduler, old),
        because="one unit of priority is worth more than 9 s of waiting, and lower goes first",
    )
    expect(
        urgency(scheduler, new_sequence("d", arrived=50.0, priority=-3)) == 20.0,
        because="a priority below 0 makes a request more urgent: 50 - 3 * 10",
    )


@exercise("12.1")
def test_it_does_not_depend_on_the_time():
    scheduler, sequence = new_scheduler(), new_sequence("a", arrived=100.0, priority=1)
    expect_equal(
        urgency(scheduler, sequence),
        110.0,
        because="no clock is read here: all who wait age alike, so their order is that of a number fixed at arrival. "
        "With a key that changes, the heap's order would be wrong a moment later",
    )


@exercise("12.1")
def test_seconds_have_fractions():
    sequence = new_sequence("a", arrived=0.25, priority=2)
    got = urgency(new_scheduler(ageing_s=2.5), sequence)
    causes = {
        20.25: "a unit of priority weighs ageing_s, which is a setting: here it's 2.5, and 10 is only its default",
        0.25: "priority weighs nothing: two units of 2.5 s are to be added",
    }
    rounded = "seconds have fractions: a thousand requests come in one second, and rounded they'd all be as urgent"
    because = causes.get(got, rounded) if isinstance(got, int | float) else "urgency is one number in seconds"
    expect_equal(got, 5.25, because=because)


@exercise("12.1")
def test_it_never_changes():
    scheduler, sequence = new_scheduler(ageing_s=2.5), new_sequence("a", arrived=0.5, priority=2)
    urgency(scheduler, sequence)
    expect(
        (sequence.arrived, sequence.priority) == (0.5, 2),
        because="urgency was asked for, and the sequence has changed: with every question it would get another one",
    )
    sequence.preemptions, sequence.token_ids = 3, [*sequence.token_ids, 7, 8]
    expect_equal(
        urgency(scheduler, sequence),
        5.5,
        because="it's as urgent as before, although it was preempted since and has more tokens: a number that changes "
        "puts the list of the running and the heap out of order",
    )


# 12.2 _schedule_running


class Roomy(own.Scheduler):
    """Room for everybody; or, with `room`, as many calls as its items get what they say."""

    room: list[str] = []

    def _make_room(self, sequence, n, step) -> bool:
        asked = self.__dict__.setdefault("asked", [])
        asked.append((sequence.request_id, n))
        if sequence.status is not RUNNING:
            return True
        word = self.room.pop(0) if self.room else "yes"
        if word == "last goes" or word == "goes itself":
            gone = self.running.pop()
            gone.status = WAITING
            step.preempted.append(gone)
        return word != "goes itself"


def roomy(budget: int, *missing: int, room: list[str] | None = None) -> Roomy:
    """A scheduler with one running sequence for each number: it misses so many tokens of its 20."""
    scheduler = Roomy(BlockManager(50, 4), max_num_seqs=4, max_num_batched_tokens=budget)
    for name, n in zip("abcd", missing, strict=False):
        run(scheduler, new_sequence(name, 20), computed=20 - n)
    scheduler.room = room or []
    return scheduler


def hand_out(scheduler: own.Scheduler, because: str) -> tuple[list[tuple[str, int]], int]:
    step = own.Step()
    with survives(because):
        left = scheduler._schedule_running(step)
    return given(step), left


@exercise("12.2")
def test_decodes_get_a_token_each():
    got, left = hand_out(roomy(16, 1, 1, 1), because="three decodes fit into a step")
    expect_equal(
        got,
        [("a", 1), ("b", 1), ("c", 1)],
        because="each of the three misses one token, and gets it, the most urgent first",
    )
    expect_equal(
        left, 13, because="three tokens of the budget of 16 are handed out; what is left is for those who wait"
    )


@exercise("12.2")
def test_a_prompt_gets_all_it_misses():
    got, left = hand_out(roomy(16, 6, 1), because="a prompt and a decode fit into a step")
    because = (
        "a gets all the 6 tokens it misses: the budget has room for them, and reading a prompt token by token, or an "
        "even "
        "share of the budget each, wastes the rest"
    )
    if got == [("b", 1), ("a", 6)]:
        because = "the order is that of self.running: the most urgent must find blocks before the others take them"
    expect_equal(got, [("a", 6), ("b", 1)], because=because)
    expect_equal(left, 9, because="7 of 16 are handed out")


@exercise("12.2")
def test_no_more_than_the_budget():
    got, left = hand_out(roomy(4, 20), because="a long prompt is read in pieces")
    causes = {3: "one token too many is kept back: behind a there is nobody", 20: "a prompt is read in pieces"}
    because = causes.get(got[0][1] if got else None, "a gets as much as the budget has")
    expect_equal(got, [("a", 4)], because=f"a misses 20, and the step's budget is 4: {because}")
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_a_long_prompt_leaves_a_token_for_those_behind():
    got, _ = hand_out(roomy(10, 20, 1, 1), because="there is budget for all three")
    causes = {
        (("a", 10),): "a long prompt in front takes the whole budget, and the two streams behind it stand still",
        (("a", 10), ("b", 0), ("c", 0)): "the streams behind the long prompt get 0 tokens: they stand still",
        (("a", 10), ("b", 1), ("c", 1)): "12 tokens are handed out of a budget of 10: it must shrink with each",
        (("a", 20), ("b", 1), ("c", 1)): "22 tokens are handed out of a budget of 10",
        (("a", 7), ("b", 1), ("c", 1)): "one token too many is kept back: behind a there are two others",
        (("b", 1), ("c", 1), ("a", 8)): "the order is that of self.running, by urgency; blocks are made room for in it",
    }
    expect_equal(
        got,
        [("a", 8), ("b", 1), ("c", 1)],
        because=causes.get(
            tuple(got) if got else None,
            "one token is kept back for each of the two behind a: they decode, and a's prompt is long",
        ),
    )


@exercise("12.2")
def test_those_behind_may_read_prompts_too():
    got, _ = hand_out(roomy(6, 9, 9, 9), because="there is budget for all three")
    expect_equal(
        got,
        [("a", 4), ("b", 1), ("c", 1)],
        because="b and c read prompts, and a token is kept back for each of them as well: each running sequence gets "
        "one of every step",
    )


@exercise("12.2")
def test_the_tightest_budget():
    got, left = hand_out(roomy(4, 5, 5, 1, 9), because="four sequences and a budget of four: one each")
    expect_equal(
        got,
        [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
        because="with a budget of one token each, each gets one; counting oneself among those behind leaves none",
    )
    expect_equal(left, 0, because="four of four are handed out")


@exercise("12.2")
def test_what_one_leaves_the_next_may_have():
    got, left = hand_out(roomy(16, 2, 20, 1), because="there is budget for all")
    expect_equal(
        got,
        [("a", 2), ("b", 13), ("c", 1)],
        because="b may have what a left, 14, less one for c",
    )
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_who_is_sent_away_gets_nothing():
    scheduler = roomy(16, 1, 1, 1, room=["last goes"])
    got, left = hand_out(scheduler, because="self.running gets shorter while you go through it: look again each time")
    expect_equal(
        got,
        [("a", 1), ("b", 1)],
        because="making room for a sent c away: it has no blocks any more and gets nothing. A copy of self.running, or "
        "its old length, still names it",
    )
    expect_equal(left, 14, because="two of 16 tokens are handed out")
    scheduler = roomy(16, 1, 1, 1, room=["yes", "yes", "goes itself"])
    got, left = hand_out(scheduler, because="the last one may have to go itself")
    expect_equal(
        got,
        [("a", 1), ("b", 1)],
        because="_make_room answered False for c: it was preempted itself, and gets no token",
    )
    expect_equal(left, 14, because="nothing is handed out to c, so its token is left")


@exercise("12.2")
def test_nothing_is_kept_back_for_who_is_gone():
    got, left = hand_out(roomy(10, 8, 6, 1, room=["last goes"]), because="self.running gets shorter on the way")
    expect_equal(
        got,
        [("a", 8), ("b", 2)],
        because="a takes 8 of 10, and c has gone to make room for it: b misses 6, may have the 2 that are left, and "
        "nobody stands behind it any more. Look at self.running again each time",
    )
    expect_equal(left, 0, because="the whole budget is handed out")


@exercise("12.2")
def test_nothing_is_computed_yet():
    scheduler = roomy(16, 6, 1)
    hand_out(scheduler, because="a prompt and a decode fit into a step")
    expect_equal(
        [sequence.num_computed_tokens for sequence in scheduler.running],
        [14, 19],
        because="handed out isn't computed: the step runs later, and `update` counts its tokens then",
    )


@exercise("12.2")
def test_who_comes_back_misses_its_answer_too():
    scheduler = roomy(16, 1)
    [a] = scheduler.running
    a.token_ids, a.num_computed_tokens = [*a.token_ids, 1, 2, 3, 4], 17
    got, _ = hand_out(scheduler, because="7 tokens fit into a step")
    expect_equal(
        got,
        [("a", 7)],
        because="a came back after a preemption: 3 tokens of its prompt and 4 of its answer aren't computed, and "
        "num_missing counts both. Counted from the prompt's length, the answer is read token by token",
    )


@exercise("12.2")
def test_room_is_asked_for_what_is_given():
    scheduler = roomy(10, 20, 1, 3)
    got, _ = hand_out(scheduler, because="there is budget for all three")
    expect_equal(
        scheduler.__dict__.get("asked", []),
        got,
        because="blocks must be there for every token handed out: ask _make_room once for each, with its n",
    )


@exercise("12.2")
def test_nobody_runs():
    got, left = hand_out(roomy(16), because="nobody runs: there is nothing to do")
    expect_equal((got, left), ([], 16), because="nobody runs, and the whole budget is left")


# 12.3 _admit


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


# 12.4 _preempt


def preempt(scheduler: own.Scheduler, victim, because: str = "the victim runs, and holds blocks") -> None:
    with survives(because):
        scheduler._preempt(victim)


@exercise("12.4")
def test_everything_is_given_back():
    scheduler = new_scheduler(num_blocks=6)
    run(scheduler, new_sequence("a", 6))
    b = run(scheduler, new_sequence("b", 9))
    b.block_names = [b"1", b"2"]
    preempt(scheduler, b)
    expect(
        scheduler.blocks.num_free == 4,
        because=f"a holds 2 of 6 blocks, so 4 must be free, and {scheduler.blocks.num_free} are: release b's table. "
        "A new empty list in its place frees nothing",
    )
    expect(not b.block_table, because="b holds no blocks any more: its table is empty")
    expect_equal(names(scheduler.running), ["a"], because="b doesn't run any more, and a does")
    expect(
        b.num_computed_tokens == 0,
        because="b's blocks are gone and so is what was computed: num_computed_tokens is 0, or its next step would "
        "attend "
        "to keys that are somebody else's",
    )
    expect(
        b.block_names == [],
        because="the names are those of blocks it held: kept, they make it skip publishing, or publish a wrong chain",
    )
    expect(b.preemptions == 1, because="count it in preemptions: who is sent away often should be seen")


@exercise("12.4")
def test_it_waits_again():
    scheduler = new_scheduler()
    b = run(scheduler, new_sequence("b", 9))
    preempt(scheduler, b)
    expect(b.status is WAITING, because=f"b waits again; its status says {b.status}")
    expect(scheduler.num_waiting == 1, because="one more waits: num_waiting counts it, or the queue's bound is wrong")
    expect(
        scheduler._first_waiting() is b,
        because="b is in no queue: it's lost, and its caller waits for ever. self._enqueue(victim)",
    )


@exercise("12.4")
def test_what_was_sampled_is_kept():
    scheduler = new_scheduler()
    b = new_sequence("b", [1, 2, 3])
    b.token_ids += [7, 8]
    run(scheduler, b)
    preempt(scheduler, b)
    expect_equal(
        b.token_ids,
        [1, 2, 3, 7, 8],
        because="the caller has these tokens already: they are kept, and computed again like a prompt",
    )
    expect_equal(b.num_prompt_tokens, 3, because="its prompt is as long as it was; else its answer would be too short")


@exercise("12.4")
def test_the_heap_stays_a_heap():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", arrived=1.0))
    for name, arrived in (("c", 2.0), ("d", 3.0), ("e", 4.0)):
        wait(scheduler, new_sequence(name, arrived=arrived))
    preempt(scheduler, a)
    expect("a" in queued(scheduler), because="a waits again, so it's in the queue")


@exercise("12.4")
def test_it_keeps_its_turn():
    scheduler = new_scheduler()
    a = run(scheduler, new_sequence("a", arrived=1.0))
    wait(scheduler, new_sequence("c", arrived=2.0))
    preempt(scheduler, a)
    expect(
        scheduler._first_waiting() is a,
        because="a came before c, and comes before it again: its arrival is what it was. At the back of the queue it "
        "could be sent away again and again",
    )
    expect(
        (a.arrived, a.priority) == (1.0, 0),
        because="its arrival and its priority are what they were: with an urgency that changes it would push others "
        "back who came before it",
    )


@exercise("12.4")
def test_the_victim_and_nobody_else():
    scheduler = new_scheduler()
    a, b = run(scheduler, new_sequence("a")), run(scheduler, new_sequence("b"))
    preempt(scheduler, a)
    expect_equal(names(scheduler.running), ["b"], because="a is the victim here: remove that one, not the last")
    expect(b.status is RUNNING and b.block_table, because="b has nothing to do with it")


@exercise("12.4")
def test_answers_to_one_request():
    scheduler = new_scheduler()
    a, b = run(scheduler, new_sequence("r", [1, 2, 3])), run(scheduler, new_sequence("r", [1, 2, 3]))
    preempt(scheduler, b)
    expect(
        scheduler.running == [a],
        because="a and b are two answers to one request, and their request_id is the same: only b was to go. Ask for "
        "the sequence itself",
    )


@exercise("12.4")
def test_siblings_wait_for_it_still():
    scheduler = new_scheduler()
    parent = run(scheduler, new_sequence("p", 9), computed=4)
    parent.siblings = siblings = [new_sequence(name, parent.token_ids) for name in "xy"]
    scheduler.num_waiting += 2
    preempt(scheduler, parent)
    expect_equal(
        names(parent.siblings),
        names(siblings),
        because="p comes back and reads its prompt, and x and y start from there, as before: thrown away, they never "
        "start; queued, or passed on by `finish`, each reads the prompt anew",
    )
    expect_equal(
        queued(scheduler),
        ["p"],
        because="p waits in the queue, and its siblings wait for p: in the queue too, each would read the prompt anew",
    )
    expect_equal(
        scheduler.num_waiting,
        3,
        because="x and y waited already, and are counted: p is one more. `add` would count all three",
    )


@exercise("12.4")
def test_the_queue_may_be_full():
    scheduler = new_scheduler(max_waiting=0, max_num_seqs=2)
    run(scheduler, new_sequence("a"))
    b = run(scheduler, new_sequence("b"))
    wait(scheduler, new_sequence("c"))
    preempt(scheduler, b, because="the queue is full, but b is no newcomer: `add` refuses it. self._enqueue")


@exercise("12.4")
def test_an_unfinished_prompt_is_not_published():
    scheduler = new_scheduler()
    b = run(scheduler, new_sequence("b", 9), computed=5)
    preempt(scheduler, b)
    expect_equal(
        scheduler.blocks.match([*b.token_ids, 0]),
        [],
        because="b has read 5 of 9 tokens, and no logits vouch for them yet: its blocks must not be published. "
        "`update` publishes what is sound, and that is found again when b comes back",
    )


# 12.5 _make_room


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
