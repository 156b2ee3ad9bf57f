"""What /openapi.json says of the routes beyond what FastAPI finds out by itself: bodies, errors, kinds of answers."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

COMPONENTS = "#/components/schemas/"
_TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_DETAILS = {"message": {"type": "string"}, "type": {"type": "string"}, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": list(_DETAILS), "properties": _DETAILS},
        "request_id": {"type": "string"},
    },
}
ANY = {"type": "object"}


def body_of(model: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """A route's `openapi_extra`: it reads its body by itself, and the body is one of these."""
    schema = model.model_json_schema(ref_template=COMPONENTS + "{model}")
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def answers(*kinds: str, description: str = "The answer") -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: 200 with a body of one of these content types, besides JSON."""
    content = {"application/json": {"schema": ANY}}
    return {200: {"description": description, "content": content | {kind: {"schema": {}} for kind in kinds}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The app's description. Any route may answer with an error, and all errors look alike."""
    if app.openapi_schema is None:
        api = get_openapi(title=app.title, version="1", routes=app.routes)
        components = api.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's, which this app doesn't use
            components.pop(name, None)
        components["Error"] = ERROR
        error = {"application/json": {"schema": {"$ref": f"{COMPONENTS}Error"}}}
        for operations in api["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                operation["responses"] |= {
                    "4XX": {"description": "Refused: the error says why", "content": error},
                    "5XX": {"description": "Failed, or not now: the error says why", "content": error},
                }
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    components |= content["schema"].pop("$defs", {})
        app.openapi_schema = api
    return app.openapi_schema
