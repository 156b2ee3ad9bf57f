"""python -m shared.serving: load a model and serve it."""

import os
import signal

if __name__ == "__main__":  # before all other imports: an exception that a handler raises in one may be swallowed there
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))  # until `serve` can end in good order there is nothing to end

import ipaddress
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from shared.serving.settings import Attention, Settings


def main(
    model: Annotated[Path | None, typer.Option(help="A model's folder; without it, the book's own model.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        typer.Option(
            help="The weights' numbers; auto is float32 on a CPU, bfloat16 on a GPU. int8 is small and fast, and "
            "rounds so coarsely that a prompt may be answered otherwise when it is read in other pieces."
        ),
    ] = "auto",
    attention: Annotated[
        Attention,
        typer.Option(
            help="What computes attention; auto takes the fastest that runs here, and says which. varlen and triton "
            "need a CUDA device; fused compiles at the start, which can take a minute."
        ),
    ] = "auto",
    max_num_seqs: Annotated[int, typer.Option(min=1, max=256, help="How many answers are computed at a time.")] = 32,
    max_waiting: Annotated[int, typer.Option(min=0, help="How many more may wait before one is refused.")] = 16,
    kv_memory: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="MB for the keys and values of all requests; by default enough for the usual chats, or for one as "
            "long as the model's context, in at most half of the memory available; on a GPU most of what is free.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; by default one for each physical core.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="API_KEY", help="A key that callers must send; needed unless host is loopback.")
    ] = None,
) -> None:
    """Serve a language model: OpenAI's API under /v1, and a chat page at /."""
    if api_key and not re.fullmatch(r"[!-~]+", api_key):
        fail("The API key can't be sent in a header: use only letters a-z, digits and signs, and no spaces.")
    raise_file_limit()
    sock = listen(host, port, api_key)  # first, so that a port already taken is told at once
    if model is not None and not model.is_dir():
        fail(f"--model {model}: there is no such folder. A model is a folder with config.json and *.safetensors.")
    # OpenMP's threads wait for one another by spinning. With as many threads as cores and anything else running, such
    # as the browser that shows the chat, they spin in one another's way, and a token can take ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # but some microseconds of it spare a sleep between small products
    try:
        from shared.serving.run import serve  # only now: importing torch takes seconds, and reads that variable
    except ImportError as error:  # such as a part of the reader's that can't be loaded
        fail(f"The server can't start: {error}")

    settings = Settings(model, device, dtype, attention, max_num_seqs, max_waiting, kv_memory, threads, api_key or None)
    status = serve(sock, settings)
    # A thread may still be inside torch, loading or computing. When the interpreter ends in order, such a thread is
    # stopped in the middle of C++ code, and the process aborts.
    os._exit(status)


def listen(host: str, port: int, api_key: str | None) -> socket.socket:
    """Take the address. Ends the program, saying why, when it can't be had or would be open to all without a key."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        fail(f"--host {host}: {error}")
    family, kind, protocol, _, address = found[0]
    if not ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback and not api_key:
        fail(
            f"--host {host} can be reached from other computers, and anyone there could use the model. Set a key that "
            "callers must send, as in  API_KEY=something-long python -m shared.serving --host " + host
        )
    sock = socket.socket(family, kind, protocol)
    if os.name == "posix":  # there it lets a server start again at once; on Windows it lets two share a port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(1024)
    except PermissionError:
        fail(f"Port {port} may not be used by an ordinary user; take one above 1023, such as --port 8000.")
    except OSError as error:
        if error.errno not in (48, 98, 10048):  # "in use" on macOS, Linux, Windows
            fail(f"Can't listen on {host} port {port}: {error.strerror}.")
        other = port + 1 if port < 65535 else 8000
        fail(
            f"Port {port} is already taken, perhaps by a server you started earlier. Stop that one, or take another: "
            f"--port {other}, or with make: make serve PORT={other}"
        )
    return sock


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets us: each takes a file, and often only 256 are allowed."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 10_240 if hard == resource.RLIM_INFINITY else hard  # macOS says "no limit", and takes no more than this
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    typer.run(main)
