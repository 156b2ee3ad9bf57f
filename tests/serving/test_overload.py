"""Bodies and callers that would keep the server busy: much is refused early, and nothing holds up the others."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import shared
from shared.serving.errors import ApiError
from shared.serving.protocol import parse_chat_request
from tests.serving.live import PATH, chat, hold, scripted, serving, until
from tests.serving.test_server import engine, raw_request


@pytest.fixture
def encoder(server):
    """The texts that were encoded, each only after a test has released it."""

    class Encoder:
        def __init__(self):
            self.begun, self.release = [], threading.Semaphore(0)
            self.model = server.server.config.app.state.model
            self.encode, self.model.encode = self.model.encode, self

        def __call__(self, messages):
            self.begun.append(messages[0]["content"])
            assert self.release.acquire(timeout=20)
            return self.encode(messages)

    return Encoder()


# ---- bodies full of faults


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [0] * 400_000}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [0] * 400_000}]}, "messages[0].content[0]"),
        ({"stop": [0] * 400_000}, "stop[0]"),
        ({f"a{i}": 0 for i in range(100_000)}, None),
        ({"messages": [{f"a{i}": 0 for i in range(100_000)}]}, None),
        ({"metadata": {f"a{i}": 0 for i in range(100_000)}}, None),
    ],
)
def test_a_body_full_of_faults_is_refused_quickly(change, param):
    body = json.dumps({**chat(), **change}).encode()
    start = time.monotonic()
    with pytest.raises(ApiError) as refusal:
        parse_chat_request(body)
    assert time.monotonic() - start < 1  # these are four times as large as the server takes; collecting all takes 4 s
    assert refusal.value.status == 400
    assert refusal.value.body["error"]["param"] == param


def test_how_many_messages_and_notes_are_taken():
    message = chat()["messages"]
    assert len(parse_chat_request(json.dumps(chat() | {"messages": message * 2048}).encode()).messages) == 2048
    assert parse_chat_request(json.dumps(chat(metadata={f"{i}": "" for i in range(16)})).encode()).metadata
    for change, param in (
        ({"messages": message * 2049}, "messages"),
        ({"metadata": {f"{i}": "" for i in range(17)}}, "metadata"),
    ):
        with pytest.raises(ApiError) as refusal:
            parse_chat_request(json.dumps(chat() | change).encode())
        assert refusal.value.body["error"]["param"] == param


# ---- encoding, in turn


def test_one_text_is_encoded_at_a_time_and_few_may_wait(server, encoder):
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.post, PATH, json=chat("1", max_tokens=1))
        until(lambda: encoder.begun == ["1"])
        second = pool.submit(server.post, PATH, json=chat("2", max_tokens=1))
        until(lambda: server.server.config.app.state.encoding._requests == 2)
        refused = server.post(PATH, json=chat("3"))  # one may wait
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert encoder.begun == ["1"]
        encoder.release.release(2)
        assert [answer.result().status_code for answer in (first, second)] == [200, 200]
    assert encoder.begun == ["1", "2"]


def test_a_full_queue_is_told_before_the_text_is_encoded(model, server, encoder):
    turnstile = hold(model)
    encoder.release.release(2)
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, json=chat("in", max_tokens=1)) for _ in range(2)]
        until(lambda: len(engine(server)._requests) == 2)
        assert server.post(PATH, json=chat("out")).status_code == 429
        turnstile.allow(100)
        assert [answer.result().status_code for answer in accepted] == [200, 200]
    assert encoder.begun == ["in", "in"]


def test_texts_of_callers_who_left_are_not_encoded(server, encoder):
    encoding = server.server.config.app.state.encoding
    with ThreadPoolExecutor() as pool:
        begun = raw_request(server, chat("begun"))
        until(lambda: encoder.begun == ["begun"])
        waiting = raw_request(server, chat("waiting"))
        until(lambda: encoding._requests == 2)
        for sock in (waiting, begun):
            sock.close()
        until(lambda: encoding._requests == 0)
        stays = pool.submit(server.post, PATH, json=chat("stays", max_tokens=1))
        until(lambda: encoding._requests == 1)
        assert encoder.begun == ["begun"]  # whose work goes on, and nothing beside it
        encoder.release.release(2)
        assert stays.result().status_code == 200
    assert encoder.begun == ["begun", "stays"]


ENCODING_AT_THE_END = """
import threading, time
from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, chat, scripted, serving, until
served, begun = scripted(ScriptedModel("x")), threading.Event()
with serving("scripted", lambda: served) as client:
    served.encode = lambda messages: begun.set() or time.sleep(60)
    asking = threading.Thread(target=lambda: print(client.post(PATH, json=chat()).status_code))
    asking.start()
    assert begun.wait(20)
    start = time.monotonic()
    client.server.should_exit = True
    asking.join(20)
print("ended after", time.monotonic() - start)
"""


def test_the_end_does_not_wait_for_an_encoding():
    command = [sys.executable, "-c", ENCODING_AT_THE_END]
    done = subprocess.run(command, cwd=shared.ROOT, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert "503" in done.stdout
    assert float(done.stdout.split("ended after")[1].split()[0]) < 8


# ---- who may ask


def test_other_sites_may_not_use_a_local_server(model):
    with serving("scripted", lambda: scripted(model), local_only=True) as client:
        own = f"127.0.0.1:{client.port}"
        for host in (own, "localhost", f"LOCALHOST:{client.port}", "[::1]:80", "127.0.0.1"):
            assert client.get("/health/live", headers={"Host": host}).status_code == 200
        for host in (
            "evil.example",
            f"evil.example:{client.port}",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "8.8.8.8",
        ):
            refused = client.get("/v1/models", headers={"Host": host})
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "forbidden_host"
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            refused = client.post(PATH, json=chat(), headers={"Origin": origin})
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "forbidden_origin"
        assert client.post(PATH, json=chat(), headers={"Origin": f"http://{own}"}).status_code == 200
    assert len(model.prompts) == 2  # the warm-up and the last


def test_the_scheme_of_the_key_is_any_case(model):
    with serving("scripted", lambda: scripted(model), api_key="sesame") as client:
        for given, status in (("bearer sesame", 200), ("BEARER sesame", 200), ("Basic sesame", 401), ("sesame", 401)):
            assert client.get("/v1/models", headers={"Authorization": given}).status_code == status


def test_a_callback_that_fails_is_reported_and_the_server_still_ends(model):
    failures = []

    def on_ready(model):
        raise OSError("nobody reads what is printed")

    with serving("scripted", lambda: scripted(model), False, on_ready=on_ready, on_failure=failures.append) as client:
        until(lambda: failures)
        assert client.get("/health/ready").status_code == 503
    assert str(failures[0]) == "nobody reads what is printed"
