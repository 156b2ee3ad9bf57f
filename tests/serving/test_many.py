"""Several callers at once: served side by side, and a caller who leaves takes nobody along."""

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.inference.engines import nothing_left
from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, WARM_UP_STEPS, chat, events, hold, raw_request, scripted, serving, until


@pytest.fixture
def model():
    return ScriptedModel("x" * 90)


def open_streams(client, stack: ExitStack, n: int) -> list:
    """n streams of one server, and of each the lines that come; the first one has been read."""
    streams = []
    for i in range(n):
        response = stack.enter_context(client.stream("POST", PATH, json=chat(str(i), stream=True, max_tokens=90)))
        streams.append(line for line in response.iter_lines() if line)
        assert "assistant" in next(streams[-1])
    return streams


def test_two_streams_go_on_side_by_side(model):
    with serving(scripted(model)) as client, ExitStack() as stack:
        turnstile = hold(model)
        streams = open_streams(client, stack, 2)
        until(lambda: len(client.engine._requests) == 2)
        turnstile.allow(2)  # the second may come too late for the first's first step
        assert ['"x"' in next(stream) for stream in streams] == [True, True]
        for _ in range(5):
            turnstile.allow(1)
            assert ['"x"' in next(stream) for stream in streams] == [True, True]
        turnstile.allow(1000)
        for stream in streams:
            assert len(events(list(stream))) > 80


def test_eight_callers_take_little_longer_than_one(model):
    with serving(scripted(model)) as client, ThreadPoolExecutor(8) as pool:
        model.before_step = lambda done: time.sleep(0.01)

        def ask(i):
            return client.post(PATH, json=chat(str(i), max_tokens=50)).json()["usage"]["completion_tokens"]

        took = {}
        for n in (1, 8):
            start, before = time.monotonic(), model.steps
            assert list(pool.map(ask, range(n))) == [50] * n
            took[n] = time.monotonic() - start, model.steps - before
        assert took[1][1] == 50
        assert took[8][1] < 100  # steps; one after the other they would be 400
        assert took[8][0] < 4 * took[1][0]


def test_a_long_prompt_does_not_stop_a_stream(model):
    """While it is read, piece by piece, the stream has a token in every step."""
    settings = {"max_num_seqs": 2, "max_num_batched_tokens": 16}
    with serving(scripted(model, **settings)) as client, ExitStack() as stack:
        turnstile = hold(model, 1)
        [stream] = open_streams(client, stack, 1)
        until(lambda: model.steps == WARM_UP_STEPS + 2)
        with ThreadPoolExecutor() as pool:
            long = pool.submit(client.post, PATH, json=chat("y" * 95, max_tokens=1))
            until(lambda: len(client.engine._requests) == 2)
            before = len(model.batches)
            turnstile.allow(8)
            assert long.result().json()["usage"]["prompt_tokens"] == 100
        assert model.batches[before : before + 7] == [[1, 15]] * 6 + [[1, 10]]
        pieces = [next(stream) for _ in range(8)]
        assert all('"x"' in piece for piece in pieces)
        turnstile.allow(1000)


@pytest.mark.parametrize("stream", [False, True])
def test_those_who_stay_do_not_notice_who_leaves(model, stream):
    with serving(scripted(model)) as client:
        turnstile, pool = hold(model, 1), client.engine.engine.blocks
        leaving = [raw_request(client, chat(str(i), stream=stream)) for i in range(3)]
        with ThreadPoolExecutor() as threads:
            staying = [threads.submit(client.post, PATH, json=chat("stay", max_tokens=20)) for _ in range(2)]
            until(lambda: len(client.engine._requests) == 5 and model.steps == WARM_UP_STEPS + 2)
            for sock, linger in zip(leaving, (b"", b"\1\0\0\0\0\0\0\0", b""), strict=True):
                if linger:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                sock.close()
            until(lambda: len(client.engine._requests) == 2)
            turnstile.allow(1)
            until(lambda: pool.num_free == pool.num_blocks - 2)  # those of the three are free after the step
            turnstile.allow(1000)
            assert [answer.result().json()["usage"]["completion_tokens"] for answer in staying] == [20, 20]
        until(lambda: pool.num_free == pool.num_blocks)


def test_as_many_as_there_are_places_are_taken_in_at_once(model):
    """Nobody is refused for standing in line for the tokenizer."""
    with serving(scripted(model, max_waiting=0)) as client, ThreadPoolExecutor(8) as pool:
        turnstile = hold(model)
        asked = [pool.submit(client.post, PATH, json=chat(max_tokens=3)) for _ in range(8)]
        until(lambda: len(client.engine._requests) == 8)
        assert client.post(PATH, json=chat()).status_code == 429
        turnstile.allow(1000)
        assert [answer.result().status_code for answer in asked] == [200] * 8


def test_a_storm_of_callers(model):
    """50 of them, 12 at a time; a third hang up in the middle of their stream, and some give up waiting."""
    draw = random.Random(5)
    plans = [(draw.choice(("stay", "stay", "hang up")), draw.randrange(1, 40), draw.random() < 0.5) for _ in range(50)]

    def caller(plan):
        what, tokens, stream = plan
        if what == "hang up":
            sock = raw_request(client, chat(stream=stream))
            time.sleep(tokens / 1000)
            sock.close()
            return None
        response = client.post(PATH, json=chat(max_tokens=tokens, stream=stream))
        assert response.status_code == 200
        if stream:
            pieces = events(response.text.splitlines())
            got = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
        else:
            got = response.json()["choices"][0]["message"]["content"]
        assert got == "x" * tokens
        return tokens

    with serving(scripted(model, max_num_seqs=4, num_blocks=30)) as client, ThreadPoolExecutor(12) as pool:
        got = list(pool.map(caller, plans))
        assert sum(tokens is not None for tokens in got) > 25
        until(lambda: not client.engine._thread.serving)
        nothing_left(client.engine)
    assert max(map(len, model.batches)) == 4


def test_stopping_ends_many_streams(model):
    with serving(scripted(model)) as client, ExitStack() as stack:
        turnstile = hold(model)
        streams = open_streams(client, stack, 8)
        start = time.monotonic()
        client.server.should_exit = True
        last = [json.loads(list(stream)[-1].removeprefix("data: ")) for stream in streams]
        turnstile.allow(1)
        assert [piece["error"]["code"] for piece in last] == ["shutting_down"] * 8
    assert time.monotonic() - start < 10


def test_an_engine_that_has_failed_is_told(model, caplog):
    with serving(scripted(model)) as client:
        client.engine.engine.scheduler.update = lambda *_: {}["a bug"]
        failed = client.post(PATH, json=chat())
        assert failed.status_code == 500
        assert "the engine has failed" in failed.json()["error"]["message"]
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        later = client.post(PATH, json=chat())
        assert later.status_code == 503
        assert later.json()["error"]["code"] == "engine_failed"
    assert "the engine has failed" in caplog.text
