"""The callers, a process of their own on plain sockets, so that they take little of the machine that they measure.

    python -m shared.serving.bench.callers < plan.json

A plan: {"host", "port", "callers": null, "requests": [{"at", "path", "body", …}]}. With a number of callers each sends
its next request when its last is answered; without, every request is sent when it is due, `at` seconds after the start.
Of each request that ends, a line of JSON is printed; the last line says what CPU time all this took. Times are
time.monotonic's, which is the same in all processes. Imports nothing but the standard library.
"""

import asyncio
import base64
import json
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

PATIENCE_S = 900.0  # more than any deadline of the server
SMALL = 2048  # bytes of a slow reader's buffer in the kernel: else that would read for it
SEGMENT = 536  # bytes, as far away: on one computer they are of 64 KB, and the sender's buffer holds many of them
MAX_LINE = 2**22


@dataclass
class Ask:
    """One request. leave_after: close the connection after so many events. bytes_per_s: read no faster. hold_s: and
    leave after so long. raw: these bytes, in base64, instead of a request of ours. gives_up: say that nothing more
    comes after them. keep_text: report the text, too.
    """

    index: int
    at: float = 0.0
    path: str = "/v1/completions"
    body: dict[str, Any] = field(default_factory=dict)
    leave_after: int | None = None
    bytes_per_s: float | None = None
    hold_s: float = PATIENCE_S
    raw: str | None = None
    gives_up: bool = False
    keep_text: bool = False


@dataclass
class Seen:
    """What came of it. arrived: when it was due. error: "" for an answer in full, and for one that was left.

    pieces: the tokens' texts, where logprobs were asked for; margins: how much likelier the best one was than the next.
    """

    index: int
    arrived: float
    status: int = 0
    times: list[float] = field(default_factory=list)  # when each event with text came
    ended: float = 0.0
    tokens: int = 0
    text: str | None = None
    pieces: list[str] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    retry_after: str | None = None
    error: str = ""
    left: bool = False


async def main(plan: dict[str, Any]) -> None:
    """Send the plan's requests when they are due, and print what was seen of each as it ends."""
    asks = [Ask(**request) for request in plan["requests"]]
    start, where = time.monotonic(), (plan["host"], plan["port"])

    async def one(ask: Ask, arrived: float) -> None:
        seen = Seen(ask.index, arrived)
        try:
            async with asyncio.timeout(min(ask.hold_s, PATIENCE_S)):
                await (slowly if ask.bytes_per_s else exchange)(ask, seen, *where)
        except TimeoutError:
            seen.left, seen.error = True, "" if ask.hold_s < PATIENCE_S else "timeout"
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            seen.error = f"connection: {type(error).__name__}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            seen.error = f"unknown answer: {error}"
        seen.ended = time.monotonic()
        print(json.dumps(asdict(seen)), flush=True)

    async def when_due(ask: Ask) -> None:
        await asyncio.sleep(start + ask.at - time.monotonic())
        await one(ask, start + ask.at)

    async def in_turn(waiting: Any) -> None:
        for ask in waiting:  # one iterator for all callers: each request is taken once
            await one(ask, time.monotonic())

    async with asyncio.TaskGroup() as group:
        if plan.get("callers") is None:
            for ask in asks:
                group.create_task(when_due(ask))
        else:
            waiting = iter(asks)
            for _ in range(plan["callers"]):
                group.create_task(in_turn(waiting))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(json.dumps({"cpu_s": cpu_s, "wall_s": time.monotonic() - start, "start": start}), flush=True)


async def exchange(ask: Ask, seen: Seen, host: str, port: int) -> None:
    """Send a request and read what comes back."""
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE)
    try:
        writer.write(request_bytes(ask, host, port))
        if ask.gives_up:
            writer.write_eof()
        seen.status, headers = await head(reader)
        seen.retry_after = headers.get("retry-after")
        pieces = body(reader, headers)
        if headers.get("content-type", "").startswith("text/event-stream"):
            await read_events(pieces, ask, seen)
        else:
            read_whole(b"".join([piece async for piece in pieces]), ask, seen)
    finally:
        writer.transport.abort()


async def slowly(ask: Ask, seen: Seen, host: str, port: int) -> None:
    """Read so many bytes a second, one at a time, to the end or until the time is over."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        sock.setblocking(False)
        await loop.sock_connect(sock, (host, port))
        await loop.sock_sendall(sock, request_bytes(ask, host, port))
        while await loop.sock_recv(sock, 1):
            seen.tokens += 1  # bytes, here
            await asyncio.sleep(1 / (ask.bytes_per_s or 1.0))


def request_bytes(ask: Ask, host: str, port: int) -> bytes:
    """The request as it goes over the wire: its own bytes where it has some, else a POST of its body."""
    if ask.raw is not None:
        return base64.b64decode(ask.raw)
    content = json.dumps(ask.body).encode()
    lines = f"POST {ask.path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    return f"{lines}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


async def head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """The status and the headers. Raises EOFError when the server hangs up without a word."""
    status = 100
    while status // 100 == 1:  # 100: go on and send the body, which was sent already
        if not (first := await reader.readline()):
            raise EOFError("no answer")
        status, headers = int(first.split()[1]), {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
    return status, headers


async def body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body's pieces, whether its length is told before, in chunks, or by the end of the connection."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0] or b"x", 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(2**16):
            yield piece


async def read_events(pieces: AsyncIterator[bytes], ask: Ask, seen: Seen) -> None:
    """A stream of server-sent events in OpenAI's form."""
    parts: list[str] = []
    buffer, counted = b"", 0
    async for piece in pieces:
        buffer += piece
        *events, buffer = buffer.split(b"\n\n")
        for data in events:
            if data == b"data: [DONE]":
                seen.text = "".join(parts) if ask.keep_text else None
                seen.tokens = seen.tokens or counted
                return
            if not data.startswith(b"data: "):
                continue
            event = json.loads(data[6:])
            if "error" in event:
                seen.error = f"in the stream: {event['error'].get('code')}"
                seen.text = "".join(parts) if ask.keep_text else None
                return
            if event.get("usage"):
                seen.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                seen.finish_reason = choice.get("finish_reason") or seen.finish_reason
                if scores := choice.get("logprobs"):
                    seen.pieces += scores["tokens"]
                    seen.margins += [margin(top) for top in scores["top_logprobs"]]
                if text := choice.get("text") or (choice.get("delta") or {}).get("content"):
                    counted += 1
                    seen.times.append(time.monotonic())
                    parts.append(text)
        if ask.leave_after is not None and len(seen.times) >= ask.leave_after:
            seen.left = True
            return
    seen.error = "stream cut off"


def margin(top: dict[str, float]) -> float:
    """How far the likeliest token is before the next one, in logarithms. One alone: so far that nothing comes near."""
    best = sorted(top.values(), reverse=True)
    return best[0] - best[1] if len(best) > 1 else 100.0


def read_whole(content: bytes, ask: Ask, seen: Seen) -> None:
    """An answer in one piece, or an error."""
    if seen.status != 200:
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # an error of another's, which isn't in JSON
            seen.error = str(json.loads(content)["error"]["code"])
        seen.error = seen.error or f"HTTP {seen.status}"
        return
    if ask.raw is not None:
        return
    answer = json.loads(content)
    seen.times.append(time.monotonic())
    seen.tokens = answer["usage"]["completion_tokens"]
    choice = answer["choices"][0]
    seen.finish_reason = choice["finish_reason"]
    if ask.keep_text:
        seen.text = choice["text"] if "text" in choice else choice["message"]["content"]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(main(json.load(sys.stdin)))
