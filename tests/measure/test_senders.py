"""Sending over HTTP: streams and whole answers, and every way in which an answer can fail, against a real server."""

import asyncio
import json
import socket

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from shared.measure.load import closed_loop, open_loop
from shared.measure.senders import http_sender, load_client, local_server
from shared.measure.trace import TraceRequest

REQUEST = [TraceRequest((1, 2), 4)]


def events(*data: str):
    return StreamingResponse((f"data: {item}\n\n" for item in data), media_type="text/event-stream")


def chunk(text: str | None, **more) -> str:
    return json.dumps({"choices": [{"delta": {} if text is None else {"content": text}}], **more})


app = FastAPI()


@app.post("/{what}")
async def answer(what: str, request: Request):
    body = await request.json()
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": 5}})
    answers = {
        "chat": lambda: events(chunk(""), chunk("a"), chunk("b"), chunk(None), "[DONE]"),
        "usage": lambda: events(chunk("a"), chunk("b"), usage, "[DONE]"),
        "text": lambda: events('{"choices": [{"text": "a"}]}', '{"choices": [{"text": "b"}]}', "[DONE]"),
        "cut": lambda: events(chunk("a"), chunk("b")),
        "midway": lambda: events(chunk("a"), '{"error": {"message": "out of memory"}}', "[DONE]"),
        "garbage": lambda: events("not json"),
        "whole": lambda: JSONResponse({"text": "abc", "output_tokens": body["n"]}),
        "openai": lambda: JSONResponse({"usage": {"completion_tokens": 7}}),
        "silent": lambda: JSONResponse({"text": "abc"}),
        "plain": lambda: PlainTextResponse("hello"),
        "busy": lambda: JSONResponse({"error": "busy"}, status_code=429),
        "slow": lambda: None,
    }
    if what == "slow":
        await asyncio.sleep(1.0)
    return answers[what]()


@pytest.fixture(scope="module")
def url():
    with local_server(app) as base_url:
        yield base_url


def ask(url: str, what: str, timeout_s: float = 10.0):
    async def go():
        async with load_client(url, timeout_s) as client:
            sender = http_sender(client, f"/{what}", lambda request: {"n": request.max_new_tokens})
            return await open_loop(sender, REQUEST, progress=False)

    return asyncio.run(go())


@pytest.mark.parametrize(("what", "n"), [("chat", 2), ("usage", 5), ("text", 2), ("whole", 4), ("openai", 7)])
def test_tokens_are_counted(url, what, n):
    report = ask(url, what)
    assert report["errors"] == {}
    assert report["total"]["output_tokens"] == n


def test_whole_answer_has_no_pace(url):
    assert ask(url, "whole")["requests"][0]["tpot_s"] is None
    assert ask(url, "chat")["requests"][0]["tpot_s"] is not None


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("cut", "stream cut off"),
        ("midway", "error in the stream"),
        ("garbage", "unknown answer"),
        ("silent", "unknown answer"),
        ("plain", "unknown answer"),
        ("busy", "HTTP 429"),
    ],
)
def test_failures_have_their_kind(url, what, kind):
    report = ask(url, what)
    assert report["errors"] == {kind: 1}
    assert report["total"]["output_tokens"] == 0


def test_timeout(url):
    assert ask(url, "slow", timeout_s=0.2)["errors"] == {"timeout": 1}


def test_nobody_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert ask(f"http://127.0.0.1:{port}", "chat")["errors"] == {"no connection": 1}


def test_more_callers_than_httpx_would_allow_by_itself():
    """httpx opens 100 connections by default; the 101st caller would wait inside the generator."""
    inside, most = 0, 0
    crowded = FastAPI()

    @crowded.post("/")
    async def hold():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        while most < 120:
            await asyncio.sleep(0.01)
        return {"output_tokens": 1}

    async def go(base_url: str):
        async with load_client(base_url, 20.0) as client:
            sender = http_sender(client, "/", lambda request: {})
            return await closed_loop(sender, REQUEST * 120, callers=120, progress=False)

    with local_server(crowded) as base_url:
        report = asyncio.run(go(base_url))
    assert report["errors"] == {}
    assert most == 120


def test_local_server_ends_with_its_block():
    with local_server(app) as base_url:
        assert httpx.post(f"{base_url}/openai", json={}, trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.post(f"{base_url}/openai", json={}, trust_env=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_local_server_that_cannot_start():
    async def broken(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no weights"})

    with pytest.raises(RuntimeError, match="did not start"), local_server(broken):
        pass
