"""Errors in the shape that OpenAI's clients understand."""

import math
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from shared.inference.outputs import EngineStopped, GenerationError, QueueFull


class ApiError(Exception):
    """An answer other than 200: the status, and what the body says of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {"error": {"message": message, "type": type, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def server_error(message: str, code: str | None = None, status: int = 500) -> ApiError:
    """Our fault, not the caller's; 503 asks them to try again."""
    headers = {"Retry-After": "5"} if status == 503 else None
    return ApiError(status, message, type="server_error", code=code, headers=headers)


def shutting_down() -> ApiError:
    return server_error("The server is shutting down.", code="shutting_down", status=503)


def from_engine(error: Exception) -> ApiError:
    """What the engine raised, as an answer. Raises the error itself when it is none of the engine's own."""
    if isinstance(error, QueueFull):
        headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
        message = f"The server is busy: {error}."
        return ApiError(429, message, type="rate_limit_error", code="queue_full", headers=headers)
    if isinstance(error, EngineStopped):
        return shutting_down()
    if isinstance(error, GenerationError):
        return server_error(f"The answer could not be finished: {error}.", code="generation_failed")
    raise error


async def api_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler for ApiError."""
    assert isinstance(error, ApiError)
    return error.response()


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler for what the router itself refuses: an unknown address, a wrong method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    messages = {404: f"There is nothing at {where}.", 405: f"{where}: this address doesn't take {request.method}."}
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()
