"""What happens to every request before and after its route: an id, the key, and an answer even if the route breaks."""

import asyncio
import hmac
import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.serving.errors import ApiError, server_error, shutting_down

logger = logging.getLogger(__name__)

GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")  # anything else could forge a header or a log line
DRAIN_LIMIT = 16  # times the size limit: how much of a body that is too large is read and thrown away


class Gate:
    """ASGI middleware. X-Request-ID is taken from the caller or made, and is in every answer.

    With an `api_key`, every address under /v1 needs `Authorization: Bearer KEY`.
    """

    def __init__(self, app: ASGIApp, api_key: str | None = None) -> None:
        self.app = app
        self._expected = f"Bearer {api_key}".encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not GOOD_ID.fullmatch(request_id):
            request_id = secrets.token_hex(16)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            if not self._may_pass(scope["path"], headers.get("authorization", "")):
                await _missing_key().response()(scope, receive, send_with_id)
                return
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            return  # the caller left before the body was whole: nobody is there to be answered
        except asyncio.CancelledError:  # the server is ending and won't wait for the rest of this request
            if started:
                raise
            await shutting_down().response()(scope, receive, send_with_id)
        except Exception:
            if started:
                raise
            logger.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            message = f"Something went wrong inside the server; its log has the details under {request_id}."
            await server_error(message, code="internal_error").response()(scope, receive, send_with_id)

    def _may_pass(self, path: str, authorization: str) -> bool:
        if self._expected is None or not path.startswith("/v1"):
            return True
        given = authorization.encode("latin-1")  # the header's bytes as they came: a key may hold any letters
        return hmac.compare_digest(given, self._expected)  # takes as long for any wrong key


def _missing_key() -> ApiError:
    message = "This server needs its API key: send the header 'Authorization: Bearer KEY'."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes. Raises ApiError 413 when it is larger."""
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > DRAIN_LIMIT * limit:
            break  # a caller who is still sending reads no answer before the end, but patience has one too
    if size > limit:
        message = f"The body is larger than {limit} bytes."
        raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
    return bytes(body)
