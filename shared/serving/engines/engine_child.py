"""One engine process as the API process sees it: its start, its frames, the watch over it, and its end."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import shared
from shared.serving.engines.supervision import Watch
from shared.serving.engines.wire import FROM_ENGINE, Frame, FrameReader, WireError, pack

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "shared.serving.engines.engine_process")
BUFFER = 2**20  # bytes that the socket takes before the engine has to keep them
LAST_WORDS_S = 0.5  # for ending in good order


@dataclass(frozen=True)
class Patience:
    """How long an engine process may be silent, in seconds.

    ping_s: how often it is asked for a sign of life. hung_after_s: it hangs when it gives none for so long.
    loading_s: the same while it loads: importing may keep it from answering. step_s: no step takes longer.
    """

    ping_s: float = 0.5
    hung_after_s: float = 10.0
    loading_s: float = 120.0
    step_s: float = 300.0

    def after(self, num_exits: int, load_s: float) -> "Patience":
        """For the next one after so many exits in a row, when the first one had taken load_s seconds to load. What that
        read from a disk is in memory now, so the next is believed to hang much sooner; but later each time."""
        soon = round(num_exits * (self.hung_after_s + 3 * load_s), 1)
        return replace(self, loading_s=min(self.loading_s, soon)) if num_exits else self


class EngineChild(asyncio.Protocol):
    """A process and the socket to it. on_frame: called with each frame that comes, but pongs. on_ready: called after
    that, when it has loaded.

    why: the reason, once it was killed from here, or has said itself what ends it; hung: whether it was killed for its
    silence.
    """

    def __init__(
        self,
        path: Path,
        on_frame: Callable[[Frame], None],
        on_ready: Callable[[], None],
        patience: Patience,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._path, self._patience, self._command = path, patience, command
        self._on_frame, self._on_ready = on_frame, on_ready
        self._reader = FrameReader(FROM_ENGINE)
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.why, self.hung = "", False

    @property
    def pid(self) -> int | None:
        """The process's id, also after its end; None before its start."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, from a thread that lives as long as it shall. Raises OSError when that can't be done."""
        self._watch = Watch(self._patience.ping_s, self._patience.loading_s, time.monotonic())
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            try:
                self._process = subprocess.Popen(
                    [*self._command, "--fd", str(theirs.fileno()), str(self._path)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=shared.ROOT,  # where the package is found, whatever folder the server was started in
                )
            except BaseException:
                ours.close()
                raise
        self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)

    def send(self, kind: str, *fields: Any) -> None:
        """Nothing happens when it is gone. Raises WireError for what is too large."""
        frame = pack(kind, *fields)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Take in the frames that are whole. What is no frame ends the process."""
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except WireError as error:
            self.kill(f"it sent what is no frame: {error}")

    def _take(self, frame: Frame) -> None:
        now = time.monotonic()
        if frame[0] == "pong":
            (began,) = frame[1:]
            self._watch.on_pong(now)
            if began is not None and now - began > self._patience.step_s:
                self.kill(f"a step has taken longer than {self._patience.step_s:g} s", hung=True)
            return
        try:
            self._on_frame(frame)
            if frame[0] == "step":
                self._watch.on_step(now)
            elif frame[0] == "failed":
                self.why = self.why or frame[1]
            elif frame[0] == "ready":  # from now on it may be silent for a shorter time
                self._watch = Watch(self._patience.ping_s, self._patience.hung_after_s, now)
                self._on_ready()
        except Exception as error:  # it could be no better with the next frame, and requests would wait for ever
            logger.exception("a frame of kind %r could not be taken in", frame[0])
            why = f"a frame of kind {frame[0]!r} could not be taken in: {shared.in_words(error)}"
            self.kill(f"{why}. If the program's files were changed while the server runs, start it again")

    def connection_lost(self, error: Exception | None) -> None:
        """The process has closed its end, mostly by dying."""
        self._lost.set()

    async def end(self) -> str:
        """Watch over it to its end, however that comes, and return the reason. What it said before is taken in."""
        while not self._lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), self._patience.ping_s / 2)
            now = time.monotonic()
            if self._watch.ping_due(now):
                self.send("ping")
                self._watch.on_sent(now)
            if not self.why and self._watch.is_hung(now):
                self.kill(f"it has given no sign of life for {self._watch.hung_after_s:g} s", hung=True)
        with suppress(WireError):
            self._reader.end()  # half a frame: what was in it will be computed again
        status = await self._exited()
        return self.why or _ended(status)

    def kill(self, why: str, hung: bool = False) -> None:
        """End it at once; a process that is stopped, or in a step, too."""
        self.why, self.hung = self.why or why, self.hung or hung
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Hang up, which ends it, and wait until it is gone."""
        if self._transport is not None:
            self._transport.close()
        await self._exited()

    async def _exited(self) -> int:
        """Its exit status, or the signal that ended it as a negative number."""
        if self._process is None:
            return 0
        deadline = time.monotonic() + LAST_WORDS_S
        while (status := self._process.poll()) is None:
            await asyncio.sleep(0.005)
            if time.monotonic() > deadline:
                self.kill("it did not end by itself")
        return status


def _ended(status: int) -> str:
    if status < 0:
        hint = ", perhaps by the system for want of memory" if status == -signal.SIGKILL else ""
        return f"it was ended by {signal.Signals(-status).name}{hint}"
    return f"it ended with status {status}"
