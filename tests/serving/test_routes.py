"""The live server around the answers: health, models, the page, request ids, limits, the key."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, WARM_UP_STEPS, chat, hold, scripted, serving, until

# ---- readiness and small routes


def test_ready_only_after_loading_and_warming():
    loaded, model = threading.Event(), ScriptedModel("hi")
    turnstile = hold(model)

    def load():
        assert loaded.wait(20)
        return scripted(model)

    with serving("scripted", load, wait=False) as client:
        assert client.get("/health/live").json() == {"status": "ok"}
        for _ in range(2):
            answer = client.get("/health/ready")
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            early = client.post(PATH, json=chat())
            assert early.status_code == 503
            assert early.json()["error"]["code"] == "not_ready"
            assert "retry-after" in early.headers
            loaded.set()  # the second time round it is loaded, and not warm yet
            until(lambda: model.steps == 1)
        assert client.get("/v1/models").status_code == 200
        turnstile.allow(100)
        until(lambda: client.get("/health/ready").status_code == 200)
        assert model.steps == WARM_UP_STEPS
        assert client.post(PATH, json=chat()).json()["choices"][0]["message"]["content"] == "hi"


def test_a_model_that_cannot_be_loaded_is_reported():
    failures = []

    def load():
        raise ValueError("broken weights")

    with serving("scripted", load, wait=False, on_failure=failures.append) as client:
        until(lambda: failures)
        assert str(failures[0]) == "broken weights"
        assert client.get("/health/ready").status_code == 503
        assert client.post(PATH, json=chat()).json()["error"]["code"] == "shutting_down"  # and not "not ready yet"


def test_models(server):
    listing = server.get("/v1/models").json()
    assert listing["object"] == "list"
    (entry,) = listing["data"]
    assert (entry["id"], entry["object"]) == ("scripted", "model")
    assert server.get("/v1/models/scripted").json() == entry
    missing = server.get("/v1/models/some/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_errors_of_the_router_have_the_same_shape(server):
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("POST", "/v1/completions", 404),
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


def test_the_chat_page_needs_nothing_from_elsewhere(server):
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "Your Own Parts" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    text = page.text.replace("xmlns='http://www.w3.org/2000/svg'", "")  # a name, not an address
    for outside in ("http://", "https://", "@import", "url(", " src=", ".innerHTML"):
        assert outside not in text


def test_openapi_describes_the_request(server):
    api = server.get("/openapi.json").json()
    schema = api["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "messages"} <= set(schema["required"])
    assert server.get("/docs").status_code == 404  # that page would fetch its scripts from elsewhere


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


# ---- the key


def test_with_a_key_every_v1_route_needs_it(model):
    with serving("scripted", lambda: scripted(model), api_key="sésame") as client:
        right = {"Authorization": "Bearer sésame".encode()}
        wrong = ({}, {"Authorization": "Bearer no"}, {"Authorization": "sésame".encode()}, {"X-API-Key": "sesame"})
        body = chat(max_tokens=1)
        for method, path, status in (("GET", "/v1/models", 200), ("POST", PATH, 200), ("GET", "/v1/nowhere", 404)):
            for headers in wrong:
                response = client.request(method, path, json=body, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            assert client.request(method, path, json=body, headers=right).status_code == status
        for path in ("/", "/health/live", "/health/ready"):
            assert client.get(path).status_code == 200
    assert len(model.prompts) == 2  # the warm-up and the one with the key
