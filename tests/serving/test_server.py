"""The live server at work: a full queue, callers who leave, failures, the end."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.live import PATH, WARM_UP_STEPS, chat, events, hold, scripted, serving, until


def raw_request(client: httpx.Client, body: dict) -> socket.socket:
    """Send a request and return the open connection, to be closed as rudely as a test likes."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", client.port), timeout=20)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


def engine(client: httpx.Client):
    return client.server.config.app.state.model.engine


# ---- the queue


def test_a_full_queue_answers_429(model, server):
    turnstile = hold(model)
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, json=chat(max_tokens=2)) for _ in range(2)]
        until(lambda: len(engine(server)._requests) == 2)
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
    model.before_step = lambda done: time.sleep(0.05)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, PATH, json=chat(max_tokens=40))
        until(lambda: model.steps > WARM_UP_STEPS)
        slowest = 0.0
        for _ in range(10):
            start = time.monotonic()
            assert server.get("/health/live").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
        assert not answer.done()
        assert slowest < 1.0  # the answer takes two seconds: on the event loop, health would wait for it
        assert answer.result().status_code == 200


def test_health_answers_while_a_long_text_is_encoded(server):
    served, begun, release = server.server.config.app.state.model, threading.Event(), threading.Event()
    encode = served.encode

    def slowly(messages):
        begun.set()
        assert release.wait(20)
        return encode(messages)

    served.encode = slowly
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
    until(lambda: not engine(server)._requests)
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
        until(lambda: len(engine(server)._requests) == 2)
        waiting.close()
        until(lambda: len(engine(server)._requests) == 1)
        third = pool.submit(server.post, PATH, json=chat(max_tokens=2))
        until(lambda: len(engine(server)._requests) == 2)
        turnstile.allow(100)
        assert first.result().status_code == third.result().status_code == 200
    assert len(model.prompts) == 3  # the warm-up, the first and the third


def test_a_caller_who_leaves_in_the_middle_of_the_body_is_no_error(server, caplog):
    half = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    half.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    until(lambda: server.server.server_state.tasks)
    half.close()
    until(lambda: not server.server.server_state.tasks)
    assert caplog.text == ""


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
    served = server.server.config.app.state.model
    original, served.encode = served.encode, lambda messages: {}["a bug"]
    try:
        response = server.post(PATH, json=chat(), headers={"X-Request-ID": "find-me"})
    finally:
        served.encode = original
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "find-me"
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "find-me" in error["message"]
    assert "a bug" not in error["message"]
    assert server.post(PATH, json=chat(max_tokens=1)).status_code == 200


# ---- the end


@pytest.mark.parametrize("stream", [False, True])
def test_stopping_ends_open_answers(model, stream):
    with serving("scripted", lambda: scripted(model)) as client, ThreadPoolExecutor() as pool:
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
    with serving("scripted", lambda: scripted(model)) as client:
        half = socket.create_connection(("127.0.0.1", client.port), timeout=10)
        half.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        until(lambda: client.server.server_state.tasks)
        client.server.should_exit = True
        assert half.recv(100).startswith(b"HTTP/1.1 503 ")
        half.close()
    assert "Traceback" not in caplog.text
