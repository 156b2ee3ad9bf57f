"""Exercises 13.10 and 13.12: garbage collections, and when a condition is an alert."""

import gc
import logging
import threading
from collections import deque

import numpy as np
import pytest

from chapters.ch13_observability import alerts, gc_pauses
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal

# 13.10 GcPauses.__call__


class Clock:
    """Tells the times it was given, one after another."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0)


def info(generation: int, collected: int = 0) -> dict:
    return {"generation": generation, "collected": collected, "uncollectable": 0}


def called(clock: Clock, *calls: tuple[str, dict]) -> list:
    watcher = gc_pauses.GcPauses(clock)
    for phase, details in calls:
        with crash_means(
            "read the clock once at each start and once at each stop that belongs to one; a stop without a start is no "
            "pause",
            TypeError,
            IndexError,
        ):
            watcher(phase, details)
    expect(
        isinstance(watcher.pauses, deque),
        because="append to self.pauses, the deque that is there: it has a bound, and `drain` takes from it",
    )
    got = list(watcher.pauses)
    with crash_means("`drain` takes the pauses out of self.pauses, from the left"):
        expect(watcher.drain() == got and not watcher.pauses, because="`drain` gives what there is, and leaves nothing")
    return got


@exercise("13.10")
def test_a_pause():
    got = called(Clock(5.0, 5.25), ("start", info(2)), ("stop", info(2, 17)))
    expect_equal(len(got), 1, because="a start and its stop are one pause: nothing is appended at the start")
    expect(isinstance(got[0], tuple) and len(got[0]) == 2, because="a pause is a pair, (generation, seconds)")
    expect_equal(got[0][0], 2, because='the generation comes first, and it is in info["generation"]')
    expect_close(got[0][1], 0.25, because="from the start to the stop: the stop's time less the start's")


@exercise("13.10")
def test_several():
    got = called(
        Clock(1.0, 1.5, 3.0, 3.125),
        ("start", info(0)),
        ("stop", info(0, 3)),
        ("start", info(1)),
        ("stop", info(1, 5)),
    )
    expect_close(
        got, [(0, 0.5), (1, 0.125)], because="each stop belongs to the latest start, whose time must be kept anew"
    )


@exercise("13.10")
def test_nothing_collected():
    got = called(Clock(1.0, 1.5), ("start", info(2)), ("stop", info(2, collected=0)))
    expect_equal(
        len(got),
        1,
        because="a collection that finds nothing has stopped everybody all the same: looking takes the time",
    )


@exercise("13.10")
def test_a_stop_without_a_start():
    got = called(Clock(4.0, 9.0, 9.5), ("stop", info(2, 1)))
    expect_equal(got, [], because="its start wasn't seen: the callback was put in during a collection")
    got = called(Clock(1.0, 1.5, 7.0), ("start", info(0)), ("stop", info(0)), ("stop", info(2)))
    expect_close(got, [(0, 0.5)], because="a start belongs to one stop; afterwards it must be forgotten")
    got = called(Clock(1.0, 1.5, 7.0), ("start", info(0)), ("stop", info(0)), ("stop", info(0)))
    expect_close(got, [(0, 0.5)], because="a start belongs to one stop; afterwards it must be forgotten")


@exercise("13.10")
def test_the_clock_may_begin_at_zero_and_pauses_are_short():
    got = called(Clock(0.0, 0.000125), ("start", info(0)), ("stop", info(0)))
    expect_equal(len(got), 1, because="0.0 is a time like any other: ask whether self._began `is None`")
    expect_equal(got[0][1], 0.000125, because="most pauses are shorter than a millisecond: nothing is rounded")


@exercise("13.10")
def test_no_lock_and_no_log():
    watcher, did = gc_pauses.GcPauses(Clock(1.0, 1.5)), []
    with pytest.MonkeyPatch.context() as patch:
        for module, name, makes in (
            (threading, "Lock", threading.Lock),
            (threading, "RLock", threading.RLock),
            (logging.Logger, "handle", lambda *args: None),
            (gc, "collect", lambda *args: 0),
        ):
            patch.setattr(module, name, lambda *args, name=name, makes=makes: (did.append(name), makes(*args))[1])
        watcher("start", info(0))
        watcher("stop", info(0))
    locks = (type(threading.Lock()), type(threading.RLock()))
    for owner in (gc_pauses, gc_pauses.GcPauses, watcher):
        did += [name for name, value in vars(owner).items() if isinstance(value, locks)]
    expect(
        not did,
        because="a collection begins in the middle of anything, even where a lock is held, and logging takes locks: "
        f"whoever asks for one here may wait for itself, for ever. Note the time, append, and nothing else; not {did}",
    )


@exercise("13.10")
def test_for_real():
    called(Clock(1.0, 2.0), ("start", info(0)), ("stop", info(0)))  # what it raises is not heard of in gc.callbacks
    watcher = gc_pauses.GcPauses()
    watcher.start()
    try:
        gc.collect()
    finally:
        watcher.stop()
    full = [seconds for generation, seconds in watcher.pauses if generation == 2]
    expect(len(full) == 1 and 0 < full[0] < 60, because=f"gc.collect is one collection of generation 2; got {full}")


# 13.12 Alert.update


def states(for_s: float, *evaluations: tuple[float, bool]) -> list[str]:
    alert = alerts.Alert(for_s)
    got = []
    for now, holds in evaluations:
        with crash_means("before the condition first holds, `since` is None", TypeError):
            state = alert.update(holds, now)
        expect(state is not None, because="return the new state")
        words = ("inactive", "pending", "firing")
        expect(state in words, because=f"a state is one of the words {', '.join(words)}; got {state!r}")
        expect_equal(alert.state, state, because="the state is returned, and kept in self.state as well")
        got.append(state)
    return got


@exercise("13.12")
def test_pending_firing_inactive():
    got = states(60, (10, True), (40, True), (70, True), (100, True), (130, False))
    expect_equal(
        got[:2], ["pending"] * 2, because="pending until the condition has held for for_s seconds, not at once"
    )
    expect_equal(
        got[3],
        "firing",
        because="90 s after it began to hold, for 60: the time is counted in seconds, from when it began",
    )
    expect_equal(got[2], "firing", because="at exactly for_s seconds it fires")
    expect_equal(got[4], "inactive", because="the alert ends with the condition")


@exercise("13.12")
def test_long_gaps_between_evaluations():
    expect_equal(
        states(60, (5, True), (305, True)),
        ["pending", "firing"],
        because="what counts is the time on the clock, not how many evaluations there were",
    )


@exercise("13.12")
@pytest.mark.parametrize("begin", [0, 0.0])
def test_beginning_at_zero(begin):
    expect_equal(
        states(10, (begin, True), (5, True), (10, True)),
        ["pending", "pending", "firing"],
        because="0 is a time like any other: ask whether self.since `is None`, not whether it is true",
    )


@exercise("13.12")
def test_the_time_is_not_the_first_one():
    expect_equal(
        states(10, (1000, False), (1001, True), (1005, True), (1011, True)),
        ["inactive", "pending", "pending", "firing"],
        because="the time counts from when the condition began to hold, which is at any reading of the clock",
    )


@exercise("13.12")
def test_a_numpy_truth_is_one():
    expect_equal(
        states(10, (5, np.bool_(True)), (15, np.bool_(True)), (16, np.bool_(False))),
        ["pending", "firing", "inactive"],
        because="what is compared may be NumPy's numbers: ask `if holds`, not `holds is True`",
    )


@exercise("13.12")
def test_a_break_starts_anew():
    got = states(60, (0, True), (50, True), (55, False), (60, True), (100, True), (120, True))
    expect_equal(
        got,
        ["pending", "pending", "inactive", "pending", "pending", "firing"],
        because="a break, however short, starts the time anew: what holds on and off for an hour is another alert's",
    )


@exercise("13.12")
def test_at_once():
    expect_equal(
        states(0, (5, True), (6, False), (7, True)),
        ["firing", "inactive", "firing"],
        because="with for_s 0 it fires at the first evaluation",
    )


@exercise("13.12")
def test_since():
    alert, got = alerts.Alert(10), []
    for now, holds in ((3, False), (5, True), (20, True), (25, False), (30, True)):
        alert.update(holds, now)
        got.append(alert.since)
    expect_equal(
        got, [None, 5, 5, None, 30], because="self.since says since when the condition holds; None while it doesn't"
    )
