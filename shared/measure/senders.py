"""Ways to send a trace's request: over HTTP, streamed or whole, or to a generate function in this process."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from shared.measure.bench import Generate
from shared.measure.load import RequestFailed, Send
from shared.measure.trace import TraceRequest


def load_client(base_url: str, timeout_s: float = 600.0) -> httpx.AsyncClient:
    """An HTTP client fit to put a load on a server: any number of connections, no proxy, a long patience."""
    # httpx opens at most 100 connections unless told otherwise: the 101st caller would queue here, unseen.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=base_url, timeout=timeout_s, limits=limits, trust_env=False)


def http_sender(client: httpx.AsyncClient, path: str, body: Callable[[TraceRequest], dict[str, Any]]) -> Send:
    """A sender that posts body(request) to `path`.

    Understands a stream of server-sent events in OpenAI's form (a token is counted per event that carries text; the
    `usage` field, where sent, corrects the count) and a whole JSON answer, with `output_tokens` or
    `usage.completion_tokens`. Anything else fails with its kind: "HTTP 429", "timeout", "no connection",
    "connection lost", "error in the stream", "stream cut off", "unknown answer".
    """

    async def send(request: TraceRequest) -> AsyncIterator[int]:
        try:
            async with client.stream("POST", path, json=body(request)) as response:
                if response.status_code != 200:
                    raise RequestFailed(f"HTTP {response.status_code}")
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    async for n_tokens in _stream_tokens(response):
                        yield n_tokens
                else:
                    yield _whole_answer_tokens(await response.aread())
        except httpx.TimeoutException:
            raise RequestFailed("timeout") from None
        except httpx.ConnectError:
            raise RequestFailed("no connection") from None
        except httpx.TransportError:
            raise RequestFailed("connection lost") from None

    return send


async def _stream_tokens(response: httpx.Response) -> AsyncIterator[int]:
    counted, used = 0, None
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue  # comments and blank lines keep a connection alive
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            if used is not None and used > counted:
                yield used - counted  # several tokens came in one event, for instance the bytes of one character
            return
        event = _json_object(data)
        if "error" in event:
            raise RequestFailed("error in the stream")
        if event.get("usage"):
            used = event["usage"].get("completion_tokens")
        for choice in event.get("choices", []):
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                counted += 1
                yield 1
    raise RequestFailed("stream cut off")


def _whole_answer_tokens(content: bytes) -> int:
    answer = _json_object(content)
    n_tokens = answer.get("output_tokens", (answer.get("usage") or {}).get("completion_tokens"))
    if not isinstance(n_tokens, int):
        raise RequestFailed("unknown answer")
    return n_tokens


def _json_object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestFailed("unknown answer")
    return value


def in_process(generate: Generate, workers: int = 1) -> Send:
    """A sender that runs a generate function in threads of this process; with one worker, requests queue for it."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="generate")

    async def send(request: TraceRequest) -> AsyncIterator[int]:
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[bool]()
        gone = threading.Event()  # the caller has left: stop at the next token

        def work() -> None:
            try:
                for _ in generate(request.prompt_ids, request.max_new_tokens):
                    if gone.is_set():
                        return
                    loop.call_soon_threadsafe(tokens.put_nowait, True)
            finally:
                if not gone.is_set():
                    loop.call_soon_threadsafe(tokens.put_nowait, False)

        job = loop.run_in_executor(pool, work)
        try:
            while await tokens.get():
                yield 1
            await job  # raises what generate raised
        finally:
            gone.set()
            job.cancel()  # if it is still in the queue, it never starts

    return send


@contextmanager
def local_server(app: Any, timeout_s: float = 30.0) -> Iterator[str]:
    """Serve an ASGI app on a free port of this machine, in a thread with its own event loop. Gives its base URL.

    Raises RuntimeError when the app doesn't start in `timeout_s` seconds.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="auto"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + timeout_s
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start within {timeout_s:g} s; its log is above")
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout_s)
