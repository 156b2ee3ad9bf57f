"""Exercise 12.1, urgency: judged by numbers worked out by hand, and by what must not change them."""

from chapters.ch12_engine import scheduler as own
from chapters.judge import exercise, expect, expect_equal
from tests.ch12_engine.scenes import new_scheduler, new_sequence, survives


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
