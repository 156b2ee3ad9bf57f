"""Exercise 2.5: judged by blocks that would go on for too long, and by what is left behind of the timer."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from chapters import Todo
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


def stopped(seconds: float, because: str = "", letters: int = 24) -> None:
    """A search that would take a second or more has to end with TooSlow."""
    before, threads, finished = threading.active_count(), False, False
    try:
        with guard.time_limit(seconds):
            threads = threading.active_count() > before
            SLOW.search("a" * letters)
            finished = True
    except guard.TooSlow:
        return
    except Todo:
        raise
    except (TypeError, RuntimeError) as error:
        lost = "iterator" in str(error) or "yield" in str(error)
        expect(False, because="there is no yield that is reached: @contextmanager runs the block where the function "
                              "yields"
               if lost else f"the block ended with {type(error).__name__}: {error}")
    except Exception as error:
        expect(False, because=f"the search was stopped by {type(error).__name__}; what has to come out of the block is "
                              "TooSlow: the handler raises it, and nothing else turns it into another")
    expect(finished, because="the search was stopped, but no TooSlow came out of the block: something around the yield "
                             "caught it. There is nothing to except here: a finally alone lets it pass")
    expect(not threads, because="the search went on to its end. A thread can't stop it: re keeps the interpreter's "
                                "lock, and an exception raised in another thread stays there. A signal gets through, "
                                "since re looks for signals while it backtracks")
    expect(False, because=because or f"the search went on to its end, for no signal came in {seconds} s: "
                                     "signal.setitimer(signal.ITIMER_PROF, seconds) sends SIGPROF. (signal.alarm takes "
                                     "whole seconds, and 0 of them are no alarm)")


@exercise("2.5")
def test_a_regex_is_stopped():
    start = time.process_time()
    stopped(0.05)
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
def test_it_is_the_timer_for_cpu_time_and_rings_once():
    with guard.time_limit(5.0):
        left, again = signal.getitimer(signal.ITIMER_PROF)
        virtual, real = (signal.getitimer(clock)[0] for clock in (signal.ITIMER_VIRTUAL, signal.ITIMER_REAL))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # a wrong answer's would end the process
    mine = real == 0 or real > 5  # the check's own limit is longer
    expect(left > 0 or not virtual,
           because="ITIMER_VIRTUAL leaves out what the system does for this process, such as reading and getting "
                   "memory: a record that keeps the system busy is never stopped. ITIMER_PROF counts both")
    expect(left > 0 or mine,
           because="ITIMER_REAL counts the clock on the wall, which runs on while other programs have the CPU; "
                   "ITIMER_PROF counts this process's time")
    expect(left > 0, because="in the block no timer of the kind ITIMER_PROF is running")
    expect(again == 0, because=f"the timer goes off again every {again:g} s: the second TooSlow would come in the "
                               "middle of what deals with the first. Give setitimer no interval")


@exercise("2.5")
def test_the_handler_is_there_whenever_the_timer_runs(monkeypatch):
    """SIGPROF ends the process where nobody handles it, so the order of the four calls counts."""
    calls: list[str] = []

    def noting(name: str, function: Callable, at: int) -> Callable:
        def call(*arguments):
            calls.append(f"timer {arguments[at]:g}" if name == "setitimer" else "handler")
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(signal, "setitimer", noting("setitimer", signal.setitimer, 1))
        patch.setattr(signal, "signal", noting("signal", signal.signal, 0))
        with guard.time_limit(5.0):
            calls.append("block")
    before, after = calls[: calls.index("block")], calls[calls.index("block") + 1 :]
    if "timer 5" in before and "handler" in before:
        expect(before.index("handler") < before.index("timer 5"),
               because="the timer is started before the handler is there: a signal in between ends the whole process. "
                       "First the handler, then the timer")
    if "timer 0" in after and "handler" in after:
        expect(after.index("timer 0") < after.index("handler"),
               because="the old handler comes back while the timer still runs: a signal in between meets it, and the "
                       "system's own ends the process. First stop the timer, then put the handler back")


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
