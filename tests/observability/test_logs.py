"""The log: one line for one thing, with its request's id, written elsewhere, and never a text that nobody asked for."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shared.observability import logs
from shared.observability.request_id import current_request_id
from shared.observability.telemetry import Telemetry

ROOT = Path(__file__).resolve().parents[2]
logger = logging.getLogger("tests.observability")


@pytest.fixture
def written(tmp_path):
    """Configure logging to a file; returns a function that ends it and gives the lines."""
    started = []

    def configure(format: str = "json", **options):
        file = tmp_path / f"server-{len(started)}.log"
        stop = logs.configure(format, file, **options)
        started.append(stop)

        def lines() -> list[str]:
            stop()
            return file.read_text(encoding="utf-8").splitlines()

        return lines

    before = logging.getLogger().handlers[:]
    yield configure
    logging.getLogger().handlers[:] = before


def test_json_lines(written):
    lines = written()
    logger.info("request", extra={"fields": {"status": 200, "ttft_s": 0.25, "key": "größe"}})
    (line,) = lines()
    got = json.loads(line)
    assert got["message"] == "request"
    assert got["level"] == "info"
    assert got["status"] == 200
    assert got["ttft_s"] == 0.25
    assert got["key"] == "größe"
    assert got["time"].endswith("+00:00")


def test_every_task_has_its_own_id_and_the_writer_none(written):
    lines = written()

    async def handle(name: str) -> None:
        current_request_id.set(name)
        for _ in range(20):
            logger.info("at work")
            await asyncio.sleep(0)

    async def several() -> None:
        await asyncio.gather(*(handle(f"r{k}") for k in range(5)))

    asyncio.run(several())
    logger.info("nobody's")
    got = [json.loads(line) for line in lines()]
    assert [line.get("request_id") for line in got[:10]] == ["r0", "r1", "r2", "r3", "r4"] * 2
    assert "request_id" not in got[-1]
    assert len(got) == 101


def test_what_is_logged_later_changed_is_logged_as_it_was(written):
    lines = written()
    names = ["a"]
    logger.info("names: %s", names)
    names.append("b")
    assert json.loads(lines()[0])["message"] == "names: ['a']"


def test_a_traceback_is_part_of_its_line(written):
    lines = written()
    try:
        raise ValueError("no such model")
    except ValueError:
        logger.exception("loading failed")
    (line,) = lines()
    got = json.loads(line)
    assert got["message"] == "loading failed"
    assert "ValueError: no such model" in got["traceback"]


def test_text_lines_are_for_people_and_cant_be_forged(written):
    lines = written("text")
    logger.warning("engine away\n12:00:00 error forged", extra={"fields": {"key": "a b", "status": 503}})
    (line,) = lines()
    assert "warning" in line
    assert 'key="a b"' in line
    assert "status=503" in line
    assert "\\n12:00:00" in line


FORGED = "12:00:00 info    request request_id=admin status=200"


def test_tracebacks_and_names_forge_no_line_either(written):
    lines = written("text")
    try:
        raise ValueError(f"bad prompt:\n{FORGED}\r{FORGED}\x1b[2K\u2028{FORGED}")
    except ValueError:
        logger.exception("refused", extra={"fields": {f"a\n{FORGED}": 1}})
    logger.info("where", stack_info=True)
    got = lines()
    assert any("ValueError: bad prompt" in line for line in got)
    assert any("test_tracebacks_and_names" in line for line in got[-4:])  # where it was logged
    assert not any(line.startswith(FORGED[:8]) and "admin" in line for line in got)
    own = [line for line in got if not line.startswith("    ")]
    assert len(own) == 2
    assert all(line.isprintable() for line in got)


def test_json_keeps_its_own_names_and_is_json(written):
    lines = written()
    logger.info("odd", extra={"fields": {"time": "never", "level": "none", "ttft_s": float("nan"), ("a", 1): 2}})
    logger.info("half a pair \udc80")
    odd, half = (json.loads(line, parse_constant=pytest.fail) for line in lines())
    assert (odd["level"], odd["level_"], odd["time_"]) == ("info", "none", "never")
    assert (odd["ttft_s"], odd["('a', 1)"]) == ("nan", 2)
    assert half["message"] == "half a pair \udc80"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("format", ["text", "json"])
def test_lines_lost_on_a_full_disk_are_counted_and_the_end_is_quiet(format, capfd):
    before, already = logging.getLogger().handlers[:], logs.dropped_lines()
    stop = logs.configure(format, Path("/dev/full"))
    for k in range(3):
        logger.info("line %d", k)
    stop()  # in a `finally`: what it raised would be the end's own fault
    stop()
    assert logging.getLogger().handlers == before
    assert logs.dropped_lines() - already == 3
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "log lines can't be written: OSError(28" in err


@pytest.mark.parametrize("wrong", [{"format": "yaml"}, {"level": "NOPE"}])
def test_wrong_options_change_nothing(wrong):
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    with pytest.raises(ValueError, match="yaml|NOPE"):
        logs.write_to(logging.NullHandler(), **wrong)
    assert (root.level, root.handlers[:]) == before


def test_text_lines_show_an_id_once(written):
    lines = written("text")
    current = current_request_id.set("r7")
    logger.info("request", extra={"fields": {"request_id": "r7", "e2e_s": 1.23456}})
    current_request_id.reset(current)
    (line,) = lines()
    assert line.count("r7") == 1
    assert "e2e_s=1.235" in line


def test_stop_writes_what_waits_and_puts_logging_back(written):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    lines = written()
    for k in range(500):
        logger.info("line %d", k)
    assert len(lines()) == 500
    assert (root.handlers[:], root.level) == before


class Stalled(logging.Handler):
    """A disk that stands still until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait(10)
        self.lines += 1


def test_a_stalled_disk_stops_nobody(monkeypatch):
    monkeypatch.setattr(logs, "QUEUE_LINES", 100)
    monkeypatch.setattr(logs, "STOP_S", 0.1)
    before, already = logging.getLogger().handlers[:], logs.dropped_lines()
    disk = Stalled()
    stop = logs.write_to(disk)
    try:
        start = time.monotonic()
        for k in range(1000):
            logger.info("line %d", k)
        assert time.monotonic() - start < 2
        assert 899 <= logs.dropped_lines() - already <= 900  # the writer may have taken one out
    finally:
        ending = time.monotonic()
        stop()  # and the end doesn't wait for it either
        assert time.monotonic() - ending < 1
        assert logs.dropped_lines() - already == 999  # what still waited is given up: all but the one it holds
        disk.go.set()
        logging.getLogger().handlers[:] = before


def test_texts_are_never_logged_unless_asked_for(written):
    lines = written()
    quiet, all_of_them = Telemetry(), Telemetry(log_full_share=1.0)
    assert not quiet.logs_texts_of("r1")
    quiet.log_texts("r1", prompt="my secret", answer="your secret")
    trace = quiet.begin("r1", "/v1/chat/completions")
    quiet.finish(trace)
    all_of_them.log_texts("r2", prompt="my secret", answer="your secret")
    got = [json.loads(line) for line in lines()]
    assert [line["message"] for line in got] == ["request", "request with its texts"]
    assert "secret" not in json.dumps(got[0])
    assert got[1]["prompt"] == "my secret"
    assert got[1]["request_id"] == "r2"


def test_a_share_of_texts():
    some = Telemetry(log_full_share=0.2)
    chosen = sum(some.logs_texts_of(f"r{k}") for k in range(2000))
    assert 320 < chosen < 480


def test_a_file_that_cant_be_opened(tmp_path):
    before = logging.getLogger().handlers[:]
    with pytest.raises(OSError, match="missing"):
        logs.configure("json", tmp_path / "missing" / "server.log")
    assert logging.getLogger().handlers == before


def test_a_process_that_logs_ends(tmp_path):
    """To standard error, without stop(): the thread must not hold the process up."""
    code = (
        "import logging; from shared.observability import logs; logs.configure(); logging.getLogger('x').info('hello')"
        "; import time; time.sleep(0.3)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert run.returncode == 0
    assert "info    hello" in run.stderr


def test_the_format_is_one_line_for_the_default_stream():
    stream = io.StringIO()
    before = logging.getLogger().handlers[:]
    stop = logs.write_to(logging.StreamHandler(stream), "text")
    logger.info("ready")
    stop()
    assert logging.getLogger().handlers == before
    assert stream.getvalue().count("\n") == 1
