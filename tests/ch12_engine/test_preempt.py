"""Exercise 12.4, a running sequence is sent back to wait: judged by what it gives back and what it keeps."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from tests.ch12_engine.scenes import RUNNING, WAITING, names, new_scheduler, new_sequence, queued, run, survives, wait


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
