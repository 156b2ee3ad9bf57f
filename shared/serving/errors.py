"""Errors in the shape that OpenAI's clients understand."""

import math
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from shared.inference.outputs import EngineStopped, GenerationError, QueueFull
from shared.observability.request_id import current_request_id

LONGEST_RETRY_S = 60  # whoever is told to wait longer gives up, or never comes back when it is over sooner


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

    @property
    def code(self) -> str:
        """What kind of error it is, in one word, for logs and metrics."""
        error = self.body["error"]
        return str(error["code"] or error["type"])

    def full_body(self) -> dict[str, Any]:
        """The body with the id of the request that is being answered, by which it is found in the server's log."""
        return self.body | {"request_id": current_request_id.get()}

    def response(self) -> JSONResponse:
        """The answer for its caller."""
        return JSONResponse(self.full_body(), self.status, self.headers)

    def answer_to(self, request: Request) -> JSONResponse:
        """The response, with the error's kind left where the middleware counts it."""
        request.state.error = self.code
        return self.response()


def retry_after(seconds: float) -> str:
    """The value of a Retry-After header: whole seconds, at least 1 and at most a minute."""
    return str(min(max(math.ceil(seconds), 1), LONGEST_RETRY_S))


def bad_value(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """The caller's fault: 400, and which parameter it is."""
    return ApiError(400, f"{param}: {message}.", param=param, code=code)


def server_error(message: str, code: str | None = None, status: int = 500) -> ApiError:
    """Our fault, not the caller's; 503 asks them to try again."""
    headers = {"Retry-After": "5"} if status == 503 else None
    return ApiError(status, message, type="server_error", code=code, headers=headers)


def shutting_down() -> ApiError:
    """503: nobody new is let in, and who is in may be cut off."""
    return server_error("The server is shutting down.", code="shutting_down", status=503)


def busy(error: Exception, retry_after_s: float) -> ApiError:
    """Too many are here already: 429, and when to come back."""
    headers = {"Retry-After": retry_after(retry_after_s)}
    return ApiError(429, f"The server is busy: {error}.", type="rate_limit_error", code="queue_full", headers=headers)


def from_engine(error: Exception) -> ApiError:
    """What stopped an answer, as an error for its caller. Raises the error itself when it is nothing we know."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return busy(error, error.retry_after_s)
    if isinstance(error, EngineStopped):
        return shutting_down()
    if isinstance(error, GenerationError):
        return server_error(f"The answer could not be finished: {error}.", code="generation_failed")
    raise error


async def api_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler for ApiError."""
    assert isinstance(error, ApiError)
    return error.answer_to(request)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler for what the router itself refuses: an unknown address, a wrong method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    messages = {404: f"There is nothing at {where}.", 405: f"{where}: this address doesn't take {request.method}."}
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=dict(error.headers or {})).answer_to(request)


async def validation_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler for a part of an address or a query that isn't what the route says."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(map(str, first["loc"][1:]))
    return bad_value(param, first["msg"]).answer_to(request)
