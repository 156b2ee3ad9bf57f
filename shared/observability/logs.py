"""Log lines: lengths and times, never texts, with the request's id in every one, written by a thread of its own."""

import copy
import json
import logging
import queue
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any, Literal

from shared.observability.request_id import current_request_id
from shared.observability.trace import RequestTrace

QUEUE_LINES = 10_000
STOP_S = 3.0
FULL = "request with its texts"  # how a sampled line says that it holds them


def request_fields(trace: RequestTrace) -> dict[str, Any]:
    """What is logged of a request: who, how long and how many; nothing that anybody wrote.

    request_id, route, model, version, key, status, error and finish_reason as they are; prompt_tokens, cached_tokens
    and output_tokens; queue_s, ttft_s, tpot_s, e2e_s and machine_s, in seconds, rounded to the microsecond. What is
    None or empty is left out; a zero is not. The trace stays as it is.
    """
    # exercise 13.6: take the names as they are, round the five times, and leave out what is None or ""
    names = "request_id route model version key status error finish_reason prompt_tokens cached_tokens output_tokens"
    fields = {name: getattr(trace, name) for name in names.split()}
    for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s", "machine_s"):
        seconds = getattr(trace, name)
        fields[name] = None if seconds is None else round(seconds, 6)
    return {name: value for name, value in fields.items() if value is not None and value != ""}
    # end


def sampled(request_id: str, share: float) -> bool:
    """Whether this request belongs to the share of requests that are logged in full, 0 to 1.

    Decided by the id alone, so that every process that sees the request decides the same, today and after a restart:
    a CRC-32 of the id, as a share of 2**32, is below `share`. (Python's own hash differs from process to process.)
    Whoever chooses the id chooses this, too: a CRC is no secret, and a caller can look for an id that is in the share,
    or one that isn't. It decides what is interesting to read, and nothing that must not be evaded.
    """
    # exercise 13.7: compare zlib.crc32 of the id's bytes, divided by 2**32, with the share
    return zlib.crc32(request_id.encode()) / 2**32 < share
    # end


class DroppingQueueHandler(QueueHandler):
    """Puts records into a bounded queue, for a QueueListener's thread to write. `dropped`: how many found it full."""

    def __init__(self, records: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self.dropped = 0
        self._plain = logging.Formatter()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Called where the line was logged: the writer's thread has a context of its own, and no request in it. What
        was to be formatted later may have changed by then, so that is done here, too."""
        record = copy.copy(record)
        record.request_id = getattr(record, "request_id", "") or current_request_id.get()
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = record.exc_text or self._plain.formatException(record.exc_info)
            record.exc_info = None
        if record.stack_info:
            record.exc_text = "\n".join(filter(None, (record.exc_text, record.stack_info)))
            record.stack_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand the record to the writer at once, or drop it and count it when the queue is full.

        Never waits and never raises: what is logged about a request must not stop the request. A full queue means that
        the writer is behind by thousands of lines, and one line more or less is worth less than anybody's time.
        """
        # exercise 13.8: put without waiting; when the queue is full, count the record in self.dropped instead
        #   given: self.queue
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1
        # end


class JsonFormatter(logging.Formatter):
    """One JSON object a line. A field whose name is one of the line's own (time, level, …) gets an underscore."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, whatever the fields hold: what JSON can't hold is written as text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id
        own = line.keys() - {"request_id"}
        line |= {f"{name}_" if name in own else name: value for name, value in getattr(record, "fields", {}).items()}
        if trouble := record.exc_text:
            line["traceback"] = trouble
        try:
            return json.dumps(line, ensure_ascii=False, allow_nan=False, default=str)
        except (TypeError, ValueError):  # NaN, a tuple for a key, …: better as texts than not at all
            texts = {str(k): v if isinstance(v, str | int) else str(v) for k, v in line.items()}
            return json.dumps(texts, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, what, and the fields as name=value. A traceback's lines follow, indented: no
    text from outside begins a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback's below it."""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = {"request_id": getattr(record, "request_id", ""), **getattr(record, "fields", {})}
        pairs = [f"{_shown(name)}={_shown(value)}" for name, value in fields.items() if name != "request_id" or value]
        line = " ".join([at, f"{record.levelname.lower():<7}", _printable(record.getMessage()), *pairs])
        return "\n".join([line, *(f"    {_printable(part)}" for part in (record.exc_text or "").splitlines())])


def _printable(text: str) -> str:
    """A line's end in a text would begin a line that nobody logged."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _shown(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


FORMATS = {"text": TextFormatter, "json": JsonFormatter}


class LogWriter(QueueListener):
    """The thread that writes. Its end takes STOP_S at most, even if whatever it writes to has stalled.

    lost: how many lines the target didn't take, as a full disk doesn't, or that were given up at the end. The target's
    `handleError` is replaced: instead of a traceback for each line there is one line on standard error, once.
    """

    def __init__(self, records: queue.Queue[logging.LogRecord], target: logging.Handler) -> None:
        super().__init__(records, target)
        self._records: queue.Queue[Any] = records
        self.lost = 0
        target.handleError = self._lose  # type: ignore[method-assign]

    def _lose(self, record: logging.LogRecord) -> None:
        if self.lost == 0:
            with suppress(OSError, ValueError):
                print(f"log lines can't be written: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)
        self.lost += 1

    def finish(self) -> bool:
        """Write what waits, and end. False when that took too long: what still waits is given up and counted, and the
        thread ends when whatever holds it lets go."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        until = time.monotonic() + STOP_S
        with suppress(queue.Full):
            self._records.put(None, timeout=STOP_S)  # the sentinel; behind all that waits
            thread.join(max(0.0, until - time.monotonic()))
        if not thread.is_alive():
            return True
        with suppress(queue.Empty):
            while True:
                self.lost += self._records.get_nowait() is not None
        self._records.put_nowait(None)
        return False


_running: list[tuple[DroppingQueueHandler, LogWriter]] = []
_dropped_before = 0  # by those that have ended: a counter must not fall


def dropped_lines() -> int:
    """How many lines this process has given up: the queue was full, or they couldn't be written."""
    return _dropped_before + sum(handler.dropped + writer.lost for handler, writer in _running)


def configure(
    format: Literal["text", "json"] = "text", file: Path | None = None, level: int = logging.INFO
) -> Callable[[], None]:
    """Send all log lines through a queue to a thread that writes them to `file`, or to standard error.

    Returns what ends it: the lines that wait are written, the file is closed, and logging is as it was before. It never
    raises, whatever became of the file. Raises OSError when the file can't be opened, ValueError for another format.
    """
    target: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:  # half of a surrogate pair can't be UTF-8; its escape can
        target = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
    return write_to(target, format, level)


def write_to(target: logging.Handler, format: str = "text", level: int = logging.INFO) -> Callable[[], None]:
    """As `configure`, with a handler of one's own that does the writing."""
    if format not in FORMATS:
        raise ValueError(f"a log line's format is one of {', '.join(FORMATS)}, not {format!r}")
    target.setFormatter(FORMATS[format]())
    records: queue.Queue[logging.LogRecord] = queue.Queue(QUEUE_LINES)
    handler, writer = DroppingQueueHandler(records), LogWriter(records, target)
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    root.setLevel(level)  # first, as it may raise
    root.handlers[:] = [handler]
    _running.append((handler, writer))
    writer.start()

    def stop() -> None:
        global _dropped_before
        if (handler, writer) not in _running:
            return
        root.handlers[:] = before[1]
        root.setLevel(before[0])
        if writer.finish():
            with suppress(OSError):  # a full disk says so again; its lines are counted already
                target.close()
        _running.remove((handler, writer))
        _dropped_before += handler.dropped + writer.lost

    return stop
