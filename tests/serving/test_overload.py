"""Bodies and callers that would keep the server busy: much is refused early, and nothing holds up the others."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import shared
from shared.serving.api.chat_request import ChatRequest
from shared.serving.api.protocol import parse
from shared.serving.errors import ApiError
from tests.serving.live import PATH, chat, hold, raw_request, until


@pytest.fixture
def encoder(server):
    """The texts that were encoded, each only after a test has released it."""

    class Encoder:
        def __init__(self):
            self.begun, self.release = [], threading.Semaphore(0)
            self.encode, server.service.text.encode_chat = server.service.text.encode_chat, self

        def __call__(self, messages, max_model_len):
            self.begun.append(messages[0]["content"])
            assert self.release.acquire(timeout=20)
            return self.encode(messages, max_model_len)

        def waiting(self) -> int:
            return server.service.encoding.num_waiting

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
    start = time.thread_time()
    with pytest.raises(ApiError) as refusal:
        parse(ChatRequest, body)
    assert time.thread_time() - start < 1  # these are four times as large as the server takes; collecting all takes 4 s
    assert refusal.value.status == 400
    assert refusal.value.body["error"]["param"] == param


def test_how_many_messages_and_notes_are_taken():
    message = chat()["messages"]
    assert len(parse(ChatRequest, json.dumps(chat() | {"messages": message * 2048}).encode()).messages) == 2048
    assert parse(ChatRequest, json.dumps(chat(metadata={f"{i}": "" for i in range(16)})).encode()).metadata
    for change, param in (
        ({"messages": message * 2049}, "messages"),
        ({"metadata": {f"{i}": "" for i in range(17)}}, "metadata"),
    ):
        with pytest.raises(ApiError) as refusal:
            parse(ChatRequest, json.dumps(chat() | change).encode())
        assert refusal.value.body["error"]["param"] == param


# ---- encoding, in turn


def test_one_text_is_encoded_at_a_time_and_few_may_wait(server, encoder):
    """As many as may run and wait: one and one."""
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, json=chat("1", max_tokens=1))]
        until(lambda: encoder.begun == ["1"])
        for number in (2, 3):
            accepted.append(pool.submit(server.post, PATH, json=chat(str(number), max_tokens=1)))
            until(lambda n=number: encoder.waiting() == n - 1)
        refused = server.post(PATH, json=chat("4"))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert encoder.begun == ["1"]
        encoder.release.release(3)
        assert {answer.result().status_code for answer in accepted} <= {200, 429}  # the engine has two places as well
        assert accepted[0].result().status_code == 200
    assert encoder.begun == ["1", "2", "3"]


def test_a_full_queue_is_told_before_the_text_is_encoded(model, server, encoder):
    turnstile = hold(model)
    encoder.release.release(2)
    with ThreadPoolExecutor() as pool:
        accepted = [pool.submit(server.post, PATH, json=chat("in", max_tokens=1)) for _ in range(2)]
        until(lambda: server.service.num_waiting == 1)
        assert server.post(PATH, json=chat("out")).status_code == 429
        turnstile.allow(100)
        assert [answer.result().status_code for answer in accepted] == [200, 200]
    assert encoder.begun == ["in", "in"]


def test_texts_of_callers_who_left_are_not_encoded(server, encoder):
    with ThreadPoolExecutor() as pool:
        begun = raw_request(server, chat("begun"))
        until(lambda: encoder.begun == ["begun"])
        waiting = raw_request(server, chat("waiting"))
        until(lambda: encoder.waiting() == 1)
        for sock in (waiting, begun):
            sock.close()
        until(lambda: not server.service.open)
        stays = pool.submit(server.post, PATH, json=chat("stays", max_tokens=1))
        until(lambda: encoder.waiting() == 1)
        assert encoder.begun == ["begun"]  # whose work goes on, and nothing beside it
        encoder.release.release(2)
        assert stays.result().status_code == 200
    assert encoder.begun == ["begun", "stays"]


ENCODING_AT_THE_END = """
import threading, time
from tests.inference.scripted import ScriptedModel
from tests.serving.live import PATH, chat, scripted, serving, until
service, begun = scripted(ScriptedModel("x")), threading.Event()
with serving(service) as client:
    service.text.encode_chat = lambda messages, max_model_len: begun.set() or time.sleep(60)
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
