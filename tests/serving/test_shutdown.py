"""The end of a live server: who is in may finish, who isn't is told, and nobody can hold it up."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx

from tests.serving.live import PATH, chat, events, hold, scripted, serving, until


def lines_of(stream) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in stream if line and "[DONE]" not in line]


def open_stream(client: httpx.Client, stack: ExitStack, **parameters):
    """The lines of a stream that has begun."""
    response = stack.enter_context(client.stream("POST", PATH, json=chat(stream=True, **parameters)))
    lines = response.iter_lines()
    assert "assistant" in next(lines)
    return lines


def draining(client: httpx.Client) -> None:
    client.server.should_exit = True
    until(lambda: client.service.drain.draining)


def test_open_answers_are_finished_and_new_requests_refused(model):
    service = scripted(model, max_num_seqs=1, settings={"grace": 20})
    with serving(service) as client, ExitStack() as stack, ThreadPoolExecutor() as pool:
        turnstile = hold(model, steps=1)
        stream = open_stream(client, stack, max_tokens=5)
        waiting = pool.submit(client.post, PATH, json=chat(max_tokens=3))
        until(lambda: service.num_waiting == 1)
        draining(client)
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "shutting down")
        assert client.get("/health/live").status_code == 200
        late = client.post(PATH, json=chat())
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        assert 1 <= int(late.headers["retry-after"]) <= 60
        turnstile.allow(100)
        assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in events(stream)) == "x" * 5
        assert waiting.result().json()["usage"]["completion_tokens"] == 3
        until(lambda: not client.server.server_state.tasks)
    assert service.engine.stopped


def test_what_is_not_done_in_time_gets_a_clear_end(model):
    service = scripted(model, max_num_seqs=1, settings={"grace": 0.3})
    with serving(service) as client, ExitStack() as stack, ThreadPoolExecutor() as pool:
        turnstile = hold(model, steps=2)
        stream = open_stream(client, stack)
        whole, waiting = (pool.submit(client.post, PATH, json=chat(stream=stream)) for stream in (False, True))
        until(lambda: service.num_waiting == 2)
        start = time.monotonic()
        draining(client)
        *pieces, last = lines_of(stream)
        assert 0.3 <= time.monotonic() - start < 2
        assert last["error"]["code"] == "shutting_down"
        assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == "xx"
        for answer in (whole.result(), waiting.result()):  # neither had begun
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        turnstile.allow(1)
    assert time.monotonic() - start < 6


def test_a_second_signal_hurries(model):
    service = scripted(model, settings={"grace": 60})
    with serving(service) as client, ExitStack() as stack:
        turnstile = hold(model, steps=2)
        streams = [open_stream(client, stack) for _ in range(3)]
        start = time.monotonic()
        draining(client)
        time.sleep(0.2)
        assert service.open
        client.server.handle_exit(15, None)
        for stream in streams:
            assert lines_of(stream)[-1]["error"]["code"] == "shutting_down"
        turnstile.allow(1)
    assert time.monotonic() - start < 6


def test_callers_who_neither_read_nor_send_do_not_hold_it_up(model):
    """One has sent half a body, one nothing, and one doesn't read a stream that fills its buffers."""
    body = json.dumps(chat(stream=True, max_tokens=90, logprobs=True, top_logprobs=20)).encode()
    with serving(scripted(model)) as client, ExitStack() as stack:
        client.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for sent in (head + body[:5], b"", head + body):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", client.port))
            sock.sendall(sent)
        until(lambda: model.steps == 90)
        assert len(client.service.open) == 1
        start = time.monotonic()
    assert time.monotonic() - start < 8
