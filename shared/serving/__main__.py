"""python -m shared.serving: load a model and serve it."""

import os
import signal

if __name__ == "__main__":  # before all other imports: an exception that a handler raises in one may be swallowed there
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))  # until `serve` can end in good order there is nothing to end

import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from shared.serving.address import is_loopback, listen, raise_file_limit
from shared.serving.guard.keys import KeyFileError, KeyRing
from shared.serving.settings import Attention, SettingError, Settings
from shared.training.own_folder import work_folder

MODEL, ROOM, ADDRESS = "The model", "How much at a time", "Where"
ACCESS, LOAD, INSIGHT = "Who may use it", "When it is busy, and at the end", "What it tells"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def main(
    context: typer.Context,
    model: Annotated[
        Path | None, _option(MODEL, "A model's folder.", metavar="FOLDER", show_default="the book's own model")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], _option(MODEL, "Where to compute.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        _option(
            MODEL,
            "The weights' numbers; auto is float32 on a CPU, bfloat16 on a GPU. int8 is small and fast, and "
            "rounds so coarsely that a prompt may be answered otherwise when it is read in other pieces.",
        ),
    ] = "auto",
    attention: Annotated[
        Attention,
        _option(
            MODEL,
            "What computes attention; auto takes the fastest that runs here, and says which. varlen and triton "
            "need a CUDA device; fused compiles at the start, which can take a minute.",
        ),
    ] = "auto",
    threads: Annotated[
        int | None, _option(MODEL, "CPU threads.", min=1, show_default="one for each physical core")
    ] = None,
    max_num_seqs: Annotated[int, _option(ROOM, "How many answers are computed at a time.", min=1, max=256)] = 32,
    max_waiting: Annotated[
        int | None,
        _option(
            ROOM,
            "How many more requests may wait before one is refused with 429. The longer the queue, the longer each "
            "of them waits. Keys take turns; without keys, the addresses that requests come from do.",
            min=0,
            show_default="half of --max-num-seqs",
        ),
    ] = None,
    kv_memory: Annotated[
        int | None,
        _option(
            ROOM,
            "MB for the keys and values of all requests.",
            min=1,
            metavar="MB",
            show_default="enough for the usual chats, or for one as long as the model's context, in at most half of "
            "the memory available; on a GPU most of what is free",
        ),
    ] = None,
    host: Annotated[str, _option(ADDRESS, "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option(ADDRESS, "The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        _option(ACCESS, "A key that callers must send. Needed unless host is loopback.", envvar="API_KEY"),
    ] = None,
    api_keys: Annotated[
        Path | None,
        _option(
            ACCESS,
            'A file of keys, one a line: {"name": "alice", "sha256": "…", "requests_per_minute": 60, '
            '"tokens_per_minute": 20000, "max_waiting": 8}; all but name and sha256 may be left out. '
            "The hash of a key: printf %s KEY | sha256sum",
            metavar="FILE",
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        _option(
            ACCESS,
            "A key for the operator: /admin, /metrics and the dashboard's numbers. Without one they are open on a "
            "server for this computer alone, and closed on any other.",
            envvar="ADMIN_KEY",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        _option(
            LOAD,
            "How long a request may take that doesn't say so itself.",
            min=0.001,
            max=600,
            metavar="SECONDS",
            show_default="three times the 99th percentile of the latest, from 30 to 600; 300 until 100 were measured",
        ),
    ] = None,
    degrade: Annotated[
        str,
        _option(
            LOAD,
            "What may be made less of while half of the queue is taken: off (nothing), shorter (answers of at most "
            "128 tokens), or the folder of a smaller model, which then answers, also when the engine has failed; not "
            "who names a version or sends token ids. Such answers say so.",
            metavar="off|shorter|FOLDER",
        ),
    ] = "off",
    grace: Annotated[
        float,
        _option(
            LOAD,
            "How long open answers may take to finish after SIGTERM or Ctrl-C; a second one hurries.",
            min=0,
            metavar="SECONDS",
        ),
    ] = 30.0,
    debug: Annotated[
        bool, _option(INSIGHT, "Keep the stages of the latest requests, for the dashboard's waterfall.", "--debug")
    ] = False,
    log_format: Annotated[Literal["text", "json"], _option(INSIGHT, "The form of the log's lines.")] = "text",
    log_file: Annotated[
        Path | None, _option(INSIGHT, "Where the log goes.", metavar="FILE", show_default="standard error")
    ] = None,
    log_full_share: Annotated[
        float,
        _option(
            INSIGHT,
            "The share of requests whose texts are logged, too: 0 is none, 1 all.",
            min=0,
            max=1,
            metavar="SHARE",
        ),
    ] = 0.0,
    cost_per_hour: Annotated[
        float | None,
        _option(
            INSIGHT,
            "What this machine costs an hour, in any money; then each request's cost is told.",
            min=0,
            metavar="PRICE",
        ),
    ] = None,
) -> None:
    """Serve a language model: OpenAI's API under /v1, a chat page at /, and a live page at /dashboard.

    Each request may say itself how long it may take: "timeout": SECONDS in its body."""
    for name, value in {"grace": grace, "cost-per-hour": cost_per_hour}.items():  # the others have a maximum
        if value is not None and not math.isfinite(value):
            fail(f"--{name} {value}: must be a number.")
    keys = load_keys(api_keys, api_key, admin_key)
    for name in ("API_KEY", "ADMIN_KEY"):
        os.environ.pop(name, None)  # from here on only their hashes are known, and no process below has them either
    has_key = any(not key.admin for key in keys.keys)
    raise_file_limit()
    try:
        sock = listen(host, port, has_key)  # first, so that a port already taken is told at once
    except SettingError as error:
        fail(str(error))
    for name, folder in (("--model", model), ("--degrade", None if degrade in ("off", "shorter") else Path(degrade))):
        if folder is not None and not (folder / "config.json").is_file():
            missing = "it has no config.json" if folder.is_dir() else "there is no such folder"
            if work_folder(folder).is_dir():
                missing += " yet: its training isn't finished, and python -m shared.training goes on with it"
            fail(f"{name} {folder}: {missing}. A model is a folder with config.json and *.safetensors.")
    # OpenMP's threads wait for one another by spinning. With as many threads as cores and anything else running, such
    # as the browser that shows the chat, they spin in one another's way, and a token can take ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # but some microseconds of it spare a sleep between small products
    try:
        from shared.serving.run import serve  # only now: importing torch takes seconds, and reads that variable
    except ImportError as error:  # such as a part of the reader's that can't be loaded
        fail(f"The server can't start: {error}")

    settings = Settings(
        model=model, device=device, dtype=dtype, attention=attention, max_num_seqs=max_num_seqs,
        max_waiting=max_waiting, kv_memory=kv_memory, threads=threads, local_only=not has_key and is_loopback(sock),
        timeout=timeout, grace=grace, degrade=degrade, debug=debug, log_format=log_format, log_file=log_file,
        log_full_share=log_full_share, cost_per_hour=cost_per_hour,
    )  # fmt: skip
    start_engines = context.obj  # of a program around this one, such as a cluster, that brings engines of its own
    status = serve(sock, settings, start_engines(settings) if start_engines is not None else None, keys)
    context.close()
    # A thread may still be inside torch, loading or computing. When the interpreter ends in order, such a thread is
    # stopped in the middle of C++ code, and the process aborts.
    os._exit(status)


def load_keys(path: Path | None, api_key: str | None, admin_key: str | None) -> KeyRing:
    """The keys of the options. Ends the program, saying why, when one can't be used."""
    for name, key in (("API", api_key), ("admin", admin_key)):
        if key and not re.fullmatch(r"[!-~]+", key):
            fail(f"The {name} key can't be sent in a header: use only letters a-z, digits and signs, and no spaces.")
    try:
        ring = KeyRing.load(path, api_key or None, admin_key or None)
    except KeyFileError as error:
        fail(str(error))
    if path is not None and all(key.admin for key in ring.keys):  # and then the server would be open to everybody
        fail(f"--api-keys {path}: there is no caller's key in it. Without a key for callers, leave the option out.")
    return ring


def fail(message: str) -> NoReturn:
    """Say on standard error why the server doesn't start, and end with status 2."""
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    typer.run(main)
