# Yours to finish. Generated from shared/observability/logs.py (version 2b6317aacb23).
"""Log lines: lengths and times, never texts, with the request's id in every one, written by a thread of its own."""

from chapters import Todo
import copy
import json
import logging
import queue
import sys
import time
import zlib
from collections.abc import Callable
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
    and output_tokens; queue_s, ttft_s, tpot_s and e2e_s, in seconds, rounded to the microsecond. What is None or
    empty is left out; a zero is not.
    """
    # exercise 13.6: take the names as they are, round the four times, and leave out what is None or ""
    raise Todo("13.6")
    # end


def sampled(request_id: str, share: float) -> bool:
    """Whether this request belongs to the share of requests that are logged in full, 0 to 1.

    Decided by the id alone, so that every process that sees the request decides the same, today and after a restart:
    a CRC-32 of the id, as a share of 2**32, is below `share`. (Python's own hash differs from process to process.)
    """
    # exercise 13.7: compare zlib.crc32 of the id's bytes, divided by 2**32, with the share
    raise Todo("13.7")
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
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand the record to the writer at once, or drop it and count it when the queue is full.

        Never waits and never raises: what is logged about a request must not stop the request. A full queue means that
        the writer is behind by thousands of lines, and one line more or less is worth less than anybody's time.
        """
        # exercise 13.8: put without waiting; when the queue is full, count the record in self.dropped instead
        #   given: self.queue
        raise Todo("13.8")
        # end


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if trouble := record.exc_text:
            line["traceback"] = trouble
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, what, and the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = {"request_id": getattr(record, "request_id", ""), **getattr(record, "fields", {})}
        message = record.getMessage()
        if not message.isprintable():  # a line's end in it would begin a line that nobody logged
            message = json.dumps(message)[1:-1]
        pairs = [f"{name}={_shown(value)}" for name, value in fields.items() if name != "request_id" or value]
        line = " ".join([at, f"{record.levelname.lower():<7}", message, *pairs])
        return f"{line}\n{record.exc_text}" if record.exc_text else line


def _shown(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


class LogWriter(QueueListener):
    """The thread that writes. Its end takes STOP_S at most, even if whatever it writes to has stalled."""

    def __init__(self, records: queue.Queue[logging.LogRecord], target: logging.Handler) -> None:
        super().__init__(records, target)
        self._records: queue.Queue[Any] = records

    def finish(self) -> bool:
        """Write what waits, and end. False when that took too long: the thread is left behind with the rest."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        try:
            self._records.put(None, timeout=STOP_S)  # the sentinel; behind all that waits
        except queue.Full:
            return False
        thread.join(STOP_S)
        return not thread.is_alive()


_handler: DroppingQueueHandler | None = None


def dropped_lines() -> int:
    """How many lines were given up since `configure`, because the queue was full."""
    return 0 if _handler is None else _handler.dropped


def configure(
    format: Literal["text", "json"] = "text", file: Path | None = None, level: int = logging.INFO
) -> Callable[[], None]:
    """Send all log lines through a queue to a thread that writes them to `file`, or to standard error.

    Returns what ends it: the lines that wait are written, the file is closed, and logging is as it was before. Raises
    OSError when the file can't be opened.
    """
    target = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    return write_to(target, format, level)


def write_to(target: logging.Handler, format: str = "text", level: int = logging.INFO) -> Callable[[], None]:
    """As `configure`, with a handler of one's own that does the writing."""
    global _handler
    target.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    records: queue.Queue[logging.LogRecord] = queue.Queue(QUEUE_LINES)
    handler = _handler = DroppingQueueHandler(records)
    writer = LogWriter(records, target)
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    root.handlers[:] = [handler]
    root.setLevel(level)
    writer.start()

    def stop() -> None:
        root.handlers[:] = before[1]
        root.setLevel(before[0])
        if writer.finish():
            target.close()

    return stop
