"""The operator's routes: load a version beside the others, move the traffic over, and back. All under /admin/versions.

The middleware lets in whoever has the admin key. A folder that is named here is read by the server, whatever it is.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.requests import Request

from shared.measure.memory import MB
from shared.observability.process import resident_bytes
from shared.serving.api.middleware import read_body
from shared.serving.api.openapi import body_of
from shared.serving.api.protocol import Strict, parse
from shared.serving.errors import bad_value
from shared.serving.models.promotion import RegressionGate, check_folder, weight_bytes
from shared.serving.models.version import Refused, Version
from shared.serving.models.versions import Versions

MAX_BODY_BYTES = 2**14
TAGS = {"quick": ("quick",), "full": ()}

router = APIRouter(prefix="/admin/versions")


class Load(Strict):
    """path: a folder of this server's computer. wait: answer only when it is ready, or won't be."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    model: str | None = None
    name: str | None = None
    gate: Literal["quick", "full"] = "quick"
    wait: bool = False


class Shift(Strict):
    """The body of /shift. shares: version's name -> its share of the model's requests, 1 in all."""

    shares: dict[str, float]
    force: bool = False


class Promote(Strict):
    """The body of /promote. name: the version's. force: even if the gate rejected it."""

    name: str
    force: bool = False


class Rollback(Strict):
    """The body of /rollback. model: may be left out where there is only one."""

    model: str | None = None


@router.get("")
async def list_versions(request: Request) -> dict[str, Any]:
    """All versions, with their state, shares, engine and what the gate said."""
    versions = _versions(request)
    return {"object": "list", "data": [described(versions, version) for version in versions.list()]}


@router.post("/load", status_code=202, openapi_extra=body_of(Load))
async def load(request: Request) -> Response:
    """Start loading a version; 202 and its description, or with `wait` 200 when it is ready. It gets no traffic yet,
    unless it is the first one of its model."""
    asked = parse(Load, await read_body(request, MAX_BODY_BYTES))
    versions, path = _versions(request), _folder(asked.path)
    await asyncio.to_thread(check_folder, path)
    gate = RegressionGate(tags=TAGS[asked.gate]) if asked.gate != "quick" else None
    version = versions.load(path, asked.model, asked.name, gate)
    if not asked.wait:
        return JSONResponse(described(versions, version), 202)
    assert version.settled is not None
    await asyncio.wait([version.settled])
    if version.state != "ready":
        raise Refused(f"{version.name!r} is {version.state}: {version.error}.", f"version_{version.state}")
    return JSONResponse(described(versions, version))


@router.post("/shift", openapi_extra=body_of(Shift))
async def shift(request: Request) -> dict[str, Any]:
    """Share the requests for a model out among its versions."""
    asked = parse(Shift, await read_body(request, MAX_BODY_BYTES))
    _versions(request).shift(asked.shares, asked.force)
    return await list_versions(request)


@router.post("/promote", openapi_extra=body_of(Promote))
async def promote(request: Request) -> dict[str, Any]:
    """Give one version all requests for its model."""
    asked = parse(Promote, await read_body(request, MAX_BODY_BYTES))
    _versions(request).promote(asked.name, asked.force)
    return await list_versions(request)


@router.post("/rollback", openapi_extra=body_of(Rollback, required=False))
async def rollback(request: Request) -> dict[str, Any]:
    """Undo the latest shift or promotion; another time, the one before it."""
    asked = parse(Rollback, await read_body(request, MAX_BODY_BYTES) or b"{}")
    _versions(request).rollback(asked.model)
    return await list_versions(request)


@router.get("/{name}")
async def one_version(request: Request, name: str) -> dict[str, Any]:
    """One version; 404 for a name there isn't."""
    versions = _versions(request)
    return described(versions, versions.get(name))


@router.delete("/{name}", status_code=202)
async def unload(request: Request, name: str) -> dict[str, Any]:
    """Answer what it has begun to the end, then stop it. It is in the list until that is done."""
    versions = _versions(request)
    versions.start_unload(name)
    return described(versions, versions.get(name))


def _folder(path: str) -> Path:
    """Raises ApiError 400 for the home of a user that there isn't."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise bad_value("path", str(error).rstrip(".")) from None


def _versions(request: Request) -> Versions:
    return request.app.state.service.versions


def described(versions: Versions, version: Version) -> dict[str, Any]:
    """Everything an operator may want to know of a version. Sizes in MB of 10^6 bytes."""
    limits = version.engine.limits
    memory: dict[str, float] = {"weights_mb": round(weight_bytes(version.path) / MB, 1)}
    if limits is not None:
        memory["kv_mb"] = round(limits.num_blocks * limits.bytes_per_block / MB, 1)
    pid = getattr(version.engine, "pid", None)  # an engine in a thread has none
    if pid is not None and (held := resident_bytes(pid)) is not None:
        memory["process_mb"] = round(held / MB, 1)
    return {
        "object": "version",
        "name": version.name,
        "model": version.model,
        "id": version.id,
        "path": str(version.path),
        "created": version.created,
        "state": version.status,
        "error": version.trouble,
        "engine": version.engine.state,
        "pid": pid,
        "share": versions.shares(version.model).get(version.name, 0.0),
        "requests": {"open": version.num_open, "total": version.num_requests},
        "output_tokens": version.num_tokens,
        "memory": memory,
        "limits": None if limits is None else vars(limits),
        "warm_up": version.warm_up,
        "gate": version.gate,
    }
