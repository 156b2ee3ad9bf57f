"""How bodies come in and go out: read and parsed, encoded as the caller likes, or streamed until the caller leaves."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgpack
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from shared.serving.api.middleware import read_body
from shared.serving.api.protocol import Strict, parse
from shared.serving.concurrency import in_thread, unless_disconnected

Parsed = TypeVar("Parsed", bound=Strict)
MAX_BODY_BYTES = 2**18  # far more than a context of 8,000 tokens can hold
SMALL_BODY_BYTES = 2**14  # up to here parsing takes less time than starting a thread for it would save
MSGPACK = "application/msgpack"


async def read(request: Request, model: type[Parsed]) -> Parsed:
    """A request's body. Raises ApiError: 413, or 400 that names the parameter."""
    body = await read_body(request, MAX_BODY_BYTES)
    return parse(model, body) if len(body) <= SMALL_BODY_BYTES else await in_thread(lambda: parse(model, body))


def encoded(request: Request, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer as JSON, or as MessagePack for whoever says `Accept: application/msgpack`."""
    if accepts(request.headers.get("accept", ""), MSGPACK):
        return Response(msgpack.packb(body), media_type=MSGPACK, headers=headers)
    return JSONResponse(body, headers=headers)


def accepts(header: str, wanted: str) -> bool:
    """Whether an Accept header names this content type, and not with a weight of 0: "never that".

    >>> accepts("application/json, application/msgpack;q=0.5", MSGPACK), accepts("application/msgpack; q=0", MSGPACK)
    (True, False)
    """
    for item in header.lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind == wanted:
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


class EventStream(Response):
    """Server-sent events. on_end is called however the stream ends, with True when the caller left before its end."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[str, None], headers: Mapping[str, str], on_end: Callable[[bool], None]
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", **headers})
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come, until they end or the caller leaves."""
        complete = None
        try:
            complete = await unless_disconnected(Request(scope, receive), self._send(send))
        finally:
            self._on_end(complete is None)

    async def _send(self, send: Send) -> bool:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for text in events:
                await send({"type": "http.response.body", "body": text.encode("ascii"), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True
