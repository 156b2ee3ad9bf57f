"""The live server at work: a full queue, callers who leave, failures, the end."""

import json
import logging
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.observability.logs import configure
from shared.serving.guard.keys import Key, KeyRing, hash_key
from tests.serving.live import PATH, WARM_UP_STEPS, chat, events, hold, raw_request, scripted, serving, until

# ---- the queue


def test_a_full_queue_answers_429(model, server):
    turnstile = hold(model)
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, json=chat(max_tokens=2)) for _ in range(2)]
        until(lambda: len(server.service.open) == 2)
        for stream in (False, True):
            refused = server.post(PATH, json=chat(max_tokens=2, stream=stream))
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
        assert server.get("/health/ready").status_code == 200
        turnstile.allow(1000)
        assert [answer.result().json()["usage"]["completion_tokens"] for answer in accepted] == [2, 2]
        assert server.post(PATH, json=chat(max_tokens=2)).status_code == 200


def test_health_answers_while_the_model_computes(model, server):
    model.before_step = lambda done: time.sleep(0.03)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, PATH, json=chat(max_tokens=40))
        until(lambda: model.steps > WARM_UP_STEPS)
        slowest = 0.0
        for _ in range(10):
            start = time.monotonic()
            assert server.get("/health/live").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
        assert not answer.done()
        assert slowest < 1.0  # the answer takes more than a second: on the event loop, health would wait for it
        assert answer.result().status_code == 200


def test_health_answers_while_a_long_text_is_encoded(server):
    text, begun, release = server.service.text, threading.Event(), threading.Event()
    encode = text.encode_chat

    def slowly(messages, max_model_len):
        begun.set()
        assert release.wait(20)
        return encode(messages, max_model_len)

    text.encode_chat = slowly
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, PATH, json=chat(max_tokens=1))
        assert begun.wait(20)
        assert server.get("/health/live", timeout=5).status_code == 200
        release.set()
        assert answer.result().status_code == 200


# ---- callers who leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_caller_who_leaves_stops_the_work(model, server, stream, how):
    turnstile = hold(model, steps=1)
    sock = raw_request(server, chat(max_tokens=90, stream=stream))
    until(lambda: model.steps == WARM_UP_STEPS + 2)  # the second token is being computed
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    until(lambda: not server.engine._requests)
    turnstile.allow(1000)
    answer = server.post(PATH, json=chat(max_tokens=3))
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert model.steps <= WARM_UP_STEPS + 2 + 1 + 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_leaves_the_queue_frees_a_place(model, server, stream):
    turnstile = hold(model)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.post, PATH, json=chat(max_tokens=2))
        until(lambda: model.steps == WARM_UP_STEPS + 1)
        waiting = raw_request(server, chat(stream=stream))
        until(lambda: len(server.service.open) == 2)
        waiting.close()
        until(lambda: len(server.service.open) == 1)
        third = pool.submit(server.post, PATH, json=chat(max_tokens=2))
        until(lambda: len(server.service.open) == 2)
        turnstile.allow(100)
        assert first.result().status_code == third.result().status_code == 200
    assert len(model.prompts) == 2  # the first and the third


def test_a_caller_who_leaves_in_the_middle_of_the_body_is_no_error(server, caplog):
    half = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    half.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    until(lambda: server.server.server_state.tasks)
    half.close()
    until(lambda: not server.server.server_state.tasks)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---- failures


def test_a_failing_request_fails_alone(model, server):
    def fail(done):
        if done == [3] and len(model.prompts[-1]) > 20:
            raise RuntimeError("no memory left")

    model.before_step = fail
    long = "a message of more than twenty letters"
    response = server.post(PATH, json=chat(long))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "no memory left" in response.json()["error"]["message"]
    with server.stream("POST", PATH, json=chat(long, stream=True)) as response:
        assert response.status_code == 200  # it had begun
        lines = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in lines[:-1]) == "xxx"
    assert "no memory left" in lines[-1]["error"]["message"]  # and no [DONE] after it
    assert server.post(PATH, json=chat(max_tokens=2)).status_code == 200


def test_a_bug_in_the_server_is_a_500_in_the_usual_shape(server, caplog):
    text = server.service.text
    original, text.encode_chat = text.encode_chat, lambda messages, max_model_len: {}["a bug"]
    try:
        response = server.post(PATH, json=chat(), headers={"X-Request-ID": "find-me"})
    finally:
        text.encode_chat = original
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "find-me"
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "find-me" in error["message"]
    assert "a bug" not in error["message"]
    logged = next(record.getMessage() for record in caplog.records if record.exc_info)
    assert logged == f"request find-me: POST {PATH} failed: KeyError: 'a bug'"
    assert server.post(PATH, json=chat(max_tokens=1)).status_code == 200


# ---- the end


@pytest.mark.parametrize("stream", [False, True])
def test_stopping_ends_open_answers(model, stream):
    with serving(scripted(model)) as client, ThreadPoolExecutor() as pool:
        turnstile = hold(model, steps=2)

        def ask():
            with client.stream("POST", PATH, json=chat(stream=stream)) as response:
                return response.status_code, list(response.iter_lines())

        answer = pool.submit(ask)
        until(lambda: model.steps == WARM_UP_STEPS + 3)
        start = time.monotonic()
        client.server.should_exit = True
        status, lines = answer.result(timeout=10)
        turnstile.allow(1)
        assert status == (200 if stream else 503)
        last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
        assert last["error"]["code"] == "shutting_down"
    assert time.monotonic() - start < 10


def test_answers_of_two_callers_do_not_mix(server):
    def ask(i):
        with server.stream("POST", PATH, json=chat(stream=True, max_tokens=i + 1)) as response:
            if response.status_code == 429:
                return None
            return sum(len(piece["choices"][0]["delta"].get("content", "")) for piece in events(response.iter_lines()))

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(ask, range(12)))
    assert all(n is None or n == i + 1 for i, n in enumerate(got))
    assert sum(n is not None for n in got) >= 2


def test_stopping_does_not_wait_for_a_body_that_never_comes(model, caplog):
    with serving(scripted(model)) as client:
        half = socket.create_connection(("127.0.0.1", client.port), timeout=10)
        half.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        until(lambda: client.server.server_state.tasks)
        client.server.should_exit = True
        assert half.recv(100).startswith(b"HTTP/1.1 503 ")
        half.close()
    assert "Traceback" not in caplog.text


# ---- the books


def test_every_request_is_counted_once_and_found_by_its_id(model, tmp_path):
    """Answered or refused, by whatever refuses it; and the log has a line for each that asked something of the API."""
    keys = KeyRing([Key("me", hash_key("mine")), Key("few", hash_key("few"), requests_per_minute=1)])
    stop = configure("json", tmp_path / "log")
    good, path = chat(max_tokens=2), PATH
    try:
        with serving(scripted(model, max_num_seqs=1, max_waiting=0, keys=keys)) as client, ThreadPoolExecutor() as pool:
            before, sent = answered(client), []

            def send(status: int, method="POST", path=path, key="mine", **more):
                headers = {"X-Request-ID": f"request-{len(sent)}", "Authorization": f"Bearer {key}"}
                sent.append((status, method, path))
                response = client.request(method, path, headers=headers, **more)
                assert response.status_code == status, (path, response.text)
                if status >= 400:
                    assert response.json()["request_id"] == headers["X-Request-ID"]

            send(200, json=good)
            send(200, json=good | {"stream": True})
            send(200, path="/v1/completions", json={"model": "scripted", "prompt": ["a"], "max_tokens": 1})
            send(200, "GET", "/v1/models")
            send(200, "GET", "/health/live")
            send(401, json=good, key="nobody's")
            send(404, json=good | {"model": "none"})
            send(404, "GET", "/v1/nothing")
            send(405, "GET")
            send(400, content=b"{")
            send(400, json=good | {"temperature": 3})
            send(400, json=chat("x" * 500))
            send(413, content=b" " * 300_000)
            send(200, "GET", "/v1/models", key="few")
            send(429, "GET", "/v1/models", key="few")
            turnstile = hold(model)
            steps = model.steps
            running = pool.submit(send, 200, json=good)
            until(lambda: model.steps == steps + 1)
            send(429, json=good)
            turnstile.allow(10)
            running.result()
            expected = Counter(str(status) for status, *_ in sent)
            until(lambda: answered(client) - before == expected)
            assert not client.service.telemetry.open
    finally:
        stop()
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    lines = {line["request_id"]: line for line in logged if line["message"] == "request"}
    for i, (status, _, path) in enumerate(sent):
        if path.startswith("/v1"):
            assert lines[f"request-{i}"]["status"] == status
    assert len(lines) == sum(path.startswith("/v1") for *_, path in sent)


def answered(client) -> Counter[str]:
    """How many requests were answered with each status, says the server, without those that ask whether it's ready."""
    counts = Counter()
    for metric in client.service.telemetry.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "http_requests_total" and sample.labels["route"] != "/health/ready":
                counts[sample.labels["status"]] += int(sample.value)
    return counts
