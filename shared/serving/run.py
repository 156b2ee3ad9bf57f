"""The server's process: settings to a running uvicorn, and a clean end."""

import ipaddress
import signal
import socket
import sys

import torch
import uvicorn

import shared
from shared.model.fetch import ensure_model
from shared.serving.app import create_app, stop_engine
from shared.serving.kv_memory import describe
from shared.serving.served_model import ServedModel, model_name
from shared.serving.settings import SettingError, Settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Server(uvicorn.Server):
    """uvicorn, except that open streams are ended before it waits for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await stop_engine(self.config.app)  # type: ignore[arg-type]
        await super().shutdown(sockets)
        if self.force_exit:  # a second Ctrl-C: uvicorn leaves this out then, and its end is a traceback
            await self.lifespan.shutdown()


def serve(sock: socket.socket, settings: Settings) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns the process's exit status: 0, or 2 when the model can't be loaded."""
    device, dtype, path = settings.device, settings.dtype, settings.model
    if device == "cuda" and not torch.cuda.is_available():
        return _fail("--device cuda: this torch sees no CUDA device. Leave --device out to compute on the CPU.")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    natural = "bfloat16" if device == "cuda" else "float32"
    dtype = natural if dtype == "auto" else dtype
    loaded_in = DTYPES[natural if dtype == "int8" else dtype]
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)  # torch's own default is one for each physical core
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))  # what fetches a model cleans up behind itself
    try:
        path = path or ensure_model()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        return _fail(str(error))

    failures: list[Exception] = []

    def on_ready(model: ServedModel) -> None:
        print("\n".join([describe(model.engine.engine), *ready_lines(*sock.getsockname()[:2])]), flush=True)

    def on_failure(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    def load() -> ServedModel:
        return ServedModel.load(path, device, loaded_in, int8=dtype == "int8", settings=settings)

    address = str(sock.getsockname()[0]).split("%")[0]
    local_only = settings.api_key is None and ipaddress.ip_address(address).is_loopback
    app = create_app(model_name(path), load, settings.api_key, local_only, on_ready, on_failure)
    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3))
    # uvicorn ends in good order on a signal and then raises it again, when there is nothing left to do.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    compiling = ", and compiling attention, which can take a minute" if settings.attention == "fused" else ""
    print(f"Loading {path} ({dtype} on {device}){compiling}…", flush=True)
    server.run(sockets=[sock])
    if not failures:
        return 0
    what = "" if isinstance(failures[0], SettingError) else f"{path} can't be served: "
    return _fail(f"{what}{failures[0]}")


def ready_lines(host: str, port: int) -> list[str]:
    """What the program says when it's ready: which parts are the reader's, and the address."""
    parts = shared.reader_parts() or ["Running on the book's own parts; none of yours are in use yet."]
    return [*parts, f"Ready: http://{f'[{host}]' if ':' in host else host}:{port}  (Ctrl-C stops it)"]


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2
