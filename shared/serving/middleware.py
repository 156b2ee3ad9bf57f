"""What happens to every request before and after its route: an id, the key, and an answer even if the route breaks."""

import asyncio
import hmac
import ipaddress
import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.serving.errors import ApiError, server_error, shutting_down

logger = logging.getLogger(__name__)

GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")  # anything else could forge a header or a log line
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::\d+)?")
DRAIN_LIMIT = 16  # times the size limit: how much of a body that is too large is read and thrown away


class Gate:
    """ASGI middleware. X-Request-ID is taken from the caller or made, and is in every answer.

    With an `api_key`, every address under /v1 needs `Authorization: Bearer KEY`. With `local_only`, requests must name
    this computer as their host, and may not come from another web site's page: a site could otherwise use the server
    through the browser of whoever visits it, by a name of its own that leads to 127.0.0.1, or by a form.
    """

    def __init__(self, app: ASGIApp, api_key: str | None = None, local_only: bool = False) -> None:
        self.app = app
        self._expected = api_key.encode() if api_key else None
        self._local_only = local_only

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
            if self._local_only and (refusal := _from_elsewhere(scope["method"], headers)) is not None:
                await refusal.response()(scope, receive, send_with_id)
                return
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
        scheme, _, key = authorization.partition(" ")
        given = key.encode("latin-1")  # the header's bytes as they came: a key may hold any letters
        right = hmac.compare_digest(given, self._expected)  # takes as long for any wrong key
        return right and scheme.lower() == "bearer"


def _from_elsewhere(method: str, headers: Headers) -> ApiError | None:
    """Why a request to a server for this computer only is refused; None when it isn't."""
    host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
    if not _is_loopback(host):
        message = f"Without an API_KEY this server answers only as localhost, not as {host!r}."
        return ApiError(403, message, code="forbidden_host")
    if method == "POST" and origin and origin.partition("://")[2] != host:
        return ApiError(403, f"Pages of {origin!r} may not use this server.", code="forbidden_origin")
    return None


def _is_loopback(host: str) -> bool:
    """Whether a Host header, with or without a port, names this computer to itself."""
    found = HOST.fullmatch(host)
    if found is None:
        return False
    try:
        return found[1] == "localhost" or ipaddress.ip_address(found[1].strip("[]")).is_loopback
    except ValueError:
        return False


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
