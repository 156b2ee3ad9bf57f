"""The routes, and the life of the model behind them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from shared.inference.outputs import EngineStopped, RequestOutput
from shared.serving.concurrency import OneAtATime, in_thread, unless_disconnected
from shared.serving.errors import ApiError, api_error, from_engine, http_error, server_error, shutting_down
from shared.serving.middleware import Gate, read_body
from shared.serving.protocol import Answer, ChatRequest, event, parse_chat_request
from shared.serving.served_model import ServedModel

MAX_BODY_BYTES = 2**18  # far more than a context of 8,000 tokens can hold; encoding it takes seconds
SMALL_BODY_BYTES = 2**14  # up to here parsing takes less time than starting a thread for it would save
CHAT_PAGE = Path(__file__).parent / "static" / "chat.html"
# The page needs nothing but itself and this server, and may be given nothing else.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(
    name: str,
    load: Callable[[], ServedModel],
    api_key: str | None = None,
    local_only: bool = False,
    on_ready: Callable[[ServedModel], None] = lambda model: None,
    on_failure: Callable[[Exception], None] = lambda error: None,
) -> FastAPI:
    """The server's app. It answers at once, and is ready once `load`, run in a thread, is done and the model is warm.

    name: what the model is called in requests, which is known before it is loaded.
    local_only: refuse what a web site elsewhere could make a browser on this computer send; see Gate.
    """

    async def make_ready(app: FastAPI) -> None:
        try:
            model = await in_thread(load)
            app.state.encoding = OneAtATime(model.engine.places - 1, model.engine.retry_after)
            app.state.model = model
            model.engine.start()
            await model.warm_up()
            app.state.ready = True
            on_ready(model)
        except EngineStopped:
            return  # the server is ending already
        except Exception as error:
            app.state.ready, app.state.ending = False, True
            on_failure(error)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(make_ready(app))
        yield
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        await stop_engine(app)

    app = FastAPI(title="Your Own Parts", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.model, app.state.ready, app.state.ending = None, False, False
    app.state.name, app.state.created = name, int(time.time())
    app.add_middleware(Gate, api_key=api_key, local_only=local_only)
    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.get("/", response_class=HTMLResponse)(chat_page)
    app.get("/health/live")(live)
    app.get("/health/ready")(ready)
    app.get("/v1/models")(models)
    app.get("/v1/models/{model:path}")(one_model)
    body = {"required": True, "content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}
    app.post("/v1/chat/completions", openapi_extra={"requestBody": body})(chat_completions)
    return app


async def stop_engine(app: FastAPI) -> None:
    """End every answer in flight and take no more. The server calls it before it waits for open connections."""
    app.state.ready, app.state.ending = False, True
    if app.state.model is not None:
        await app.state.model.engine.stop()


async def chat_page() -> HTMLResponse:
    return HTMLResponse(CHAT_PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": PAGE_POLICY})


async def live() -> dict[str, str]:
    """The process runs and its event loop turns."""
    return {"status": "ok"}


async def ready(request: Request) -> JSONResponse:
    """Requests are answered: 200, or 503 while the model is loading, and when its engine has failed."""
    if request.app.state.ready and request.app.state.model.engine.running:
        return JSONResponse({"status": "ready"})
    if request.app.state.ready:
        return JSONResponse({"status": "the engine has failed"}, 503)  # without Retry-After: only a restart helps
    return JSONResponse({"status": "not ready"}, 503, {"Retry-After": "1"})


async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model_entry(request.app)]}


async def one_model(request: Request, model: str) -> dict[str, Any]:
    _check_model(request.app, model)
    return _model_entry(request.app)


async def chat_completions(request: Request) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    small = len(body) <= SMALL_BODY_BYTES
    chat = parse_chat_request(body) if small else await in_thread(lambda: parse_chat_request(body))
    _check_model(request.app, chat.model)
    if request.app.state.ending:
        raise shutting_down()
    if not request.app.state.ready:
        raise server_error("The model is not ready yet; see /health/ready.", code="not_ready", status=503)
    model: ServedModel = request.app.state.model
    if not model.engine.running:
        raise server_error("The engine has failed; the server's log says how.", code="engine_failed", status=503)
    try:
        model.engine.check_place()  # before the encoding, which would be for nothing
        encoding = request.app.state.encoding.run(lambda: model.encode(chat.conversation()))
        prompt_ids = await unless_disconnected(request, encoding)
        if prompt_ids is None:
            return Response()  # it goes nowhere: the caller has left
        id = f"chatcmpl-{uuid4().hex}"
        outputs = model.engine.generate(prompt_ids, model.sampling_params(chat), id)
    except ValueError as error:  # no template for these messages, or too long for the context
        raise ApiError(400, f"messages: {error}.", param="messages", code="invalid_value") from None
    except RuntimeError as error:
        raise from_engine(error) from None
    answer = Answer(id, int(time.time()), chat.model, len(prompt_ids))
    if chat.stream:
        usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
        return EventStream(_events(answer, outputs, usage), on_end=lambda: model.engine.abort(id))
    try:
        whole = await unless_disconnected(request, _whole(answer, outputs))
    except RuntimeError as error:
        raise from_engine(error) from None
    finally:
        model.engine.abort(id)
    return Response() if whole is None else JSONResponse(whole)


async def _whole(answer: Answer, outputs: AsyncIterator[RequestOutput]) -> dict[str, Any]:
    text, tokens, finish_reason = "", 0, None
    async for output in outputs:
        text += output.text
        tokens += len(output.token_ids)
        finish_reason = output.finish_reason
    return answer.whole(text, str(finish_reason), tokens)


async def _events(answer: Answer, outputs: AsyncIterator[RequestOutput], include_usage: bool) -> AsyncIterator[str]:
    yield event(answer.piece({"role": "assistant", "content": ""}))  # says that the request is in the queue
    tokens = 0
    try:
        async for output in outputs:
            tokens += len(output.token_ids)
            if output.text:
                yield event(answer.piece({"content": output.text}))
            if output.finish_reason is not None:
                yield event(answer.piece({}, output.finish_reason))
    except RuntimeError as error:  # too late for another status: the stream says so itself, and ends without [DONE]
        yield event(from_engine(error).body)
        return
    if include_usage:
        yield event(answer.usage_piece(tokens))
    yield "data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Server-sent events. `on_end` is called however the stream ends, even if the caller left before it began."""

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _check_model(app: FastAPI, name: str) -> None:
    if name != app.state.name:
        message = f"The model {name!r} does not exist; this server has {app.state.name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")


def _model_entry(app: FastAPI) -> dict[str, Any]:
    return {"id": app.state.name, "object": "model", "created": app.state.created, "owned_by": "your-own-parts"}
