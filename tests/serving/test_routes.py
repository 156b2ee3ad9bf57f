"""The live server around the answers: health, models, the page, request ids, limits, the key."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import msgpack

from shared.serving.engines.engine import ThreadEngine
from shared.serving.models.version import Version
from tests.serving.live import PATH, WARM_UP_STEPS, chat, hold, scripted, serving, until

# ---- readiness and small routes


def test_ready_only_when_the_model_is(model):
    """The address answers from the beginning, and says so."""
    loaded, made = threading.Event(), scripted(model)

    async def start():
        engine = ThreadEngine(made.engine, "v1")
        version = made.versions._versions["v1"] = Version("v1", "scripted", Path("x"), engine, text=made.text)
        await asyncio.to_thread(loaded.wait, 20)
        await engine.start()
        del made.versions._versions["v1"]
        made.versions.add(version)

    made.start = start
    with serving(made, wait=False) as client:
        assert client.get("/health/live").json() == {"status": "ok"}
        answer = client.get("/health/ready")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        for stream in (False, True):
            early = client.post(PATH, json=chat(stream=stream))
            assert early.status_code == 503
            assert early.json()["error"]["code"] == "not_ready"
            assert 1 <= int(early.headers["retry-after"]) <= 60
        assert client.get("/v1/models").json()["data"] == []
        loaded.set()
        until(lambda: client.get("/health/ready").status_code == 200)
        assert client.get("/health/ready").json()["status"] == "ready"
        assert client.post(PATH, json=chat(max_tokens=2)).json()["choices"][0]["message"]["content"] == "xx"


def test_models(server):
    listing = server.get("/v1/models").json()
    assert listing["object"] == "list"
    entry, version = listing["data"]
    assert (entry["id"], version["id"], entry["object"]) == ("scripted", "scripted@v1", "model")
    assert server.get("/v1/models/scripted").json() == entry
    assert server.get("/v1/models/scripted@v1").json() == version
    assert server.post(PATH, json=chat(model="scripted@v1", max_tokens=1)).json()["model"] == "scripted@v1"
    assert server.post(PATH, json=chat(model="scripted@v2", max_tokens=1)).status_code == 404
    missing = server.get("/v1/models/some/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_errors_of_the_router_have_the_same_shape(server):
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("POST", "/v1/chat", 404),
        ("GET", PATH, 405),
        ("PUT", "/v1/models", 405),
        ("DELETE", "/", 405),
    ):
        response = server.request(method, path)
        assert response.status_code == status
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert path in error["message"]
        assert "x-request-id" in response.headers
    assert server.get(PATH).headers["allow"] == "POST"


def test_a_head_is_a_get_without_its_body(server):
    for path, status in (
        ("/", 200), ("/dashboard", 200), ("/health/live", 200), ("/health/ready", 200), ("/v1/models", 200),
        ("/v1/models/scripted", 200), ("/v1/models/none", 404), ("/metrics", 403), ("/openapi.json", 200),
        ("/nowhere", 404), (PATH, 405),
    ):  # fmt: skip
        head, get = server.head(path), server.get(path)
        assert head.status_code == get.status_code == status, path
        assert head.content == b""
        assert head.headers["content-type"] == get.headers["content-type"]
        assert abs(int(head.headers["content-length"]) - len(get.content)) < 5  # GET and HEAD are one letter apart
        assert server.get("/health/live").json() == {"status": "ok"}  # the connection is still good


def test_what_is_not_offered_says_so(server):
    for path, what in (("embeddings", "embeddings"), ("images/generations", "images"), ("responses", "responses")):
        response = server.post(f"/v1/{path}", json={"model": "scripted", "input": "text"})
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "not_offered")
        assert f"does not offer {what}" in error["message"]


def test_openapi_describes_all_routes(server):
    api = server.get("/openapi.json").json()
    for path in (PATH, "/v1/completions", "/tokenize", "/detokenize"):
        operation = api["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert "model" in schema["required"]
        assert operation["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")
    text = json.dumps(api)
    assert "422" not in text
    for reference in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert reference in api["components"]["schemas"]
    assert {"/v1/models", "/health/ready", "/metrics", "/admin/versions"} <= api["paths"].keys()
    assert server.get("/docs").status_code == 404  # that page would fetch its scripts from elsewhere


def test_tokenize_and_detokenize(server):
    text = "“naïve” 😀 <eos>"
    ids = list(text.encode())
    answer = server.post("/tokenize", json={"model": "scripted", "prompt": text}).json()
    assert answer == {"count": len(ids), "max_model_len": 200, "tokens": ids}
    assert server.post("/detokenize", json={"model": "scripted", "tokens": ids}).json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hi"}]
    asked = server.post("/tokenize", json={"model": "scripted", "messages": messages}).json()
    assert bytes(asked["tokens"]) == b"u:Hi\na:"
    assert server.post("/tokenize", json={"model": "scripted", "prompt": "x" * 5000}).json()["count"] == 5000
    assert server.post("/tokenize", json={"model": "scripted", "prompt": ""}).json()["tokens"] == []
    for path, body, param in (
        ("tokenize", {"prompt": "x"}, "model"),
        ("tokenize", {"model": "scripted"}, "prompt"),
        ("tokenize", {"model": "scripted", "prompt": "x", "messages": messages}, "prompt"),
        ("tokenize", {"model": "scripted", "prompt": 5}, "prompt"),
        ("detokenize", {"model": "scripted", "tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"model": "scripted", "tokens": "x"}, "tokens"),
    ):
        response = server.post(f"/{path}", json=body)
        assert response.status_code == 400, body
        assert response.json()["error"]["param"] == param
    assert server.post("/tokenize", json={"model": "none", "prompt": "x"}).status_code == 404


def test_messagepack_for_whoever_asks_for_it(server):
    accept = {"Accept": "application/msgpack, application/json;q=0.5"}
    for path, body in (
        (PATH, chat(max_tokens=3)),
        ("/v1/completions", {"model": "scripted", "prompt": "Hi", "max_tokens": 3}),
        ("/tokenize", {"model": "scripted", "prompt": "Hi"}),
    ):
        packed, plain = server.post(path, json=body, headers=accept), server.post(path, json=body)
        assert packed.headers["content-type"] == "application/msgpack"
        assert plain.headers["content-type"] == "application/json"
        packed, plain = msgpack.unpackb(packed.content), plain.json()
        for unlike in ("id", "created"):
            packed.pop(unlike, None)
            plain.pop(unlike, None)
        assert packed == plain
    never = {"Accept": "application/msgpack; q=0, application/json"}
    assert server.post(PATH, json=chat(max_tokens=1), headers=never).headers["content-type"] == "application/json"
    error = server.post(PATH, json=chat(n=0), headers=accept)
    assert error.json()["error"]["param"] == "n"  # errors are JSON for everyone


# ---- request ids and limits


def test_request_ids(server):
    for path in ("/health/live", "/nowhere", "/v1/models"):
        assert server.get(path, headers={"X-Request-ID": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    made = {server.get("/health/live").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("x" * 129, "a b", "a\tb", "é".encode(), "<script>"):
        given = server.get("/health/live", headers={"X-Request-ID": bad}).headers["x-request-id"]
        assert given not in (bad, "")
        assert given.isalnum()
    for method, path in (("GET", "/nowhere"), ("POST", PATH)):  # of both kinds: the router's and ours
        refused = server.request(method, path, headers={"X-Request-ID": "here"})
        assert refused.json()["request_id"] == "here"
    with server.stream("POST", PATH, json=chat(stream=True, max_tokens=1), headers={"X-Request-ID": "s"}) as response:
        assert response.headers["x-request-id"] == "s"
        response.read()


def test_two_requests_may_carry_the_same_id(model, server):
    turnstile = hold(model)
    with ThreadPoolExecutor() as pool:
        same = {"X-Request-ID": "same"}
        answers = [pool.submit(server.post, PATH, json=chat(max_tokens=2), headers=same) for _ in range(2)]
        until(lambda: model.steps == WARM_UP_STEPS + 1)
        turnstile.allow(100)
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_bodies_that_are_too_large(server):
    limit = 2**18
    for size in (limit + 1, 4 * limit):
        response = server.post(PATH, content=b" " * size)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"

    # A plainer client, which sends everything before it reads: it must not find the connection closed on it.
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", PATH, body=b" " * (12 * limit))
    assert connection.getresponse().status == 413
    connection.close()

    def chunks():  # no Content-Length
        for _ in range(30):
            yield b" " * 50_000

    assert server.post(PATH, content=chunks()).status_code == 413
    padded = json.dumps(chat(max_tokens=1)).encode()
    assert server.post(PATH, content=padded + b" " * (limit - len(padded))).status_code == 200
