"""What the dashboard shows, as JSON: the state of everything now, and the last minutes. No texts, no prompts, no keys.

The page asks about twice a second, and there may be many pages. So a state is made at most four times a second and is
given to all who ask meanwhile; making it takes about a millisecond of the event loop.
"""

import asyncio
import json
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from shared import reader_parts
from shared.observability.trace import RequestTrace, chrome_trace
from shared.serving.guard.deadline import ENOUGH
from shared.serving.guard.service import ANYONE, Service
from shared.serving.models.version import Version

FRESH_S = 0.25
MOST_CELLS = 2**14  # of a block map: more would be smaller than a pixel
MOST_REQUESTS, MOST_EVENTS = 64, 60
MAP_TIMEOUT_S = 0.5  # an engine that is being restarted has no map, and one that hangs never answers

# A block as Engine.block_map says it -> as the page draws it: "0" free, "1" free but cached, "2" used, "3" shared.
CELLS = b"02" + b"3" * 253 + b"1"
PARTS = reader_parts()  # at the start: what is chosen later runs only after the next one

router = APIRouter(include_in_schema=False)


@router.get("/dashboard/state")
async def state(request: Request) -> Response:
    """What the page draws, as JSON. It is asked for again and again, by every page that is open."""
    body = await _dashboard(request).state()
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get("/dashboard/traces")
async def traces(request: Request) -> JSONResponse:
    """The latest requests in Chrome's trace format; none unless the server runs with --debug."""
    trace = chrome_trace(list(_dashboard(request).service.telemetry.traces))
    return JSONResponse(trace, headers={"Content-Disposition": 'attachment; filename="requests.trace.json"'})


def _dashboard(request: Request) -> "Dashboard":
    app = request.app
    if not hasattr(app.state, "dashboard"):
        app.state.dashboard = Dashboard(app.state.service)
    return app.state.dashboard


class Dashboard:
    """The latest state, as long as it is fresh."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._lock = asyncio.Lock()
        self._body, self._made = b"", -FRESH_S

    async def state(self) -> bytes:
        """The state as JSON, at most FRESH_S seconds old."""
        async with self._lock:  # whoever comes while it is made waits for it
            if time.monotonic() - self._made >= FRESH_S:
                versions = self.service.versions.list()
                maps = await asyncio.gather(*map(_block_map, versions))
                self._body = json.dumps(_state(self.service, versions, maps), allow_nan=False).encode()
                self._made = time.monotonic()
            return self._body


async def _block_map(version: Version) -> bytes:
    if version.engine.state != "ready":
        return b""
    try:
        return await asyncio.wait_for(version.engine.block_map(), MAP_TIMEOUT_S)
    except (TimeoutError, RuntimeError):
        return b""


def _state(service: Service, versions: list[Version], maps: list[bytes]) -> dict[str, Any]:
    telemetry, now = service.telemetry, time.monotonic()
    snapshot = telemetry.snapshot()
    snapshot["events"] = snapshot["events"][-MOST_EVENTS:]
    open_traces = sorted((t for t in telemetry.open.values() if t.model), key=lambda t: (t.started is None, t.arrived))
    admissions = [service.admission_of(version) for version in versions if version.state == "ready"]
    by_key: dict[str, int] = {}
    names = {key.name for key in service.keys.keys}
    for admission in admissions:
        for caller, n in admission.waiting_by_key.items():
            key = caller if caller in names else ANYONE.name  # without keys it is an address
            by_key[key] = by_key.get(key, 0) + n
    return {
        **snapshot,
        "now": time.time(),
        "ready": service.health.ready,
        "draining": service.drain.draining,
        "parts": PARTS,
        "timeout": {
            "seconds": service.timeouts.default(),
            "fixed": service.settings.timeout is not None,
            "p99_s": telemetry.p99_s() if telemetry.num_measured >= ENOUGH else None,
        },
        "versions": [_version(service, *both) for both in zip(versions, maps, strict=True)],
        "queue": {
            "running": sum(admission.num_running for admission in admissions),
            "max_running": sum(admission.max_running for admission in admissions),
            "waiting": sum(admission.num_waiting for admission in admissions),
            "max_waiting": sum(admission.max_waiting for admission in admissions),
            "by_key": by_key,
        },
        "requests": [_request(trace, now) for trace in open_traces[:MOST_REQUESTS]],
        "num_requests": len(open_traces),
    }


def _version(service: Service, version: Version, block_map: bytes) -> dict[str, Any]:
    limits = version.engine.limits
    engine = None if limits is None else {
        "device": limits.device, "dtype": limits.dtype, "attention": limits.attention,
        "max_model_len": limits.max_model_len, "max_num_seqs": limits.max_num_seqs,
        "block_size": limits.block_size, "bytes_per_block": limits.bytes_per_block,
    }  # fmt: skip
    return {
        "name": version.name,
        "model": version.model,
        "state": version.state,
        "engine_state": version.engine.state,
        "error": version.trouble,
        "share": service.versions.shares(version.model).get(version.name, 0.0),
        "open": version.num_open,
        "engine": engine,
        "blocks": _blocks(block_map),
    }


def _blocks(block_map: bytes) -> dict[str, Any] | None:
    """How many blocks are in which state, and a character for each, or for every `stride`-th if there are too many."""
    if not block_map:
        return None
    cells = block_map.translate(CELLS)
    stride = -(-len(cells) // MOST_CELLS)
    counts = {name: cells.count(code) for name, code in zip(("free", "cached", "used", "shared"), b"0123", strict=True)}
    return {**counts, "num": len(cells), "stride": stride, "cells": cells[::stride].decode()}


def _request(trace: RequestTrace, now: float) -> dict[str, Any]:
    """An open request. Its id may be the caller's own choice; it is no secret, and it finds the log line."""
    stage = "decode" if trace.first_token else "prefill" if trace.started else "queued" if trace.queued else "arriving"
    return {
        "id": trace.request_id, "version": trace.version, "key": trace.key, "stage": stage,
        "age_s": now - trace.arrived, "prompt_tokens": trace.prompt_tokens, "cached_tokens": trace.cached_tokens,
        "output_tokens": trace.output_tokens, "blocks": trace.max_blocks, "resumed": trace.resumed,
    }  # fmt: skip
