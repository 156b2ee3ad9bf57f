"""The server's app: all routes around one service. Whoever runs the app starts the service and stops it."""

from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.serving.api import admin, dashboard, generation, pages, tokenizing
from shared.serving.api.middleware import Gate
from shared.serving.api.openapi import describe
from shared.serving.errors import ApiError, api_error, http_error, validation_error
from shared.serving.guard.service import Service

# What clients of OpenAI's may ask for and this server has no model for.
NOT_OFFERED = {
    "embeddings": "embeddings",
    "moderations": "moderations",
    "images/generations": "images",
    "audio/speech": "speech",
    "audio/transcriptions": "transcriptions",
    "responses": "responses",
}


def create_app(service: Service) -> FastAPI:
    """It answers at once, and truly so when the service has been started."""
    app = FastAPI(title="Your Own Parts", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    app.state.service = service
    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.get("/health/live")(live)
    app.get("/health/ready")(ready)
    app.get("/metrics", responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}})(metrics)
    app.get("/v1/models")(models)
    app.get("/v1/models/{model:path}")(one_model)
    for path in NOT_OFFERED:
        app.post(f"/v1/{path}", include_in_schema=False)(not_offered)
    parts = [part.router for part in (generation, tokenizing, admin, dashboard, pages)]
    routes = [route for router in (app, *parts) for route in router.routes if isinstance(route, Route)]
    for router in parts:
        app.include_router(router)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Gate, service=service, routes=routes)  # around the other
    return app


async def live(request: Request) -> JSONResponse:
    """The process runs and its event loop turns: 200; or 503 when it can't answer any more and should be replaced."""
    service: Service = request.app.state.service
    if service.health.failed:
        return JSONResponse({"status": "the engine has failed"}, 503)
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> JSONResponse:
    """Whether requests are let in: 200, or 503 while the model loads, at the end, and when the engine has failed."""
    service: Service = request.app.state.service
    if service.health.ready:
        return JSONResponse(service.status())
    return JSONResponse(service.status(), 503, {"Retry-After": "1"})


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    body, content_type = request.app.state.service.telemetry.exposition(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


async def models(request: Request) -> dict[str, Any]:
    """What callers may ask for, in OpenAI's form."""
    return {"object": "list", "data": request.app.state.service.versions.models()}


async def one_model(request: Request, model: str) -> dict[str, Any]:
    """One model; 404 for a name there isn't."""
    found: dict[str, Any] = request.app.state.service.versions.model(model)
    return found


async def not_offered(request: Request) -> Response:
    """For OpenAI's routes that this server has not: 404, and what it has instead."""
    what = NOT_OFFERED[request.url.path.removeprefix("/v1/")]
    message = f"This server does not offer {what}: it has chat completions and completions only."
    raise ApiError(404, message, code="not_offered")


class HeadAsGet:
    """ASGI middleware: a HEAD is answered as a GET without its body, whatever the route."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as a GET, and send no body."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)
