"""Exercise 2.5: judged by blocks that would go on for too long, and by what is left behind of the timer."""

import re
import signal
import time
from collections.abc import Iterator

import pytest

from chapters.ch02_cleaning import guard
from chapters.judge import exercise, expect, expect_equal, expect_raises

SLOW = re.compile(r"(?:\w+[.-]?)+@")  # doubles its time with each letter


@pytest.fixture(autouse=True)
def no_timer_is_left() -> Iterator[None]:
    """A timer that a wrong answer forgot would end the process: SIGPROF does that where nobody handles it."""
    before = signal.signal(signal.SIGPROF, lambda number, frame: None)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def stopped(seconds: float, because: str, letters: int = 24) -> None:
    """A search that would take a second or more has to end with TooSlow."""
    with expect_raises(guard.TooSlow, because=because), guard.time_limit(seconds):
        SLOW.search("a" * letters)


@exercise("2.5")
def test_a_regex_is_stopped():
    start = time.process_time()
    stopped(0.05, because="the search went on to its end. A thread can't stop it: re keeps the interpreter's lock, and "
                          "an exception raised in another thread stays there. A signal gets through, since re looks "
                          "for signals while it backtracks")
    took = time.process_time() - start
    expect(took < 0.4, because=f"with a limit of 0.05 s the search was stopped after {took:.1f} s")


@exercise("2.5")
def test_python_code_is_stopped():
    def endless() -> None:
        until = time.process_time() + 1
        while time.process_time() < until:
            pass

    with expect_raises(guard.TooSlow, because="a loop in Python was not stopped by a limit of 0.05 s"), \
            guard.time_limit(0.05):
        endless()


@exercise("2.5")
def test_what_is_fast_enough_is_left_alone():
    result = None
    with guard.time_limit(5.0):
        result = sum(range(1000))
    expect_equal(result, 499500, because="a block that ends in time isn't touched")


@exercise("2.5")
def test_the_timer_is_stopped_afterwards():
    with guard.time_limit(0.05):
        pass
    expect(signal.getitimer(signal.ITIMER_PROF)[0] == 0,
           because="the timer still runs when the block has ended: it would go off in the middle of the next record. "
                   "Set it to 0, in a finally")


@exercise("2.5")
def test_an_exception_passes_and_the_timer_stops():
    with expect_raises(KeyError, because="an exception that the block raises comes out as it "
                                         "is"), guard.time_limit(0.5):
        raise KeyError("from the block")
    expect(signal.getitimer(signal.ITIMER_PROF)[0] == 0,
           because="after an exception in the block the timer still runs: stop it in a finally")


@exercise("2.5")
def test_the_old_handler_comes_back():
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGPROF, mine)
    try:
        with guard.time_limit(1.0):
            pass
        after = signal.getsignal(signal.SIGPROF)
    finally:
        signal.signal(signal.SIGPROF, before)
    expect(after is mine, because="whoever had a handler for SIGPROF (a profiler, say) has lost it: signal.signal "
                                  "returns the old one; put it back in a finally")


@exercise("2.5")
def test_it_works_again_and_again():
    for _ in range(3):
        stopped(0.02, because="the limit worked once and not a second time")
        with guard.time_limit(0.5):
            SLOW.search("a" * 10)


@exercise("2.5")
def test_waiting_is_not_working():
    try:
        with guard.time_limit(0.05):
            time.sleep(0.15)
    except guard.TooSlow:
        expect(False, because="the block slept, and used no CPU time: ITIMER_REAL counts the clock on the wall, which "
                              "runs on while other programs have the CPU; ITIMER_PROF counts this process's time")
