"""The API process: settings to a running uvicorn over the service and its engines, and a clean end."""

import asyncio
import errno
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

import shared
from shared.model.fetch import ensure_model
from shared.observability.gc_pauses import tame
from shared.observability.logs import configure
from shared.observability.telemetry import Telemetry
from shared.serving.api.app import create_app
from shared.serving.api.connections import Connection
from shared.serving.engines.engine import Engine, EngineFailed
from shared.serving.engines.kv_memory import describe
from shared.serving.engines.load_engine import EngineOptions, resolved
from shared.serving.engines.process_engine import ProcessEngine
from shared.serving.guard.keys import KeyRing
from shared.serving.guard.service import Service
from shared.serving.models.versions import Versions
from shared.serving.settings import SettingError, Settings

logger = logging.getLogger(__name__)

MakeEngine = Callable[[Path, str], Engine]
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
COMPLAIN_EVERY_S = 60.0
LAST_CONNECTIONS_S = 3  # after the last answer: callers who don't read it, or have sent half a request


class Server(uvicorn.Server):
    """uvicorn around a service, which it starts once it listens and stops before it waits for open connections.

    The first signal lets requests finish, within the settings' grace period; a second one ends them at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        on_ready: Callable[[], None] = lambda: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        super().__init__(config)
        self.service, self._on_ready, self._on_failure = service, on_ready, on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at once, so that health checks are answered, and load the model beside it."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(Complaints())
        await super().startup(sockets)
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        try:
            await self.service.start()
        except Exception as error:
            if not self.should_exit:
                self._on_failure(error)
                self.should_exit = True
        else:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish, stop the engines, then close what connections are left."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if n := len(self.service.open):
            grace = self.service.settings.grace
            print(f"Ending: {n} open requests may take up to {grace:g} s; a second Ctrl-C ends them now.", flush=True)
        await self.service.stop(self.service.settings.grace)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then, and its end is a traceback
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come: the first lets requests finish, a second one doesn't."""
        if self.should_exit:
            self.force_exit = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.service.hurry)  # a signal alone wakes no event loop
        super().handle_exit(sig, frame)


class Complaints:
    """An event loop's exception handler that says once a minute when no connection can be taken in any more. asyncio
    tries that, and complains with a traceback, more than a thousand times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._silent_until = clock, -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Complain, or be silent; any other trouble is asyncio's own to tell."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_RESOURCES or "socket" not in context:
            loop.default_exception_handler(context)
        elif (now := self._clock()) >= self._silent_until:
            self._silent_until = now + COMPLAIN_EVERY_S
            logger.error("no connection can be taken in before others are closed: %s", error.strerror)


def server_config(app: FastAPI, **settings: Any) -> uvicorn.Config:
    """uvicorn's settings, and those given."""
    usual = {"log_level": "warning", "log_config": None, "access_log": False, "ws": "none", "http": Connection}
    return uvicorn.Config(app, **{**usual, "timeout_graceful_shutdown": LAST_CONNECTIONS_S, **settings})


def serve(
    sock: socket.socket, settings: Settings, make_engine: MakeEngine | None = None, keys: KeyRing | None = None
) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns the process's exit status: 0, or 2 when the model can't be loaded.

    make_engine: (folder, version's name) -> an engine, not yet started; without it, one in a process of its own. keys:
    none lets everybody in.
    """
    options = EngineOptions(
        device=settings.device, dtype=settings.dtype, attention=settings.attention, threads=settings.threads,
        max_num_seqs=settings.max_num_seqs, kv_memory=settings.kv_memory,
    )  # fmt: skip
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))  # what fetches a model cleans up behind itself
    try:
        device, dtype = resolved(options)
        path = settings.model or ensure_model()
    except SettingError as error:
        return _fail(f"{error}.")
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        return _fail(str(error))
    except SystemExit:
        print("Stopped.", flush=True)
        raise
    try:
        stop_logging = configure(settings.log_format, settings.log_file)
    except OSError as error:
        return _fail(f"--log-file {settings.log_file}: {error.strerror}.")
    telemetry = Telemetry(settings.debug, settings.cost_per_hour, settings.log_full_share)
    versions = Versions(make_engine or (lambda path, name: ProcessEngine(path, options, name)), telemetry=telemetry)
    service = Service(versions, telemetry, replace(settings, model=path), keys)
    failures: list[Exception] = []
    ready = False

    def on_ready() -> None:
        nonlocal ready
        ready = True
        limits = service.versions.list()[0].engine.limits
        lines = [] if limits is None else [describe(limits)]
        tame()
        print("\n".join([*lines, *ready_lines(*sock.getsockname()[:2])]), flush=True)

    server = Server(server_config(create_app(service)), service, on_ready, failures.append)
    # uvicorn ends in good order on a signal and then raises it again, when there is nothing left to do.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    compiling = ", and compiling attention, which can take a minute" if settings.attention == "fused" else ""
    print(f"Loading {path} ({dtype} on {device}){compiling}…", flush=True)
    try:
        server.run(sockets=[sock])
    finally:
        stop_logging()
    if not failures:
        if not ready:
            print("Stopped.", flush=True)
        return 0
    blamed = isinstance(failures[0], EngineFailed) and failures[0].setting
    return _fail(str(failures[0]) if blamed else f"{path} can't be served: {failures[0]}")


def ready_lines(host: str, port: int) -> list[str]:
    """What the program says when it's ready: which parts are the reader's, and the address."""
    parts = shared.reader_chapters() or ["Running on the book's own parts; none of yours are in use yet."]
    return [*parts, f"Ready: http://{f'[{host}]' if ':' in host else host}:{port}  (Ctrl-C stops it)"]


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2
