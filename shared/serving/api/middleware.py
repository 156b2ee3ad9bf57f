"""What happens to every request before and after its route: an id, the key, its limits, and the books.

It is answered even if the route breaks, and it is counted once, however it ends.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Sequence
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared import in_words
from shared.observability.request_id import current_request_id, request_id_from
from shared.serving.errors import ApiError, server_error, shutting_down
from shared.serving.guard.call import Call
from shared.serving.guard.service import REFUSED, Service

logger = logging.getLogger(__name__)

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::\d+)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # Starlette's patterns, for one, take no notice of a newline at the end
READING = ("GET", "HEAD", "OPTIONS")
DRAIN_LIMIT = 16  # times the size limit: how much of a body that is too large is read and thrown away
BODY_S = 30.0  # for the whole of a body
CLIENT_LEFT = 499  # as nginx counts it: nobody was there to be answered


class Gate:
    """ASGI middleware, around everything.

    X-Request-ID is taken from the caller or made, and is in every answer. With keys, `Authorization: Bearer KEY` is
    needed for all but the static pages and the health checks; the operator's routes need an admin key, and are open
    without one only on a server for this computer alone. Such a server (`local_only`) is to be named as this computer,
    and not asked by another web site's page: a site could otherwise use it through the browser of whoever visits it, by
    a name of its own that leads to 127.0.0.1, or by a form.
    """

    def __init__(self, app: ASGIApp, service: Service, routes: Sequence[Route] = ()) -> None:
        self.app, self.service, self._routes = app, service, routes
        self._local_only = service.settings.local_only
        self._needs_key = any(not key.admin for key in service.keys.keys)
        self._has_admin = any(key.admin for key in service.keys.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or hand it on, and count it when it has ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        request_id = request_id_from(headers.get("x-request-id"))
        current_request_id.set(request_id)
        state["request_id"], state["arrived"] = request_id, self.service.clock()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(self._headers(state))
            await send(message)

        try:
            refusal = self._refusal(scope, headers, state)
            if refusal is not None:
                await self._answer(refusal, scope, receive, send_with_headers)
            else:
                await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:  # in the middle of the body
            status = status or CLIENT_LEFT
        except asyncio.CancelledError:  # the server is ending and won't wait for the rest of this request
            if status:
                raise
            await self._answer(shutting_down(), scope, receive, send_with_headers)
        except Exception as error:
            if status:
                raise
            method, path = scope["method"], scope["path"]
            logger.exception("request %s: %s %s failed: %s", request_id, method, path, in_words(error))
            message = f"Something went wrong inside the server; its log has the details under {request_id}."
            answer = server_error(message, code="internal_error")
            await self._answer(answer, scope, receive, send_with_headers)
        finally:
            self._close_books(scope, state, status or CLIENT_LEFT)

    async def _answer(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["error"] = error.code
        await error.response()(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers, state: dict[str, Any]) -> ApiError | None:
        """Why this request isn't let in; None when it is."""
        if CONTROL.search(scope["path"]):
            return ApiError(400, "The address holds a control character.", code="invalid_address")
        if self._local_only and (refusal := _from_elsewhere(scope["method"], headers)) is not None:
            return refusal
        whose = area(scope["path"])
        if whose == "open":
            return None
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        # The header's bytes as they came: a key may hold any letters.
        key = self.service.keys.find(presented.encode("latin-1")) if scheme.lower() == "bearer" else None
        if whose == "admin":
            if self._has_admin:
                return None if key is not None and key.admin else _missing_key("its admin key")
            return None if self._local_only else _closed()
        if self._needs_key:
            if key is None or key.admin:
                return _missing_key("its API key")
            state["key"] = key
        limits = self.service.limits.get(key.name) if key is not None else None
        return limits.take_request(state["arrived"]) if limits is not None else None

    def _headers(self, state: dict[str, Any]) -> dict[str, str]:
        """What an answer's head says beside what the route says."""
        headers = {"X-Request-ID": state["request_id"]}
        if "key" in state and (limits := self.service.limits.get(state["key"].name)) is not None:
            headers |= limits.headers(self.service.clock())
        call: Call | None = state.get("call")
        return headers if call is None else headers | call.headers()

    def _route(self, scope: Scope) -> str:
        """The route's own path, also of a request that was refused before the router saw it; "other" for no route."""
        if "route" in scope:
            return str(getattr(scope["route"], "path", "other"))
        return next((route.path for route in self._routes if route.matches(scope)[0] is not Match.NONE), "other")

    def _close_books(self, scope: Scope, state: dict[str, Any], status: int) -> None:
        call: Call | None = state.get("call")
        if call is not None:
            self.service.end(call, status, state.get("error", ""))  # nothing happens if the route has ended it already
            return
        telemetry, route = self.service.telemetry, self._route(scope)
        error = state.get("error", "")
        if status in REFUSED and error:
            telemetry.refused(error)
        if scope["path"].startswith("/v1"):
            trace = telemetry.begin(state["request_id"], route, state["arrived"])
            trace.status, trace.error, trace.key = status, error, state["key"].name if "key" in state else ""
            telemetry.finish(trace)
        else:
            telemetry.metrics.requests.labels(route, str(status)).inc()


def area(path: str) -> Literal["open", "admin", "api"]:
    """Who may use an address, by its parts as the router compares them: everybody, the operator, or callers.

    Every route but "/" begins with a first part of its own, so that none can be reached by an address of another area.
    """
    first, *more = path.removeprefix("/").split("/")
    if first in ("admin", "metrics") or (first == "dashboard" and more):
        return "admin"
    if first in ("health", "static") or path in ("/", "/dashboard", "/openapi.json", "/favicon.ico"):
        return "open"
    return "api"


def _from_elsewhere(method: str, headers: Headers) -> ApiError | None:
    """Why a request to a server for this computer only is refused; None when it isn't."""
    host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
    if not _is_loopback(host):
        message = f"Without an API_KEY this server answers only as localhost, not as {host!r}."
        return ApiError(403, message, code="forbidden_host")
    if method not in READING and origin and origin.partition("://")[2] != host:
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


def _missing_key(which: str) -> ApiError:
    message = f"This server needs {which}: send the header 'Authorization: Bearer KEY'."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _closed() -> ApiError:
    message = (
        "The operator's routes are closed, as others may reach this server and it has no admin key. "
        "Start it with one: ADMIN_KEY=something-long"
    )
    return ApiError(403, message, code="admin_closed")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes. Raises ApiError: 413 when it is larger, 408 when it comes too slowly."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > DRAIN_LIMIT * limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_S):
            return await _read(request, limit)
    except TimeoutError:
        message = f"The body did not come within {BODY_S:.0f} s."
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None


async def _read(request: Request, limit: int) -> bytes:
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > DRAIN_LIMIT * limit:
            break  # a caller who is still sending reads no answer before the end, but patience has one too
    if size > limit:
        raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    message = f"The body is larger than {limit} bytes."
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
