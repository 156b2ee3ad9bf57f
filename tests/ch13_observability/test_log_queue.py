"""Exercise 13.8: judged by what goes into a full queue, and by what else logging may not do: wait."""

import io
import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from chapters.ch13_observability import logs as own
from chapters.judge import crash_means, exercise, expect, expect_equal


class Watched(queue.Queue):
    """A queue on which nobody waits: an attempt to is rejected. puts: how many items came in through `put`."""

    puts = 0

    def put(self, item, block=True, timeout=None):
        expect(
            not block or timeout == 0 or self.qsize() < self.maxsize,
            because="put waits while the queue is full, with a timeout, too; and with it the request whose line it is",
        )
        super().put(item, block, timeout)
        self.puts += 1


@contextmanager
def nothing_else() -> Iterator[None]:
    """Rejects whoever, having found no room, sleeps, writes, logs or starts a thread."""
    done: list[str] = []

    def instead(what: str):
        return lambda *args, **kwargs: done.append(what)

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(out), redirect_stdout(out):
        patch.setattr(time, "sleep", instead("sleep"))
        patch.setattr(threading.Thread, "start", instead("a thread"))
        patch.setattr(logging.Logger, "handle", instead("a log line"))
        patch.setattr(logging.Handler, "handleError", instead("handleError"))
        yield
    expect("sleep" not in done, because="sleeping and trying again is waiting, too, and the whole event loop waits")
    expect("a thread" not in done, because="a thread for each line that finds no room is a queue without a bound")
    expect(
        "a log line" not in done,
        because="a log line about a lost log line goes the same way: into the full queue, and it calls for the next",
    )
    expect(
        "handleError" not in done and not out.getvalue(),
        because="a line written on the spot makes the request wait for whatever it is written to, which is what the "
        "queue is for; drop it and count it",
    )


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, message, None, None)


def handler_with(places: int) -> own.DroppingQueueHandler:
    return own.DroppingQueueHandler(Watched(places))


def emit(handler: own.DroppingQueueHandler, *messages: str) -> None:
    for message in messages:
        because = "a full queue must not raise: logging would print a traceback for each line"
        with nothing_else(), crash_means(because, queue.Full):
            handler.enqueue(record(message))


def held(handler: own.DroppingQueueHandler) -> list[str]:
    return [handler.queue.get_nowait().getMessage() for _ in range(handler.queue.qsize())]


@exercise("13.8")
def test_records_go_in():
    handler = handler_with(4)
    emit(handler, "a", "b", "c")
    expect_equal(held(handler), ["a", "b", "c"], because="a record is put into self.queue, in order, each once")
    expect_equal(handler.dropped, 0, because="nothing was dropped: there was room for all of them")
    expect_equal(
        handler.queue.puts,
        3,
        because="only `put` and `put_nowait` wake the thread that waits for lines; queue.queue, inside, tells nobody",
    )


@exercise("13.8")
def test_a_full_queue_drops_the_new_line():
    handler = handler_with(2)
    emit(handler, "a", "b", "c", "d", "e")
    expect_equal(handler.dropped, 3, because="each record that found the queue full is counted in self.dropped")
    expect_equal(
        held(handler),
        ["a", "b"],
        because="the record that finds no room is dropped, and those that wait already stay: what a fault begins with "
        "is worth more than its thousandth line",
    )


@exercise("13.8")
def test_it_goes_on_afterwards():
    handler = handler_with(1)
    emit(handler, "a", "b")
    held(handler)
    emit(handler, "c")
    expect_equal(held(handler), ["c"], because="when there is room again, lines are put in again")
    expect_equal(handler.dropped, 1, because="dropped is a total: it says how many lines were lost, not whether")


@exercise("13.8")
def test_between_the_look_and_the_put():
    """Full at the moment of the put, and not at the moment of asking: another thread was quicker."""

    class Racing(Watched):
        def full(self) -> bool:
            return False

        def qsize(self) -> int:
            return 0

    handler = own.DroppingQueueHandler(Racing(1))
    handler.queue.queue.append("another thread's")
    with crash_means(
        "between asking whether the queue is full and putting, another thread can fill it: try to put, and catch Full",
        queue.Full,
    ):
        handler.enqueue(record("mine"))
    expect_equal(handler.dropped, 1, because="the record found no room, and that must be counted")
