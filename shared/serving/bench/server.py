"""The server under test: its process, the engine's process below it, and what can be seen of both from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import ROOT

START_S = 180.0
READY = re.compile(r"Ready: http://\[?([0-9a-f.:]+?)\]?:(\d+)")
SERIES = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")


class ServerFailed(RuntimeError):
    """The server under test didn't start, or didn't end well; the message holds what it said."""


@dataclass
class ServerUnderTest:
    """A running `python -m shared.serving`."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    log: Path

    def get(self, path: str) -> bytes:
        """What a page of the server says. Raises OSError where it is no 200."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}{path}", timeout=30) as response:  # noqa: S310
            return response.read()

    def versions(self) -> list[dict[str, Any]]:
        """What /admin/versions tells of each."""
        return json.loads(self.get("/admin/versions"))["data"]

    @property
    def model(self) -> str:
        """The name that requests ask for."""
        return self.versions()[0]["model"]

    @property
    def limits(self) -> dict[str, Any]:
        """The engine's, as EngineLimits has them."""
        return self.versions()[0]["limits"]

    @property
    def engine_pid(self) -> int | None:
        """The engine's process; None while it is away."""
        for pid in children(self.process.pid):
            with suppress(OSError):
                if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def metrics(self) -> dict[str, float]:
        """name{labels} -> value, of all series."""
        found = (SERIES.match(line) for line in self.get("/metrics").decode().splitlines() if not line.startswith("#"))
        return {match[1] + (match[2] or ""): float(match[3]) for match in found if match}


@contextmanager
def server_under_test(model: Path | None, *options: object, threads: int = 1) -> Iterator[ServerUnderTest]:
    """Start the server on a free port, and stop it at the end. Raises ServerFailed with what it said when it doesn't
    start, and when its exit status isn't 0."""
    arguments = ["--port", 0, "--threads", threads, *(["--model", model] if model else []), *options]
    environment = {**os.environ, "API_KEY": "", "ADMIN_KEY": "", "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "shared.serving", *map(str, arguments)],
                cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,  # or Ctrl-C would go to it as well
            )  # fmt: skip
        try:
            host, port = _wait_for(process, log)
            yield ServerUnderTest(process, host, port, log)
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(60)
            except subprocess.TimeoutExpired:
                raise ServerFailed(f"the server did not end within 60 s of SIGTERM; it said: {_tail(log)}") from None
            if status != 0:
                raise ServerFailed(f"the server ended with status {status}; it said: {_tail(log)}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if found := READY.search(log.read_text(errors="replace")):
            return found[1], int(found[2])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise ServerFailed(f"the server did not start; it said: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:].strip() or "nothing"


def children(pid: int) -> list[int]:
    """The processes that a process has started, by Linux's own list."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def memory_mb(pid: int) -> dict[str, float]:
    """rss: what it holds in memory; anon: of that, what is no file's, and so its own. MB of 10^6 bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {key: int(lines[name].split()[0]) * 1024 / 1e6 for key, name in (("rss", "VmRSS"), ("anon", "RssAnon"))}


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def num_files(pid: int) -> int:
    """Open file descriptors: files, sockets, pipes."""
    return len(os.listdir(f"/proc/{pid}/fd"))
