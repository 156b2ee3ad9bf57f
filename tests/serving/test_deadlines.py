"""Time: a request's own, the caller's at each end of a connection, and what is told of both."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from shared.serving.api import middleware
from shared.serving.api.connections import Connection
from tests.serving.live import PATH, chat, events, hold, raw_request, scripted, serving, until


@pytest.fixture
def fast_model(model):
    """A token every hundredth of a second."""
    model.before_step = lambda done: time.sleep(0.01)
    return model


def connect(client: httpx.Client, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", client.port), timeout=20)
    sock.sendall(data)
    return sock


def seconds_until_closed(sock: socket.socket) -> float:
    start = time.monotonic()
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - start


# ---- a request's own time


def test_an_answer_that_is_not_done_in_time_is_a_504(fast_model):
    with serving(scripted(fast_model, max_num_seqs=1)) as client:
        start = time.monotonic()
        late = client.post(PATH, json=chat(max_tokens=90, timeout=0.3))
        assert 0.3 <= time.monotonic() - start < 0.8
        assert late.status_code == 504
        assert late.headers["x-timeout"] == "0.3"
        error = late.json()["error"]
        assert (error["type"], error["code"]) == ("timeout_error", "deadline_passed")
        assert "0.3 s" in error["message"]
        until(lambda: not client.engine._requests)
        assert client.post(PATH, json=chat(max_tokens=2, timeout=5)).status_code == 200
        metrics = client.service.telemetry.exposition()[0].decode()
        assert "llm_timeouts_total 1.0" in metrics


def test_a_stream_that_is_not_done_in_time_says_so(fast_model):
    with serving(scripted(fast_model)) as client:
        with client.stream("POST", PATH, json=chat(stream=True, max_tokens=90, timeout=0.3)) as response:
            assert response.status_code == 200
            lines = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
        assert lines[-1]["error"]["code"] == "deadline_passed"  # and no [DONE]
        assert any(piece["choices"][0]["delta"].get("content") for piece in lines[:-1])
        until(lambda: not client.engine._requests)


def test_a_turn_that_does_not_come_in_time_is_a_503(model):
    with serving(scripted(model, max_num_seqs=1)) as client, ThreadPoolExecutor() as pool:
        turnstile = hold(model)
        first = pool.submit(client.post, PATH, json=chat(max_tokens=1))
        until(lambda: model.steps == 1)
        late = client.post(PATH, json=chat(timeout=1.2, stream=True))  # not yet begun, so it has a status of its own
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "overloaded"
        assert 1 <= int(late.headers["retry-after"]) <= 60
        turnstile.allow(10)
        assert first.result().status_code == 200
    assert len(model.prompts) == 1


def test_the_default_is_told(model):
    with serving(scripted(model, settings={"timeout": 7.5})) as client:
        assert client.get("/health/ready").json()["default_timeout_s"] == 7.5
        assert client.post(PATH, json=chat(max_tokens=1)).headers["x-timeout"] == "7.5"
        assert client.post(PATH, json=chat(max_tokens=1, timeout=20)).headers["x-timeout"] == "20"
        assert "llm_default_timeout_seconds 7.5" in client.service.telemetry.exposition()[0].decode()
        for wrong in (0, -1, 601, "5", True):
            assert client.post(PATH, json=chat(timeout=wrong)).json()["error"]["param"] == "timeout"


# ---- callers who take their time


def test_a_body_that_comes_too_slowly(model, monkeypatch):
    monkeypatch.setattr(middleware, "BODY_S", 0.3)
    with serving(scripted(model)) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()
        with connect(client, head) as slow:
            start, answer = time.monotonic(), b""
            while piece := slow.recv(4096):
                answer += piece
            assert time.monotonic() - start < 5
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body_timeout" in answer
            assert b"x-request-id" in answer.lower()
        assert client.get("/health/live").status_code == 200


def test_heads_that_never_come(model, monkeypatch):
    """None at all, a part of one, and one a byte at a time."""
    monkeypatch.setattr(Connection, "head_s", 0.4)
    with serving(scripted(model)) as client:
        nothing, part, drip = connect(client), connect(client, b"GET / HTTP/1.1\r\nHost"), connect(client)
        with nothing, part, drip:
            until(lambda: len(client.server.server_state.connections) >= 3)
            start = time.monotonic()
            with suppress(ConnectionError):
                for byte in b"GET /health/live HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000:
                    drip.sendall(bytes([byte]))
                    time.sleep(0.02)
            assert time.monotonic() - start < 3
            for sock in (nothing, part):
                assert seconds_until_closed(sock) < 3
        with connect(client, b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n") as used:
            assert used.recv(4096).startswith(b"HTTP/1.1 200 ")
            used.sendall(b"GET /health/live HTTP/1.1\r\n")  # the second head doesn't come to its end
            assert seconds_until_closed(used) < 3
        until(lambda: len(client.server.server_state.connections) <= 1)  # the test's own client


def test_a_long_answer_is_no_slow_head(fast_model, monkeypatch):
    monkeypatch.setattr(Connection, "head_s", 0.2)
    body = chat(stream=True, max_tokens=60)
    with serving(scripted(fast_model)) as client, client.stream("POST", PATH, json=body) as response:
        assert len(events(response.iter_lines())) > 5


def test_a_caller_who_does_not_read_holds_no_place_and_is_cut_off(model, monkeypatch):
    """Logprobs make each event large, so that the answer fills all buffers."""
    monkeypatch.setattr(Connection, "stall_s", 1.0)
    body = chat(stream=True, max_tokens=90, logprobs=True, top_logprobs=20)
    with serving(scripted(model, max_num_seqs=1)) as client, socket.socket() as slow:
        for sock, size in ((client.server.servers[0].sockets[0], socket.SO_SNDBUF), (slow, socket.SO_RCVBUF)):
            sock.setsockopt(socket.SOL_SOCKET, size, 4096)  # what is accepted has its buffers from what listens
        slow.connect(("127.0.0.1", client.port))
        data = json.dumps(body).encode()
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        until(lambda: model.steps == 90)
        assert client.post(PATH, json=chat(max_tokens=3)).status_code == 200  # in the only place
        until(lambda: len(client.service.open) <= 1)
        assert client.service.open  # he is still there
        until(lambda: not client.service.open, 10)  # and in the end is given up


def test_whoever_leaves_while_it_waits_is_counted_once(model):
    with serving(scripted(model)) as client:
        turnstile = hold(model)
        sock = raw_request(client, chat())
        until(lambda: len(client.service.open) == 1)
        sock.close()
        until(lambda: not client.service.open)
        turnstile.allow(100)
        metrics = client.service.telemetry.exposition()[0].decode()
        assert 'http_requests_total{route="/v1/chat/completions",status="499"} 1.0' in metrics


# ---- callers who speak something else


@pytest.mark.parametrize(
    ("first", "then", "status"),
    [
        (b"\x16\x03\x01\x02\x00", b"\x00" * 50, b"400"),  # the beginning of TLS
        (b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00garbage\r\n\r\n", b"200"),
        (
            b"GET /health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
            b"zz\r\n",
            b"200",
        ),
        (
            b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            b"zzzzzzzz\r\nq\r\n",
            b"404",
        ),
        (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n".encode(),
            b"zz\r\n",
            b"400",
        ),
    ],
    ids=["tls", "behind an answer", "in a body nobody wants", "in the body of an error", "in a body"],
)
def test_what_is_no_http_ends_the_connection_and_nothing_else(server, caplog, first, then, status):
    with connect(server, first) as sock:
        time.sleep(0.1)
        sock.sendall(then)
        told = b""
        with suppress(ConnectionError):
            while piece := sock.recv(4096):
                told += piece
    assert told.startswith(b"HTTP/1.1 " + status)
    if status == b"400":
        assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert "Traceback" not in caplog.text
    assert server.post(PATH, json=chat(max_tokens=1)).status_code == 200
