"""Exercises 14.9 and 14.10: judged by sequences of exits, and of pings, on a clock of the test's own."""

from chapters.ch14_service import supervision
from chapters.judge import Rejected, exercise, expect, expect_equal
from tests.ch14_service.scenes import survives

# 14.9 on_exit


def policy(**settings) -> supervision.RestartPolicy:
    return supervision.RestartPolicy(
        **({"first_s": 0.5, "longest_s": 3.0, "max_exits": 6, "settled_s": 10.0} | settings)
    )


def exits(which: supervision.RestartPolicy, *times: float) -> list[float | None]:
    with survives("an engine may exit at any time"):
        return [which.on_exit(at) for at in times]


@exercise("14.9")
def test_the_example():
    got = exits(policy(), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    if got == [None] * 6:
        raise Rejected("on_exit gave None each time", "does the function return its result? None means: give up")
    expect(
        got[0] == 0.0,
        because=f"the first exit gave {got[0]!r}: it may be an accident, and callers wait. Start at once, 0.0",
    )
    expect_equal(got[1], 0.5, because="the second exit in a row waits for first_s")
    expect_equal(got[2], 1.0, because="each further one waits twice as long as the one before: 0.5, then 1.0")
    expect_equal(got[3], 2.0, because="each further one waits twice as long as the one before: 0.5, 1.0, 2.0")
    expect_equal(got[4], 3.0, because="never longer than longest_s: 4 would be next, and 3 is the most")
    expect(
        got[5] is None,
        because="the sixth exit in a row is one too many with max_exits=6: None, give up. What can't start won't start "
        "for being tried once more, and somebody has to be told",
    )


@exercise("14.9")
def test_the_number_of_exits_is_a_setting():
    expect_equal(exits(policy(max_exits=1), 1.0), [None], because="max_exits=1 gives up at the first exit")
    expect_equal(
        exits(policy(max_exits=3), 1.0, 2.0, 3.0), [0.0, 0.5, None], because="max_exits=3 gives up at the third"
    )
    expect_equal(
        exits(policy(first_s=4.0, longest_s=3.0), 1.0, 2.0),
        [0.0, 3.0],
        because="longest_s bounds the second wait as well",
    )


@exercise("14.9")
def test_a_settled_engine_was_sound():
    which = policy()
    exits(which, 1.0, 2.0, 3.0)
    which.on_ready(5.0)
    expect_equal(
        exits(which, 15.0),
        [0.0],
        because="it had been ready for the 10 s of settled_s when it exited: sound, so the count begins anew, and this "
        "exit is the first of a new row",
    )


@exercise("14.9")
def test_ten_kills_an_hour_apart():
    which, got = policy(), []
    for hour in range(10):
        which.on_ready(3600.0 * hour)
        got += exits(which, 3600.0 * hour + 1800)
    expect_equal(
        got,
        [0.0] * 10,
        because="ten exits, each after half an hour of good work, are ten accidents and no row: none of them waits, "
        "and none is the last",
    )


@exercise("14.9")
def test_ready_for_a_moment_is_not_settled():
    which, got = policy(), []
    for start in range(6):
        which.on_ready(100.0 * start)
        got += exits(which, 100.0 * start + 9.0)
    expect_equal(
        got,
        [0.0, 0.5, 1.0, 2.0, 3.0, None],
        because="each became ready and died within the 10 s of settled_s. What counts is how long it was ready, and "
        "not how long ago the exit before was: an engine that takes long to load would be restarted for ever",
    )


@exercise("14.9")
def test_readiness_is_each_engines_own():
    which = policy()
    which.on_ready(0.0)
    got = exits(which, 5.0, 11.0, 50.0, 90.0)
    expect_equal(
        got,
        [0.0, 0.5, 1.0, 2.0],
        because="one engine was ready from 0 to 5 s. The next three never were: the readiness of the first was counted "
        "for them, and each seemed settled. Forget it with the engine that exited",
    )
    which = policy()
    which.on_ready(0.0)
    expect_equal(
        exits(which, 50.0, 51.0, 52.0),
        [0.0, 0.5, 1.0],
        because="the first was settled, and its exit is the first of a new row; the next ones, which never were ready, "
        "are the second and the third",
    )


@exercise("14.9")
def test_the_waits_begin_anew_as_well():
    which = policy()
    exits(which, 1.0, 2.0, 3.0)
    which.on_ready(5.0)
    expect_equal(
        exits(which, 15.0, 16.0, 17.0),
        [0.0, 0.5, 1.0],
        because="a new row of exits has the same waits as the first one: 0.0, first_s, twice that. They follow from "
        "self.num_exits; first_s stays as it was set",
    )


@exercise("14.9")
def test_settled_means_at_least():
    which = policy(settled_s=0.0)
    which.on_ready(1.0)
    exits(which, 1.0)
    which.on_ready(2.0)
    expect_equal(exits(which, 2.0), [0.0], because="ready for settled_s exactly is settled; here that is 0 s")
    which = policy()
    exits(which, 0.5)
    which.on_ready(0.0)
    expect_equal(
        exits(which, 10.0),
        [0.0],
        because="it was ready at 0 s on the clock and exited at 10. A time of 0 is a time: ask whether it `is None`",
    )


# 14.10 is_hung


def watch(hung_after_s: float = 5.0, at: float = 0.0) -> supervision.Watch:
    return supervision.Watch(ping_s=1.0, hung_after_s=hung_after_s, now=at)


def look(which: supervision.Watch, now: float) -> bool:
    with survives("one may look at any time"):
        got = which.is_hung(now)
    expect(got is not None, because="does the function return its result? True or False")
    return bool(got)


@exercise("14.10")
def test_nothing_was_asked():
    which = watch()
    got = [look(which, float(now)) for now in range(20)]
    expect(
        not any(got),
        because="no ping was sent, so none is unanswered: an engine with nothing to do says nothing, and is well",
    )


@exercise("14.10")
def test_an_open_ping():
    which = watch()
    which.on_sent(1.0)
    got = {now: look(which, now) for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.5)}
    expect(
        not any(got[now] for now in (1.0, 2.0, 3.0, 4.0, 5.0)),
        because="a ping may be open for 5 s: an engine that computes may be late with its answer",
    )
    expect(not got[6.0], because="exactly hung_after_s is still in time: longer than that is hung")
    expect(
        got[6.5],
        because="a ping was sent at 1 s, and at 6.5 nothing had come back: with hung_after_s=5 it's hung. "
        "One has looked every second, so nobody slept: is each look written down, in self._looked_at?",
    )
    got = [look(which, 6.5 + seconds) for seconds in range(1, 12)]
    expect(
        all(got),
        because="it's still hung when one looks again, however often: each look is remembered, also when it's hung, or "
        "the next one seems to come after a sleep",
    )


@exercise("14.10")
def test_a_ping_at_the_beginning():
    which = watch()
    which.on_sent(0.0)
    expect_equal(
        [look(which, now) for now in (1.0, 2.0, 3.0, 4.0, 5.0, 5.5)],
        [False] * 5 + [True],
        because="a ping was sent at 0 s on the clock, and 0 is a time like others: ask whether self._sent_at `is None`",
    )


@exercise("14.10")
def test_the_first_open_ping_counts():
    which, got = watch(at=1.0), []
    for now in range(1, 9):
        which.on_sent(float(now))
        got.append(look(which, now + 0.5))
    expect_equal(
        got,
        [False, False, False, False, False, True, True, True],
        because="a ping was sent each second from 1 s on, and none was answered. The first open one counts; counted "
        "from the latest, nobody would ever hang",
    )


@exercise("14.10")
def test_answered():
    which, got = watch(), []
    for now in range(1, 20):
        which.on_sent(float(now))
        which.on_pong(now + 0.25)
        got.append(look(which, now + 0.5))
    expect(not any(got), because="every ping was answered after a quarter of a second")


@exercise("14.10")
def test_busy_is_not_hung():
    which, got = watch(), []
    which.on_sent(1.0)
    for now in range(2, 40):
        if now % 4 == 0:
            which.on_step(float(now))
        got.append(look(which, now + 0.5))
    expect(
        not any(got),
        because="a step ended every 4 s: it's busy, and late with its answer. on_step counts the open ping's "
        "time anew, and that is the time to look at",
    )


@exercise("14.10")
def test_whoever_slept_forgives():
    which = watch()
    which.on_sent(1.0)
    look(which, 2.0)
    expect(
        not look(which, 100.0),
        because="nobody looked for 98 s: the computer slept, or the event loop stood still. The answer may have lain "
        "there since 1.1 s, unread, and a sound engine would be killed for our own sleep",
    )
    got = [look(which, 100.0 + seconds) for seconds in (1, 2, 3, 4, 5)]
    expect(not any(got), because="after a sleep the engine has its 5 s anew, from when one woke up")
    expect(
        look(which, 106.0),
        because="awake since 100 s, one has looked every second, and for 6 s nothing came: hung. Only a sleep is "
        "forgiven, once, and each look has to be remembered as the latest",
    )


@exercise("14.10")
def test_looking_slowly_is_not_sleeping():
    which, got = watch(), []
    which.on_sent(0.0)
    for now in (2.0, 4.0, 6.0, 8.0):
        got.append(look(which, now))
    expect_equal(
        got,
        [False, False, True, True],
        because="looked at every 2 s, which isn't longer than hung_after_s=5, so nobody slept: after 6 s without an "
        "answer it's hung. Forgiving each look that comes a little late, one never finds out",
    )
    for every in (4.0, 5.0):
        which = watch()
        which.on_sent(0.0)
        expect_equal(
            [look(which, every), look(which, 2 * every)],
            [False, True],
            because=f"looked at every {every:.0f} s, and that isn't longer than hung_after_s=5, so nobody slept: "
            f"after {2 * every:.0f} s without an answer it's hung",
        )


@exercise("14.10")
def test_a_sleep_while_nothing_is_open():
    which = watch()
    look(which, 1.0)
    look(which, 50.0)  # nothing was asked
    which.on_sent(50.5)
    got = [look(which, now) for now in (52.0, 54.0, 55.5, 56.0)]
    expect_equal(
        got,
        [False, False, False, True],
        because="each look is remembered, also when no ping is open: the sleep before 50 s has nothing to do with the "
        "ping of 50.5, which has been open for 5.5 s at 56",
    )
